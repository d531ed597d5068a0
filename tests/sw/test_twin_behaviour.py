"""What users of the twin rely on: replay semantics, independence of lanes, determinism, errors, traces."""

import dataclasses
import math
import time

import numpy as np
import pytest
import torch

from fastcar_hw.config import ModelConfig
from fastcar_hw.presets import MODELS
from fastcar_sw.compiler.ops import OpTag
from fastcar_sw.gates import GateError, GateSettings
from fastcar_sw.model import ModelError
from fastcar_sw.quantize import quantize, random_model, random_tokens
from fastcar_sw.sampling import SamplingError, SamplingSettings
from fastcar_sw.twin import Twin
from fastcar_sw.twin.trace import TraceEntry

SMALL = MODELS["test-gqa"]
NEVER, ALWAYS = GateSettings(kind="never"), GateSettings(kind="always")


@pytest.fixture(scope="module")
def model():
    return quantize(SMALL, random_model(SMALL, 0))


def _prompt(config: ModelConfig, lanes: int, length: int) -> torch.Tensor:
    return random_tokens(config, 5, lanes, length)


def _same(a, b):
    for name in ("tokens", "logits", "compute", "eligible", "tas"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_shapes(model):
    r = Twin(model, 3).generate(_prompt(SMALL, 3, 6), 14, GateSettings(threshold=0.0))
    assert r.tokens.shape == (3, 14)
    assert r.tokens.dtype == torch.int64
    assert r.logits.shape == (8, 3, SMALL.vocab)
    assert r.logits.dtype == torch.int32
    assert r.logit_positions.tolist() == list(range(5, 13))
    assert r.compute.shape == r.tas.shape == (13, SMALL.layers, 3)
    assert r.tas.dtype == torch.int32
    assert r.eligible.tolist() == [p >= 6 for p in range(13)]
    assert r.trace is None
    # Greedy tokens are the first largest logits.
    for i, p in enumerate(r.logit_positions.tolist()):
        best = [int(np.argmax(row)) for row in r.logits[i].numpy()]
        assert r.tokens[:, p + 1].tolist() == best


def test_never_computes(model):
    r = Twin(model, 2).generate(_prompt(SMALL, 2, 1), 16, NEVER)
    assert bool(r.compute.all())
    assert r.replay_ratio == r.total_replay_ratio == 0.0


def test_always_replays_all_eligible(model):
    r = Twin(model, 2).generate(_prompt(SMALL, 2, 1), 16, ALWAYS)
    n = SMALL.tokens_per_frame
    assert r.eligible.tolist() == [p >= n for p in range(15)]
    assert bool(r.compute[:n].all())
    assert not bool(r.compute[n:].any())
    assert r.replay_ratio == 1.0
    assert r.total_replay_ratio == pytest.approx((15 - n) / 15)


def test_first_frame_and_prompt_never_replay(model):
    r = Twin(model, 1).generate(_prompt(SMALL, 1, 10), 16, ALWAYS)
    assert r.eligible.tolist() == [p >= 10 for p in range(15)]


@pytest.mark.parametrize(("warmup", "first"), [(0, 5), (1, 8), (2, 12), (3, 99)])
def test_warmup(model, warmup, first):
    r = Twin(model, 1).generate(_prompt(SMALL, 1, 5), 16, dataclasses.replace(ALWAYS, warmup_frames=warmup))
    assert r.eligible.tolist() == [p >= first for p in range(15)]
    assert torch.equal(r.compute[:, 0, 0], ~r.eligible)


def test_forced_compute_is_never(model):
    prompt = _prompt(SMALL, 2, 3)
    twin = Twin(model, 2)
    forced = torch.ones((15, SMALL.layers, 2), dtype=torch.bool)
    _same(twin.generate(prompt, 16, NEVER), twin.generate(prompt, 16, GateSettings(kind="forced"), forced=forced))
    _same(twin.generate(prompt, 16, ALWAYS), twin.generate(prompt, 16, GateSettings(kind="forced"), forced=~forced))


def test_recorded_decisions_repeat_a_run(model):
    """Forcing the decisions of a TAS run gives the same tokens and logits."""
    prompt = _prompt(SMALL, 3, 3)
    twin = Twin(model, 3)
    first = twin.generate(prompt, 16, GateSettings(threshold=0.2), SamplingSettings(topk=3))
    again = twin.generate(prompt, 16, GateSettings(kind="forced"), SamplingSettings(topk=3), forced=first.compute)
    assert 0 < first.replay_ratio < 1
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.logits, again.logits)


