"""The twin against a second implementation of docs/numerics.md: plain Python integers, one element at a time.

The oracle shares nothing with the twin but the ROM tables; every traced integer of every operation must
agree.
"""

import dataclasses

import numpy as np
import pytest
import torch
from sw.scalar_oracle import Oracle

from fastcar_hw.config import ModelConfig
from fastcar_hw.presets import MODELS
from fastcar_sw.compiler.ops import OpTag
from fastcar_sw.gates import GateSettings
from fastcar_sw.quantize import quantize, random_model, random_tokens
from fastcar_sw.quantized import QuantizedLayer, QuantizedLinear, QuantizedModel, QuantizedNorm
from fastcar_sw.sampling import SamplingSettings
from fastcar_sw.twin import Twin


def compare(model, lanes, prompt_length, total, gate, sampling=None, forced=None, head_all=False):
    """Run both and compare everything; returns the twin's result."""
    sampling = sampling or SamplingSettings()
    prompt = random_tokens(model.config, 3, lanes, prompt_length)
    result = Twin(model, lanes).generate(prompt, total, gate, sampling, trace=True, forced=forced, head_all=head_all)
    count = 0
    for lane in range(lanes):
        oracle = Oracle(model, lane, prompt_length, gate, sampling, forced)
        tokens = prompt[lane].tolist()
        for p in range(total - 1):
            token = oracle.step(p, tokens[p], head_all or p >= prompt_length - 1)
            if p >= prompt_length - 1:
                tokens.append(token)
        assert result.tokens[lane].tolist() == tokens
        for (p, layer, tag), values in oracle.trace.items():
            got = result.trace.get(p, layer, lane, tag).tolist()
            assert got == values, f"{tag.name} at position {p}, layer {layer}, lane {lane}"
        for (p, i), computes in oracle.compute.items():
            assert bool(result.compute[p, i, lane]) == computes
        count += len(oracle.trace)
    # The twin recorded nothing that the oracle does not have.
    assert len(result.trace) == count
    return result


ODD = ModelConfig(name="odd", vocab=17, hidden=10, layers=3, heads=6, kv_heads=2, head_dim=4, ffn=14,
                  tokens_per_frame=3, frames=5, frame_embedding=True)  # fmt: skip
CONFIGS = {"test": MODELS["test"], "test-gqa": MODELS["test-gqa"], "odd": ODD}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("uniform", [True, False])
def test_dense(name, uniform):
    config = CONFIGS[name]
    model = quantize(config, random_model(config, 7), uniform=uniform)
    compare(model, 2, 2, config.max_seq, GateSettings(kind="never"))


@pytest.mark.parametrize("definition", ["paper", "reference-code"])
@pytest.mark.parametrize("name", ["test-gqa", "odd"])
def test_tas(name, definition):
    config = CONFIGS[name]
    model = quantize(config, random_model(config, 11))
    weights = tuple(range(1, config.heads + 1))
    gate = GateSettings(definition=definition, head_weights=weights, threshold=0.1)
    result = compare(model, 3, 4, config.max_seq, gate, SamplingSettings(topk=3, temperature=1.5, seed=9))
    assert 0.1 < result.replay_ratio < 0.9


@pytest.mark.parametrize("warmup", [0, 1])
def test_always_and_prompt_logits(warmup):
    model = quantize(ODD, random_model(ODD, 1))
    gate = GateSettings(kind="always", warmup_frames=warmup)
    compare(model, 1, 5, 15, gate, SamplingSettings(topk=1, seed=3), head_all=True)


def test_forced():
    model = quantize(ODD, random_model(ODD, 1))
    forced = torch.rand((14, 3, 4), generator=torch.Generator().manual_seed(2)) < 0.5
    compare(model, 4, 1, 15, GateSettings(kind="forced"), forced=forced)


