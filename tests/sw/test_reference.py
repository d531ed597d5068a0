"""Float reference: cached decoding, replay, score definitions."""

import math

import pytest
import torch

from fastcar_hw.config import ModelConfig
from fastcar_sw.gates import GateError, GateSettings
from fastcar_sw.quantize import calibrate, random_model
from fastcar_sw.quantize_ranges import query_factor
from fastcar_sw.reference import Decoder, rotate
from fastcar_sw.replay_reference import ReplayDecoder, generate, sample, teacher_forced_run

N = 4
SHAPES = {"vocab": 24, "hidden": 16, "layers": 2, "heads": 4, "head_dim": 4, "ffn": 24, "tokens_per_frame": N,
          "frames": 5}  # fmt: skip
CONFIGS = [
    ModelConfig(name="mha", kv_heads=4, frame_embedding=True, **SHAPES),
    ModelConfig(name="gqa", kv_heads=2, **SHAPES),
]
CONFIG = CONFIGS[0]
DECODER = Decoder.from_state(CONFIG, random_model(CONFIG, 1))
TOKENS = torch.randint(0, 24, (3, 20), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_cached_decode_equals_the_full_forward_and_the_quantizers_own(config):
    state = random_model(config, 2)
    decoder = Decoder.from_state(config, state)
    with torch.no_grad():
        full = decoder(TOKENS[:, :-1])
    by_frame = teacher_forced_run(decoder, TOKENS, prompt=N)
    steps = ReplayDecoder(decoder, 3, prompt=N)
    by_token = torch.stack([steps.step(TOKENS[:, p]) for p in range(19)], 1)
    _, other = calibrate(config, state, TOKENS[:, :-1])
    for logits in (by_frame.logits, by_token, other):
        torch.testing.assert_close(logits, full, rtol=1e-4, atol=1e-4)


def test_ranges_are_those_of_the_quantizer():
    collected = {}
    teacher_forced_run(DECODER, TOKENS, prompt=N, collect=collected)
    peaks, _ = calibrate(CONFIG, random_model(CONFIG, 1), TOKENS[:, :-1])
    assert set(peaks) == set(collected)
    for (name, layer), value in peaks.items():
        factor = query_factor(CONFIG) if name == "query" else 1
        assert collected[name, layer] * factor == pytest.approx(value, rel=1e-3), name


def test_tied_head_shares_its_memory():
    decoder = Decoder(CONFIG, tied=True)
    assert decoder.lm_head.weight is decoder.model.embed_tokens.weight


def test_rotation_is_relative():
    x, y = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(3))
    cos, sin = DECODER.cos, DECODER.sin
    near = rotate(x, cos[5:6], sin[5:6]) @ rotate(y, cos[1:2], sin[1:2]).T
    far = rotate(x, cos[15:16], sin[15:16]) @ rotate(y, cos[11:12], sin[11:12]).T
    torch.testing.assert_close(near, far)


def test_never_and_infinite_thresholds_are_dense():
    dense = teacher_forced_run(DECODER, TOKENS, prompt=N, gate="never")
    assert dense.compute.all() and dense.replay_ratio == 0
    closed = teacher_forced_run(DECODER, TOKENS, prompt=N, gate="tas", threshold=math.inf)
    assert torch.equal(dense.logits, closed.logits)


@pytest.mark.parametrize(
    ("prompt", "warmup", "first"),
    [(4, 1, 8), (6, 1, 8), (8, 1, 12), (4, 2, 12), (1, 0, 4), (4, 0, 4), (7, 0, 7), (1, 1, 4)],
)
def test_eligible_positions(prompt, warmup, first):
    run = teacher_forced_run(DECODER, TOKENS, prompt=prompt, gate="always", warmup_frames=warmup)
    assert run.eligible.tolist() == [p >= first for p in range(19)]
    assert torch.equal(run.compute, ~run.eligible[:, None, None].expand_as(run.compute))
    assert run.replay_ratio == 1 and run.total_replay_ratio == pytest.approx((19 - first) / 19)


def naive(tokens, prompt, replays, warmup=1):
    """Decode one lane without any cache but the replay slots, layer by layer on full prefixes."""
    c, slots, logits = CONFIG, {}, []
    streams = [[] for _ in range(c.layers + 1)]
    for p, token in enumerate(tokens):
        x = DECODER.embed(token.view(1, 1), p)
        for i, layer in enumerate(DECODER.model.layers):
            streams[i].append(x)
            prefix = layer.input_layernorm(torch.cat(streams[i], 1))
            x = x + layer.self_attn(prefix, DECODER.cos[: p + 1], DECODER.sin[: p + 1])[:, -1:]
            eligible = p >= max(prompt, N) and p // N - prompt // N >= warmup
            if not (eligible and replays(p, i)):
                slots[i, p % N] = layer.mlp(layer.post_attention_layernorm(x))
            x = x + slots[i, p % N]
        logits.append(DECODER.logits(x)[0, 0])
    return torch.stack(logits)


