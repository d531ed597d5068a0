"""``fastcar train`` and ``fastcar quantize``, in this process."""

import json

import numpy as np
import pytest

from fastcar_sw.cli.app import run
from fastcar_sw.model import load_model
from fastcar_sw.quantized import QuantizedModel
from fastcar_sw.video.io import write_gif

SMALL = ["--steps", "3", "--batch", "2", "--frames", "3", "--hidden", "32", "--heads", "2", "--kv-heads", "1",
         "--layers", "1", "--ffn", "32", "--threads", "1"]  # fmt: skip


@pytest.fixture
def clip(tmp_path):
    """Return a GIF of a square that moves."""
    video = np.zeros((40, 32, 32, 3), dtype=np.uint8)
    for i, frame in enumerate(video):
        frame[8:16, (2 * i) % 24 : (2 * i) % 24 + 8] = (250, 120, 10)
    write_gif(tmp_path / "clip.gif", video, scale=1)
    return tmp_path / "clip.gif"


def test_training_on_a_video_and_quantizing_the_model(clip, tmp_path, capsys):
    model, integers, result = tmp_path / "own.safetensors", tmp_path / "own8.safetensors", tmp_path / "r.json"
    options = ["--video", str(clip), "--size", "32", "32", "--vocab", "16", *SMALL]
    assert run(["train", "--out", str(model), "--json", str(result), *options]) == 0
    loaded = load_model(model)
    assert loaded.config.name == "own" and loaded.config.vocab == 16 and loaded.config.kv_heads == 1
    record = json.loads(result.read_text())
    # Few patches, each in the codebook: lossless, so the PSNR is infinite.
    assert record["metrics"]["codebook_psnr"] is None and record["model"]["frames"] == 3
    command = ["quantize", str(model), "--out", str(integers), "--video", str(clip), "--clips", "2"]
    assert run([*command, "--json", str(result)]) == 0
    judged = json.loads(result.read_text())["quality"]
    assert abs(judged["twin_cross_entropy"] - judged["float_cross_entropy"]) < 0.1
    assert f"{QuantizedModel.load(integers).hash:016x}" == json.loads(result.read_text())["hash"]
    # Without clips the ranges come from random tokens, and nothing is claimed.
    assert run(["quantize", str(model), "--out", str(integers), "--json", str(result)]) == 0
    assert json.loads(result.read_text())["quality"] == {}
    capsys.readouterr()


def test_equal_seeds_give_equal_models(tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path in (first, second):
        assert run(["train", "--out", str(path), "--name", "same", "--seed", "5", *SMALL]) == 0
    a, b = load_model(first), load_model(second)
    assert all(np.array_equal(a.state[name], b.state[name]) for name in a.state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--out", "model.bin"], "--out must be a file with the suffix"),
        (["train", "--out", "nowhere/model.safetensors"], "does not exist"),
        (["train", "--out", "m.safetensors", "--steps", "0"], "steps must be"),
        (["train", "--out", "m.safetensors", "--steps", "many"], "integer"),
        (["train", "--out", "m.safetensors", "--video", "none.gif"], "none.gif"),
        (["train", "--out", "m.safetensors", "--heads", "3"], "heads"),
        (["quantize", "none.safetensors", "--out", "m.safetensors"], "does not exist"),
        (["quantize", "traffic", "--out", "m.txt"], "--out must be a file with the suffix"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1] and error[-1].startswith("fastcar: error: ")
    assert list(tmp_path.iterdir()) == []