def test_chunked_products():
    """Vectors longer than the exact float32 sum allows."""
    config = ODD.replace(hidden=1030, ffn=2050, layers=1, vocab=8, heads=2, kv_heads=1, frames=2)
    model = quantize(config, random_model(config, 1))
    full = np.full_like
    layer = model.layers[0]
    # The largest possible sums: every weight 127; the norm's gain makes the activations large as well.
    down = dataclasses.replace(layer.down, weight=full(layer.down.weight, 127))
    gate = dataclasses.replace(layer.gate, weight=full(layer.gate.weight, 127))
    layer = dataclasses.replace(layer, down=down, gate=gate)
    compare(dataclasses.replace(model, layers=(layer,)), 1, 1, 3, GateSettings(kind="never"))


def wild_model(config, seed):
    """Return random integers with shifts at the limits: results overflow, vanish and saturate."""
    rng = np.random.default_rng(seed)

    def linear(out, width):
        weight = rng.integers(-127, 128, (out, width), dtype=np.int8)
        scale = np.minimum(65535, np.exp2(rng.uniform(0, 16, out))).astype(np.uint16)
        return QuantizedLinear(weight=weight, scale=scale, shift=int(rng.choice([9, 16, 20, 25, 30, 47])))

    def gains():
        gain = rng.integers(-32768, 32768, config.hidden).astype(np.int16)
        return QuantizedNorm(gain=gain, shift=int(rng.choice([0, 8, 15, 30])))

    def layer():
        c = config
        return QuantizedLayer(
            attn_norm=gains(), query=linear(c.q_dim, c.hidden), key=linear(c.kv_dim, c.hidden),
            value=linear(c.kv_dim, c.hidden), output=linear(c.hidden, c.q_dim), mlp_norm=gains(),
            gate=linear(c.ffn, c.hidden), up=linear(c.ffn, c.hidden), down=linear(c.hidden, c.ffn),
            score_shift=int(rng.integers(9, 48)), context_shift=int(rng.integers(9, 48)),
            gate_shift=int(rng.integers(0, 30)), silu_shift=int(rng.integers(0, 40)),
            product_shift=int(rng.integers(0, 40)),
        )  # fmt: skip

    def table(rows):
        values = rng.integers(-32768, 32768, (rows, config.hidden)).astype(np.int16)
        values[0] = 0
        return values

    return QuantizedModel(
        config=config, embedding=table(config.vocab), embedding_shift=int(rng.choice([-16, -3, 0])),
        positions=table(config.tokens_per_frame) if config.frame_embedding else None,
        position_shift=-16 if config.frame_embedding else 0,
        rope=rng.integers(-32768, 32768, (config.max_seq, config.head_dim)).astype(np.int16),
        layers=tuple(layer() for _ in range(config.layers)), final_norm=gains(), head=linear(config.vocab,
        config.hidden), eps=int(rng.choice([0, 1, 2**32 - 1])), eps_shift=int(rng.integers(0, 9)),
        residual_fraction=16, logit_fraction=int(rng.integers(-16, 25)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_wild_integers(seed):
    """Any integers that the format admits give the same as the law says, however absurd."""
    config = ODD.replace(frame_embedding=seed % 2 == 1, layers=2, frames=3)
    gate = GateSettings(kind=("tas", "always")[seed // 2 % 2], threshold=float(seed % 3 - 1))
    compare(
        wild_model(config, seed),
        2,
        2,
        9,
        gate,
        SamplingSettings(topk=seed % 4, temperature=0.01 * 10 ** (seed % 5)),
    )


def test_comparison_bites():
    """One changed weight must be noticed."""
    model = quantize(ODD, random_model(ODD, 1))
    other = model.layers[2].down.weight.copy()
    other[3, 5] += -1 if other[3, 5] > 0 else 1
    layer = dataclasses.replace(model.layers[2], down=dataclasses.replace(model.layers[2].down, weight=other))
    changed = dataclasses.replace(model, layers=(*model.layers[:2], layer))
    assert changed.hash != model.hash
    prompt = random_tokens(ODD, 3, 1, 2)
    runs = [Twin(m, 1).generate(prompt, 4, trace=True).trace for m in (model, changed)]
    different = {b.tag for a, b in zip(*runs, strict=True) if not np.array_equal(a.values, b.values)}
    assert OpTag.DOWN in different and OpTag.UP not in {
        b.tag for a, b in zip(*runs, strict=True) if not np.array_equal(a.values, b.values) and b.position == 0
    }