@pytest.mark.parametrize("definition", ["paper", "reference-code"])
def test_infinite_thresholds(model, definition):
    prompt = _prompt(SMALL, 2, 3)
    twin = Twin(model, 2)
    for tau, kind in ((math.inf, NEVER), (-math.inf, ALWAYS)):
        gate = GateSettings(threshold=tau, definition=definition)
        assert torch.equal(twin.generate(prompt, 16, gate).tokens, twin.generate(prompt, 16, kind).tokens)


def test_threshold_per_layer(model):
    r = Twin(model, 2).generate(_prompt(SMALL, 2, 3), 16, GateSettings(threshold=(math.inf, -math.inf)))
    assert bool(r.compute[:, 0].all())
    assert not bool(r.compute[r.eligible, 1].any())


def test_definitions_differ_only_by_query_and_compare(model):
    """At a threshold equal to a score, `paper` replays and `reference-code` computes."""
    prompt = _prompt(SMALL, 1, 4)
    twin = Twin(model, 1)
    for definition, replays in (("paper", True), ("reference-code", False)):
        gate = GateSettings(definition=definition, threshold=math.inf)
        score = int(twin.generate(prompt, 6, gate).tas[4, 0, 0])
        tau = score / (math.log2(math.e) * 4096 * SMALL.heads)
        gate = dataclasses.replace(gate, threshold=tau)
        assert gate.integer_thresholds(SMALL)[0] == score
        assert bool(twin.generate(prompt, 6, gate).compute[4, 0, 0]) is not replays


def test_replay_adds_what_was_computed(model):
    """A slot is replayed many times without changing, and is renewed by the next compute."""
    config, lanes = SMALL, 2
    n = config.tokens_per_frame
    forced = torch.ones((15, config.layers, lanes), dtype=torch.bool)
    forced[n : 3 * n, 0] = False
    r = Twin(model, lanes).generate(
        _prompt(config, lanes, 1), 16, GateSettings(kind="forced"), trace=True, forced=forced
    )
    for lane in range(lanes):
        for p in range(n, 3 * n):
            slot = r.trace.get(p % n, 0, lane, OpTag.SLOT).astype(np.int64)
            before = r.trace.get(p, 0, lane, OpTag.ATTN_RES).astype(np.int64)
            after = r.trace.get(p, 0, lane, OpTag.REPLAY_RES)
            assert np.array_equal(np.clip(before + (slot[1:] << slot[0]), -(2**31), 2**31 - 1), after)
            for skipped in (OpTag.MLP_NORM, OpTag.GATE, OpTag.DOWN, OpTag.MLP_RES, OpTag.SLOT):
                with pytest.raises(KeyError):
                    r.trace.get(p, 0, lane, skipped)
        assert r.trace.get(3 * n, 0, lane, OpTag.SLOT).shape == (config.hidden + 1,)


def test_long_reuse():
    """One token a frame: the only slot is replayed in every frame, however old it is."""
    config = ModelConfig(name="single", vocab=7, hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4, ffn=6,
                         tokens_per_frame=1, frames=60)  # fmt: skip
    r = Twin(quantize(config, random_model(config, 3)), 1).generate(
        torch.tensor([[3]]), 60, ALWAYS, SamplingSettings(topk=4), trace=True
    )
    added = {tuple(r.trace.get(p, 0, 0, OpTag.REPLAY_RES) - r.trace.get(p, 0, 0, OpTag.ATTN_RES)) for p in range(1, 59)}
    assert len(added) == 1


