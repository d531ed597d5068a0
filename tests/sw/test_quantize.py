"""The quantizer and the format of quantized models."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fastcar_hw.config import ModelConfig
from fastcar_hw.presets import MODELS
from fastcar_sw.model import ModelError
from fastcar_sw.quantize import calibrate, quantize, random_model, random_tokens
from fastcar_sw.quantize_ranges import expected_shapes
from fastcar_sw.quantized import LINEARS, QuantizedModel
from fastcar_sw.twin import Twin

TEST, GQA = MODELS["test"], MODELS["test-gqa"]
TINY = ModelConfig(name="tiny", vocab=5, hidden=6, layers=1, heads=3, kv_heads=1, head_dim=2, ffn=2,
                   tokens_per_frame=1, frames=2)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return quantize(GQA, random_model(GQA, 0), source="random 0")


@pytest.mark.parametrize("config", [TEST, GQA, TINY, MODELS["traffic"]], ids=lambda c: c.name)
@pytest.mark.parametrize("uniform", [True, False])
def test_rules(config, uniform):
    """Scales, shifts and types are legal (the model checks itself), and uniform means one set of shifts."""
    found = quantize(config, random_model(config, 4), uniform=uniform)
    assert found.uniform or not uniform
    for layer in found.layers:
        for name in LINEARS:
            assert 9 <= getattr(layer, name).shift <= 47
            assert int(getattr(layer, name).scale.min()) >= 1
    assert found.e0 == pytest.approx(config.norm_eps * config.hidden * 4.0**found.residual_fraction, rel=1e-6)


def test_weights_are_close():
    """Every weight is within half a step of its channel's grid; rotary rows are interleaved."""
    state = random_model(GQA, 2)
    layer = quantize(GQA, state, uniform=False).layers[1]
    for name, key in (("key", "k_proj"), ("query", "q_proj"), ("value", "v_proj")):
        exact = state[f"model.layers.1.self_attn.{key}.weight"].double().numpy()
        part = getattr(layer, name)
        if name != "value":
            heads, half = exact.shape[0] // GQA.head_dim, GQA.head_dim // 2
            order = [h * GQA.head_dim + j * half + i for h in range(heads) for i in range(half) for j in (0, 1)]
            exact = exact[order]
        if name == "query":
            exact = exact * math.log2(math.e) / math.sqrt(GQA.head_dim)
        f = layer.fractions
        step = np.ldexp(part.scale.astype(float), -(part.shift - f["norm"] + f[name]))[:, None]
        assert np.abs(part.weight * step - exact).max() <= 0.5001 * step.max()
        assert (np.abs(part.weight * step - exact) <= 0.5001 * step).all()
        assert (np.abs(part.weight).max(1) >= 126).all()


def test_save_and_load(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    other = QuantizedModel.load(path)
    assert other.hash == model.hash and other.config == model.config and other.source == "random 0"
    assert other.constants() == model.constants()
    for (name, a), (again, b) in zip(model.arrays(), other.arrays(), strict=True):
        assert name == again and a.dtype == b.dtype and np.array_equal(a, b)


def test_hash_is_of_the_content(model):
    assert quantize(GQA.replace(name="other"), random_model(GQA, 0)).hash == model.hash
    assert quantize(GQA, random_model(GQA, 1)).hash != model.hash
    assert dataclasses.replace(model, eps=model.eps + 1).hash != model.hash
    assert 0 <= model.hash < 2**64


def test_arrays_cannot_be_changed(model):
    with pytest.raises(ValueError):
        model.embedding[0, 0] = 1


def test_bad_files(model, tmp_path):
    """Every kind of damage is one clear line."""
    path = tmp_path / "m.safetensors"
    with pytest.raises(ModelError, match="cannot be read"):
        QuantizedModel.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match="cannot be read"):
        QuantizedModel.load(path)
    save_file({"x": np.zeros(1)}, path)
    with pytest.raises(ModelError, match="format 'fastcar-quantized', not None"):
        QuantizedModel.load(path)
    with pytest.raises(ModelError, match="cannot be written"):
        model.save(tmp_path / "nowhere" / "m.safetensors")

    model.save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        QuantizedModel.load(path)

    good = {"format": "fastcar-quantized", "version": "1", "hash": "0"}
    for change, message in (
        ({"version": "7"}, "of version 1, not 7"),
        ({}, "damaged: it lacks 'config'"),
        ({"config": "{"}, "damaged"),
        ({"config": "{}", "constants": "{}"}, "lacks the field"),
    ):
        save_file({"x": np.zeros(1)}, path, metadata=good | change)
        with pytest.raises(ModelError, match=message) as caught:
            QuantizedModel.load(path)
        assert "\n" not in str(caught.value)


