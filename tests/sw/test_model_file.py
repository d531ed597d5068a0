"""Model files: round trips, the shipped model, and files that are none."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastcar_hw.config import ModelConfig
from fastcar_hw.presets import MODELS
from fastcar_sw.model import ModelError, VideoModel, load_model, save_model, shipped_model, tensor_shapes
from fastcar_sw.quality import copy_accuracy, motion, teacher_forced
from fastcar_sw.quantize import random_model
from fastcar_sw.quantize_ranges import expected_shapes
from fastcar_sw.replay_reference import generate
from fastcar_sw.video.clips import TrafficClips, traffic_tokenizer
from fastcar_sw.video.tokenizer import PatchTokenizer

CONFIG = MODELS["test"]
TOKENIZER = PatchTokenizer(np.random.default_rng(0).integers(0, 256, (32, 2, 2, 3), dtype=np.uint8), (2, 2))


@pytest.fixture
def model():
    return VideoModel(config=CONFIG, state=random_model(CONFIG, 0), tokenizer=TOKENIZER, training={"seed": 3})


@pytest.fixture
def saved(tmp_path, model):
    save_model(tmp_path / "m.safetensors", model)
    return tmp_path / "m.safetensors"


def rewrite(path, change, metadata=None):
    """Store a file again with changed tensors or metadata."""
    tensors = load_file(path)
    known = {"fastcar.config": json.dumps(CONFIG.to_dict()), "fastcar.grid": "[2, 2]"}
    change(tensors)
    save_file(tensors, path, metadata=known if metadata is None else metadata)


@pytest.mark.parametrize("config", MODELS.values(), ids=lambda c: c.name)
def test_shapes_are_those_of_the_quantizer(config):
    assert tensor_shapes(config) == expected_shapes(config)


def test_round_trip(tmp_path, saved, model):
    for path in (saved, str(saved), tmp_path):
        back = load_model(path)
        assert back.config == CONFIG and back.training == {"seed": 3}
        assert back.state.keys() == model.state.keys()
        assert all(torch.equal(back.state[name], value) for name, value in model.state.items())
        assert np.array_equal(back.tokenizer.codebook, TOKENIZER.codebook) and back.tokenizer.grid == (2, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    first = saved.read_bytes()
    save_model(saved, back)
    assert saved.read_bytes() == first


def test_decoder_has_the_weights(model):
    decoder = model.decoder()
    assert torch.equal(
        decoder.model.layers[1].mlp.up_proj.weight, model.state["model.layers.1.mlp.up_proj.weight"]
    )


def test_tied_head_is_stored_once(tmp_path, model):
    state = model.state | {"lm_head.weight": model.state["model.embed_tokens.weight"]}
    save_model(tmp_path / "tied.safetensors", VideoModel(config=CONFIG, state=state))
    assert "lm_head.weight" not in load_file(tmp_path / "tied.safetensors")
    back = load_model(tmp_path / "tied.safetensors")
    assert torch.equal(back.state["lm_head.weight"], state["lm_head.weight"]) and back.tokenizer is None


def test_half_precision_becomes_float32(saved, model):
    def halve(tensors):
        tensors.update({name: t.bfloat16() for name, t in tensors.items() if t.is_floating_point()})
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    rewrite(saved, halve)
    back = load_model(saved)
    assert all(t.dtype == torch.float32 for t in back.state.values())
    assert torch.equal(back.state["model.norm.weight"], model.state["model.norm.weight"].bfloat16().float())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.pop("model.norm.weight"), "lacks the tensor 'model.norm.weight'"),
        (lambda t: t.update({"model.norm.weight": torch.ones(17)}), r"shape \(16,\), not \(17,\)"),
        (lambda t: t.update({"model.norm.weight": torch.ones(16, dtype=torch.int32)}), "float32"),
        (lambda t: t["model.norm.weight"].fill_(float("nan")), "finite"),
        (lambda t: t.update({"extra": torch.ones(1)}), "unknown tensor 'extra'"),
        (lambda t: t.update({"tokenizer.codebook": torch.zeros(8, 2, 2, 3, dtype=torch.uint8)}), "vocab=32"),
        (lambda t: t.update({"tokenizer.codebook": torch.zeros(32, 2, 3, 3, dtype=torch.uint8)}), "codebook"),
        (lambda t: t.update({"tokenizer.codebook": torch.zeros(32, 2, 2, 3)}), "uint8"),
    ],
)
def test_wrong_tensors(saved, change, rule):
    rewrite(saved, change)
    with pytest.raises(ModelError, match=rule) as error:
        load_model(saved)
    assert "\n" not in str(error.value) and str(saved) in str(error.value)


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({}, "another program"),
        ({"fastcar.config": "{"}, "damaged metadata"),
        ({"fastcar.config": "[" * 100_000}, "damaged metadata"),
        ({"fastcar.config": "9" * 5000}, "damaged metadata"),
        ({"fastcar.config": "[1]"}, "must be a table of fields"),
        ({"fastcar.config": "3"}, "must be a table of fields"),
        ({"fastcar.config": json.dumps(CONFIG.to_dict() | {"layers": 0})}, "layers"),
        (
            {"fastcar.config": json.dumps(CONFIG.to_dict() | {"layers": 3}), "fastcar.grid": "[2, 2]"},
            "lacks the tensor",
        ),
        ({"fastcar.config": json.dumps(CONFIG.to_dict())}, "fastcar.grid"),
        ({"fastcar.config": json.dumps(CONFIG.to_dict()), "fastcar.grid": "[4, 4]"}, "tokens_per_frame=4"),
        ({"fastcar.config": json.dumps(CONFIG.to_dict()), "fastcar.grid": "7"}, "damaged metadata"),
        (
            {"fastcar.config": json.dumps(CONFIG.to_dict()), "fastcar.grid": "[2, 2]", "fastcar.training": "7"},
            "must be notes by name, not 7",
        ),
        ({"fastcar.config": json.dumps(CONFIG.to_dict()), "fastcar.grid": '["a", "b"]'}, "grid|damaged"),
    ],
)
def test_wrong_metadata(saved, metadata, rule):
    rewrite(saved, lambda tensors: None, metadata)
    with pytest.raises(ModelError, match=rule) as error:
        load_model(saved)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path, saved):
    data = saved.read_bytes()
    contents = {
        "empty": b"", "short": data[:5], "header": data[:200], "cut": data[:-7], "longer": data + b"0",
        "noise": np.random.default_rng(0).bytes(4096), "pickle": pickle.dumps({"weights": [1.0] * 100}),
        "zip": b"PK\x03\x04" + bytes(100), "text": b"hello, this is no model at all\n" * 9,
    }  # fmt: skip
    for name, content in contents.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="no safetensors file") as error:
            load_model(path)
        assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="exactly one"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_model(tmp_path / "none.safetensors")


def test_a_failed_save_leaves_the_old_file(tmp_path, saved, model):
    before = saved.read_bytes()
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ModelError, match="cannot be written"):
        save_model(tmp_path / "folder.safetensors", model)
    with pytest.raises(ModelError, match="cannot be written"):
        save_model(saved / "below", model)
    assert saved.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


def test_models_are_checked_when_made(model):
    with pytest.raises(ModelError, match="tokens_per_frame=4"):
        VideoModel(config=CONFIG, state=model.state, tokenizer=PatchTokenizer(TOKENIZER.codebook, (1, 2)))
    other = ModelConfig(**CONFIG.to_dict() | {"frame_embedding": False})
    with pytest.raises(ModelError, match="unknown tensor 'model.frame_embed.weight'"):
        VideoModel(config=other, state=model.state)


def test_shipped_model():
    """The figures of the model card, on fewer clips."""
    with pytest.raises(ModelError, match="one of carracing, traffic, not"):
        shipped_model("cars")
    path = shipped_model()
    assert path.stat().st_size <= 5_000_000 and path.with_suffix(".md").is_file()
    model = load_model(path)
    assert model.config == MODELS["traffic"]
    assert np.array_equal(model.tokenizer.codebook, traffic_tokenizer().codebook)
    clips = TrafficClips(8, seed=0).held_out(8)
    decoder, n = model.decoder(), 64
    with torch.no_grad():
        logits = decoder(torch.from_numpy(clips[:, :-1]))
    found = teacher_forced(logits.numpy(), clips, n)
    assert found.accuracy > copy_accuracy(clips, n) + 0.25 and found.accuracy > 0.99
    assert found.cross_entropy < 0.05
    run = generate(decoder, torch.from_numpy(clips[:, : 2 * n]), 5 * n, topk=8, seed=1)
    assert abs(motion(run.tokens.numpy(), clips[:, : 5 * n], n).relative) < 0.2