def test_lanes_are_independent(model):
    """A lane gives the same whatever runs beside it."""
    prompt = _prompt(SMALL, 4, 3)
    gate = GateSettings(threshold=0.2)
    together = Twin(model, 4).generate(prompt, 16, gate)
    for lane in range(4):
        alone = Twin(model, 1).generate(prompt[lane : lane + 1], 16, gate)
        assert torch.equal(alone.tokens[0], together.tokens[lane])
        assert torch.equal(alone.compute[..., 0], together.compute[..., lane])
        assert torch.equal(alone.tas[..., 0], together.tas[..., lane])


def test_deterministic_and_seeded(model):
    twin, prompt = Twin(model, 2), _prompt(SMALL, 2, 3)
    settings = SamplingSettings(topk=8, temperature=2.0, seed=5)
    gate = GateSettings(threshold=0.0)
    first = twin.generate(prompt, 16, gate, settings)
    _same(first, twin.generate(prompt, 16, gate, settings))
    _same(first, Twin(model, 2).generate(prompt, 16, gate, settings))
    other = twin.generate(prompt, 16, gate, dataclasses.replace(settings, seed=6))
    assert not torch.equal(first.tokens, other.tokens)
    # Lanes with one prompt differ, since each has its own random state.
    same = twin.generate(prompt[:1].expand(2, -1), 16, gate, settings)
    assert not torch.equal(same.tokens[0], same.tokens[1])


def test_topk_of_one_is_greedy(model):
    twin, prompt = Twin(model, 2), _prompt(SMALL, 2, 3)
    greedy = twin.generate(prompt, 16)
    assert torch.equal(greedy.tokens, twin.generate(prompt, 16, sampling=SamplingSettings(topk=1, seed=3)).tokens)


def test_head_all(model):
    """Teacher forcing gives the logits that a free run gave."""
    twin, prompt = Twin(model, 2), _prompt(SMALL, 2, 3)
    free = twin.generate(prompt, 16)
    taught = twin.generate(free.tokens, 16, head_all=True)
    assert torch.equal(taught.logits[2:], free.logits)
    assert torch.equal(taught.tokens, free.tokens)
    assert taught.logit_positions.tolist() == list(range(15))


def test_head_all_changes_no_token(model):
    """Prompt positions do not sample: the random states are the same with and without their logits."""
    twin, prompt, settings = Twin(model, 2), _prompt(SMALL, 2, 5), SamplingSettings(topk=6, seed=4)
    plain = twin.generate(prompt, 16, sampling=settings)
    more = twin.generate(prompt, 16, sampling=settings, head_all=True)
    assert torch.equal(plain.tokens, more.tokens)
    assert torch.equal(plain.logits, more.logits[4:])


def test_prompt_only(model):
    r = Twin(model, 1).generate(_prompt(SMALL, 1, 4), 4)
    assert r.logits.shape == (0, 1, SMALL.vocab)
    assert r.logit_positions.tolist() == []
    one = Twin(model, 1).generate(_prompt(SMALL, 1, 1), 1)
    assert one.compute.shape == (0, SMALL.layers, 1)
    assert one.replay_ratio == one.total_replay_ratio == 0.0