def test_missing_tensor_in_file(model, tmp_path):
    path = tmp_path / "m.safetensors"
    model.save(path)
    arrays = load_file(path)
    del arrays["layers.1.up.scale"]
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file(arrays, path, metadata=metadata)
    with pytest.raises(ModelError, match=r"lacks 'layers\.1\.up\.scale'"):
        QuantizedModel.load(path)


def _broken(model, **changes):
    return dataclasses.replace(model, **changes)


def test_format_rules(model):
    """Values outside the law are refused, naming field, value and rule."""
    head = model.head
    weight = head.weight.copy()
    weight[0, 0] = -128
    for changes, message in (
        ({"head": dataclasses.replace(head, weight=weight)}, "head.weight must be at least -127, not -128"),
        (
            {"head": dataclasses.replace(head, scale=head.scale * np.uint16(0))},
            "head.scale must be at least 1, not 0",
        ),
        ({"head": dataclasses.replace(head, shift=48)}, r"head.shift must be an integer in 9\.\.47, not 48"),
        ({"head": dataclasses.replace(head, shift=8)}, r"head.shift must be an integer in 9\.\.47, not 8"),
        ({"embedding_shift": 1}, "embedding_shift must be"),
        ({"eps": 1 << 32}, "eps must be"),
        ({"layers": model.layers[:1]}, "number of layers must be 2, not 1"),
        ({"rope": model.rope[:3]}, "shape of rope must be"),
        ({"rope": model.rope.astype(np.int32)}, "type of rope must be int16, not 'int32'"),
        ({"positions": model.embedding}, "positions must be present exactly with frame_embedding"),
    ):
        with pytest.raises(ModelError, match=message):
            _broken(model, **changes)


def test_bad_weights():
    state = random_model(TEST, 0)
    key = "model.layers.1.mlp.up_proj.weight"
    for value in (math.nan, math.inf):
        bad = state | {key: state[key].clone()}
        bad[key][2, 3] = value
        with pytest.raises(ModelError, match="up_proj.weight' must be finite"):
            quantize(TEST, bad)
    with pytest.raises(ModelError, match=r"must have the shape \(24, 16\), not \(23, 16\)"):
        quantize(TEST, state | {key: state[key][:-1]})
    del state["lm_head.weight"]
    with pytest.raises(ModelError, match=r"lacks the tensor 'lm_head\.weight'"):
        quantize(TEST, state)


def test_bad_calibration():
    state = random_model(TEST, 0)
    with pytest.raises(ModelError, match=r"calibration tokens must be in 0\.\.31, not 0\.\.32"):
        quantize(TEST, state, torch.tensor([[0, 32]]))
    with pytest.raises(ModelError, match="calibration must be clips"):
        quantize(TEST, state, torch.zeros((1, 17), dtype=torch.int64))


@pytest.mark.parametrize("factor", [0.0, 1e-6, 1e-3, 1e3])
def test_odd_magnitudes(factor):
    """Dead, tiny and large tensors quantize, and the twin still follows the float model."""
    state = random_model(TEST, 5)
    for i in range(TEST.layers):
        state[f"model.layers.{i}.mlp.up_proj.weight"] *= factor
        state[f"model.layers.{i}.mlp.down_proj.weight"] /= max(factor, 1.0)
        state[f"model.layers.{i}.self_attn.v_proj.weight"] *= factor
        state[f"model.layers.{i}.self_attn.o_proj.weight"] /= max(factor, 1.0)
    tokens = random_tokens(TEST, 1, 2, 16)
    model = quantize(TEST, state, tokens)
    assert _error(model, state, tokens) < 0.08


def test_one_dead_channel():
    state = random_model(TEST, 5)
    state["model.layers.0.mlp.up_proj.weight"][3] = 0
    model = quantize(TEST, state)
    assert model.layers[0].up.scale[3] == 1 and not model.layers[0].up.weight[3].any()


def _error(model, state, tokens):
    """Return the twin's logit error relative to the float model's spread, both root mean square."""
    _, exact = calibrate(model.config, state, tokens)
    result = Twin(model, len(tokens)).generate(tokens, tokens.shape[1], head_all=True)
    got = result.logits.double().transpose(0, 1) * 2.0**-model.logit_fraction
    exact = exact[:, :-1].double()
    return float((got - exact).square().mean().sqrt() / exact.std())


@pytest.mark.parametrize("config", [TEST, GQA, MODELS["iris"].replace(layers=3, frames=4)], ids=lambda c: c.name)
def test_twin_follows_float(config):
    state = random_model(config, 6)
    tokens = random_tokens(config, 8, 2, 48)
    assert _error(quantize(config, state, tokens), state, tokens) < 0.06
    assert _error(quantize(config, state, tokens, uniform=False), state, tokens) < 0.06


def test_random_model_is_reproducible():
    a, b = random_model(GQA, 3), random_model(GQA, 3)
    assert a.keys() == b.keys() == expected_shapes(GQA).keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
