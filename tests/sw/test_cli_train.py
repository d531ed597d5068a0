"""``fastcar train`` and ``fastcar quantize``, in this process."""

import dataclasses
import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from fastcar_sw.cli.app import run_command as run
from fastcar_sw.cli.common import Reporter
from fastcar_sw.model import load_model, shipped_model
from fastcar_sw.quantized import QuantizedModel
from fastcar_sw.train import TrainError, TrainOptions
from fastcar_sw.video.io import write_gif

cli_train = import_module("fastcar_sw.cli.train")

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
    command = ["quantize", str(model), "--out", str(integers), "--video", str(clip), "--clips", "2",
               "--calibration", "3"]  # fmt: skip
    assert run([*command, "--json", str(result)]) == 0
    judged = json.loads(result.read_text())["quality"]
    assert abs(judged["twin_cross_entropy"] - judged["float_cross_entropy"]) < 0.1
    assert f"{QuantizedModel.load(integers).hash:016x}" == json.loads(result.read_text())["hash"]
    # Without clips the ranges come from random tokens, and nothing is claimed.
    assert run(["quantize", str(model), "--out", str(integers), "--json", str(result)]) == 0
    assert json.loads(result.read_text())["quality"] == {}
    capsys.readouterr()


def test_a_folder_takes_a_model_named_by_its_data(clip, tmp_path, capsys):
    options = ["--size", "32", "32", "--vocab", "16", "--stride", "2", "--log-every", "1", *SMALL]
    first = ["train", "--video", str(clip), "--video", str(clip), "--out", str(tmp_path), *options]
    assert run([*first, "--first-frame-weight", "0", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["file"] == str(tmp_path / "clip.safetensors")
    assert [step for step, _ in record["history"]] == [1, 2, 3]
    assert {"accuracy", "copy_accuracy", "cross_entropy", "codebook_psnr"} <= record["metrics"].keys()
    assert load_model(tmp_path / "clip.safetensors").config.name == "clip"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.gif", "clip.safetensors"]


def test_progress_tells_loss_accuracy_and_time_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Reporter, "PERIOD", 0.0)
    assert run(["train", "--out", str(tmp_path), "--log-every", "2", *SMALL]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(re.search(r"train traffic: 2 of 3 train, loss \d\.\d{4}, accuracy 0\.\d{3}, \d+ s left", line)
               for line in lines)  # fmt: skip


def test_defaults_are_the_recipe_of_the_shipped_model(tmp_path, monkeypatch, capsys):
    seen = []

    def refuse(options, progress):
        seen.append(options)
        raise TrainError("seen")

    monkeypatch.setattr(cli_train, "run_training", refuse)
    assert run(["train", "--out", str(tmp_path)]) == 2
    assert dataclasses.replace(seen[0], output=Path()) == TrainOptions(output=Path())
    notes = load_model(shipped_model("traffic")).training
    assert {key: notes[key] for key in ("seed", "steps", "batch")} == {
        "seed": seen[0].seed, "steps": seen[0].steps, "batch": seen[0].batch
    }  # fmt: skip
    assert seen[0].config == load_model(shipped_model("traffic")).config
    capsys.readouterr()


@pytest.mark.parametrize("command", ["train", "quantize"])
def test_ctrl_c_leaves_nothing(command, tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    out = str(tmp_path / "m.safetensors")
    arguments = {"train": ["train", *SMALL], "quantize": ["quantize", "traffic"]}[command]
    monkeypatch.setattr("fastcar_sw.train._optimize" if command == "train" else "fastcar_sw.cli.quantize._judge",
                        interrupt)  # fmt: skip
    assert run([*arguments, "--out", out, "--json", str(tmp_path / "r.json")]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.splitlines()[-1] == "fastcar: error: interrupted"


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
        (["train", "--out", "m.safetensors", "--seed", "-1"], "seed"),
        (["train", "--out", "m.safetensors", "--size", "32", "32"], "traffic"),
        (["train", "--out", "m.safetensors", "--first-frame-weight", "-1"], "first_frame_weight"),
        (["train", "--out", "m.safetensors", "--json", "nowhere/r.json"], "cannot be written"),
        (["quantize", "traffic", "--out", "m.safetensors", "--calibration", "0"], "calibration"),
        (["quantize", "traffic", "--out", "m.safetensors", "--video", "none.gif"], "none.gif"),
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