def test_trace_sink_and_iteration_agree(model):
    seen: list[TraceEntry] = []
    twin, prompt = Twin(model, 2), _prompt(SMALL, 2, 3)
    kept = twin.generate(prompt, 8, ALWAYS, trace=True).trace
    assert twin.generate(prompt, 8, ALWAYS, trace=seen.append).trace is None
    assert len(seen) == len(kept)
    assert kept.nbytes == sum(e.values.nbytes for e in seen)
    for a, b in zip(kept, seen, strict=True):
        assert a[:4] == b[:4]
        assert np.array_equal(a.values, b.values)
        assert np.array_equal(kept.get(*a[:3], a.tag), a.values)
    with pytest.raises(KeyError, match="LOGITS did not run at position 0, layer 2, lane 0"):
        kept.get(0, SMALL.layers, 0, OpTag.LOGITS)
    with pytest.raises(KeyError):
        kept.get(0, 0, 2, OpTag.EMBED)


def test_raw_queries_only_where_needed(model):
    gate = GateSettings(definition="reference-code", threshold=0.0)
    tags = {(e.position, e.tag) for e in Twin(model, 1).generate(_prompt(SMALL, 1, 6), 9, gate, trace=True).trace}
    assert {p for p, tag in tags if tag is OpTag.QUERY_RAW} == {6, 7}
    assert {p for p, tag in tags if tag is OpTag.TAS} == {6, 7}


def test_progress(model):
    done = []
    Twin(model, 1).generate(_prompt(SMALL, 1, 2), 6, progress=done.append)
    assert done == [0, 1, 2, 3, 4]


def test_errors(model):
    prompt = _prompt(SMALL, 2, 3)
    twin = Twin(model, 2)
    for lanes in (0, 33, True):
        with pytest.raises(ModelError, match=r"lanes must be an integer in 1\.\.32"):
            Twin(model, lanes)
    with pytest.raises(ModelError, match=r"total must be an integer in 1\.\.16, not 17"):
        twin.generate(prompt, 17)
    with pytest.raises(ModelError, match="prompt must have the shape"):
        twin.generate(prompt[:1], 8)
    with pytest.raises(ModelError, match="prompt must have the shape"):
        twin.generate(prompt, 2)
    with pytest.raises(ModelError, match=r"prompt tokens must be in 0\.\.31, not 32\.\.32"):
        twin.generate(torch.full((2, 3), 32), 8)
    with pytest.raises(SamplingError, match="topk must be at most vocab=32, not 33"):
        twin.generate(prompt, 8, sampling=SamplingSettings(topk=33))
    with pytest.raises(GateError, match="must be missing with the gate kind 'never'"):
        twin.generate(prompt, 8, forced=torch.ones((7, 2, 2), dtype=torch.bool))
    with pytest.raises(GateError, match="must be given with the gate kind 'forced'"):
        twin.generate(prompt, 8, GateSettings(kind="forced"))
    with pytest.raises(GateError, match="forced decisions must have the shape"):
        twin.generate(prompt, 8, GateSettings(kind="forced"), forced=torch.ones((6, 2, 2), dtype=torch.bool))
    with pytest.raises(GateError, match="number of thresholds must be layers=2, not 3"):
        twin.generate(prompt, 8, GateSettings(threshold=(0.0, 1.0, 2.0)))
    with pytest.raises(GateError, match="number of head_weights must be heads=4, not 1"):
        twin.generate(prompt, 8, GateSettings(head_weights=(1,)))


def test_memory_and_speed():
    """The shipped model's shapes: a traced run of 384 positions needs about 100 MB at most."""
    config = MODELS["traffic"]
    twin = Twin(quantize(config, random_model(config, 0)), 4)
    started = time.monotonic()
    # A quarter of the positions; what grows with them (scores, weights, probabilities: 7 bytes) is added exactly.
    r = twin.generate(_prompt(config, 4, 64), 97, GateSettings(threshold=0.0), trace=True)
    assert time.monotonic() - started < 60  # about 0.5 s on an idle core
    fixed = sum(e.values.nbytes for e in r.trace if e.tag not in (OpTag.SCORE, OpTag.WEIGHT, OpTag.PROB))
    growing = config.layers * 4 * config.heads * 7 * 384 * 385 // 2
    assert fixed * 4 + growing < 105e6