def test_forced_replay_is_the_method_word_by_word():
    forced = torch.rand(19, 2, 3, generator=torch.Generator().manual_seed(5)) > 0.6
    run = teacher_forced_run(DECODER, TOKENS, prompt=N, gate="forced", forced=forced)
    dense = teacher_forced_run(DECODER, TOKENS, prompt=N)
    with torch.no_grad():
        for lane in range(3):
            want = naive(TOKENS[lane, :-1], N, lambda p, i, lane=lane: not forced[p, i, lane])
            torch.testing.assert_close(run.logits[lane], want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(run.logits, dense.logits)
    eligible = run.eligible
    assert torch.equal(run.compute[eligible], forced[eligible]) and run.compute[~eligible].all()


def test_token_by_token_replays_like_frame_by_frame():
    policy = {"gate": "tas", "threshold": -0.5, "definition": "paper"}
    run = teacher_forced_run(DECODER, TOKENS, prompt=N, **policy)
    assert 0.1 < run.replay_ratio < 0.9
    state = ReplayDecoder(DECODER, 3, prompt=N, **policy)
    logits = torch.stack([state.step(TOKENS[:, p]) for p in range(19)], 1)
    assert torch.equal(state.compute, run.compute)
    torch.testing.assert_close(logits, run.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("definition", ["paper", "reference-code"])
def test_scores_of_both_definitions(definition):
    run = teacher_forced_run(DECODER, TOKENS, prompt=N, definition=definition)
    layer = DECODER.model.layers[0]
    with torch.no_grad():
        q, k, _ = layer.self_attn.project(layer.input_layernorm(DECODER.embed(TOKENS[:, :-1])))
    cos, sin = DECODER.cos[:19], DECODER.sin[:19]
    k = rotate(k, cos, sin)
    q = rotate(q, cos, sin) if definition == "paper" else q
    want = (q[:, :, N:] * k[:, :, :-N]).sum(-1).mean(1) / math.sqrt(4)
    torch.testing.assert_close(run.tas[N:, 0].T, want, rtol=1e-4, atol=1e-4)
    assert run.tas[:N].isnan().all()


def test_a_tie_replays_by_the_paper_and_computes_by_the_reference_code():
    # Queries of zero make every score exactly zero.
    state = random_model(CONFIG, 1)
    for i in range(2):
        state[f"model.layers.{i}.self_attn.q_proj.weight"].zero_()
    decoder = Decoder.from_state(CONFIG, state)
    paper = teacher_forced_run(decoder, TOKENS, prompt=N, gate="tas", threshold=0.0, definition="paper")
    code = teacher_forced_run(
        decoder, TOKENS, prompt=N, gate="tas", threshold=0.0, definition="reference-code"
    )
    assert paper.replay_ratio == 1 and code.replay_ratio == 0


def test_threshold_per_layer_and_head_weights():
    run = teacher_forced_run(DECODER, TOKENS, prompt=N, gate="tas", threshold=(-math.inf, math.inf))
    assert not run.compute[run.eligible][:, 0].any() and run.compute[:, 1].all()
    first = teacher_forced_run(DECODER, TOKENS, prompt=N, head_weights=(3, 0, 0, 0))
    alone = teacher_forced_run(DECODER, TOKENS, prompt=N, head_weights=(1, 0, 0, 0))
    torch.testing.assert_close(first.tas, alone.tas, equal_nan=True)
    settings = GateSettings(kind="tas", threshold=-0.5, warmup_frames=1)
    again = teacher_forced_run(DECODER, TOKENS, prompt=N, gate=settings)
    assert torch.equal(
        again.compute, teacher_forced_run(DECODER, TOKENS, prompt=N, gate="tas", threshold=-0.5).compute
    )


def test_lanes_are_independent():
    policy = {"gate": "tas", "threshold": -0.5}
    run = teacher_forced_run(DECODER, TOKENS, prompt=N, **policy)
    for lane in range(3):
        alone = teacher_forced_run(DECODER, TOKENS[lane : lane + 1], prompt=N, **policy)
        assert torch.equal(alone.compute[:, :, 0], run.compute[:, :, lane])


def test_generation():
    run = generate(DECODER, TOKENS[:, :N], 20)
    assert torch.equal(run.tokens[:, :N], TOKENS[:, :N]) and run.logits.shape == (3, 19, 24)
    assert torch.equal(run.tokens[:, N:], run.logits[:, N - 1 :].argmax(-1))
    done = []
    drawn = [generate(DECODER, TOKENS[:, :N], 20, topk=5, temperature=2.0, seed=s, progress=done.append)
             for s in (1, 1, 2)]  # fmt: skip
    assert torch.equal(drawn[0].tokens, drawn[1].tokens) and not torch.equal(drawn[0].tokens, drawn[2].tokens)
    assert done[:15] == list(range(4, 19))
    # What was sampled is what teacher forcing sees.
    again = teacher_forced_run(DECODER, drawn[0].tokens, prompt=N)
    torch.testing.assert_close(again.logits, drawn[0].logits, rtol=1e-4, atol=1e-4)


def test_sampling():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    assert sample(logits, 0, 1.0, None).tolist() == [1]
    assert sample(logits, 1, 1.0, torch.Generator()).item() in (1, 2)
    generator = torch.Generator().manual_seed(0)
    found = {sample(logits, 3, 1.0, generator).item() for _ in range(100)}
    assert found == {1, 2, 3}


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ({"gate": "sometimes"}, "gate kind"),
        ({"definition": "mine"}, "definition"),
        ({"gate": "tas", "threshold": (0.0,)}, "number of thresholds must be layers=2"),
        ({"gate": "forced"}, "must be given"),
        ({"forced": torch.ones(19, 2, 3)}, "must be missing"),
        ({"gate": "forced", "forced": torch.ones(19, 3, 3)}, "must have the shape"),
        ({"gate": "forced", "forced": torch.ones(5, 2, 3)}, "cover position"),
        ({"prompt": 0}, "prompt"),
        ({"head_weights": (1, 1)}, "head_weights"),
    ],
)
def test_errors(policy, rule):
    with pytest.raises(GateError, match=rule):
        teacher_forced_run(DECODER, TOKENS, **({"prompt": N} | policy))


def test_steps_stay_inside_a_frame_and_the_video():
    state = ReplayDecoder(DECODER, 3, prompt=N)
    with pytest.raises(ValueError, match="inside one frame"):
        state.step(TOKENS[:, :5])
    with pytest.raises(ValueError, match="total"):
        generate(DECODER, TOKENS[:, :N], 21)
