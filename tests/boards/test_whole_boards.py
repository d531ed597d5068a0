"""Whole boards: the driver, a serial line, the design of the device, its memory; the video is the twin's."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from boards import catalogue, ecpix5, ulx3s
from boards.simulation import SimulatedBoard
from fastcar_hw.presets import MODELS, accelerator_preset
from fastcar_sw.cli.app import run_command
from fastcar_sw.driver import Driver
from fastcar_sw.engines.device import DeviceLink
from fastcar_sw.engines.link import EngineError
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.quantize_ranges import random_tokens
from fastcar_sw.twin import Twin

#: A bit is four cycles: the line would take longer than the video.
BAUD = 12_500_000


def ulx3s_board():
    spec = dataclasses.replace(ulx3s.SPEC, config=accelerator_preset("test-2x2"), baud=BAUD)
    return spec, SimulatedBoard(spec, ulx3s.Ulx3sCore(spec), ulx3s.PART, ulx3s.Ulx3sCore.READ_DELAY)


def ecpix5_board():
    spec = dataclasses.replace(ecpix5.SPEC, baud=BAUD)
    return spec, SimulatedBoard(spec, ecpix5.Ecpix5Core(spec))


def integers(seed=0):
    model = MODELS["test"]
    return quantize(model, random_model(model, seed=seed), random_tokens(model, seed=seed))


@pytest.mark.parametrize("make", [ulx3s_board, ecpix5_board])
@pytest.mark.parametrize("gate", [GateSettings(kind="never"), GateSettings(kind="tas", threshold=0.0)])
def test_a_board_makes_the_video_of_the_twin(make, gate):
    spec, board = make()
    quantized = integers()
    image, _ = compile_image(quantized, spec.config)
    lanes = spec.config.lanes
    prompt = np.random.default_rng(1).integers(0, 32, (lanes, 5))
    twin = Twin(quantized, lanes).generate(torch.from_numpy(prompt), 12, gate)
    with board, DeviceLink(board.port, spec.config, spec.baud, timeout=5) as link:
        assert link.identity.clock_hz == spec.clock_hz and link.memory_bytes == spec.memory_bytes
        driver = Driver(link)
        driver.load(image)
        for _ in range(2):
            run = driver.generate(prompt, 12, gate, max_cycles=10_000_000)
            assert np.array_equal(run.tokens, twin.tokens.numpy())
            assert np.array_equal(run.replayed, (~twin.compute).sum(0).numpy())
        if make is ulx3s_board:
            assert board.statistics()["refreshes"] > 100
    assert board.failure is None


def test_a_pulled_cable_is_an_error_and_the_next_session_works():
    spec, board = ecpix5_board()
    quantized = integers(1)
    image, _ = compile_image(quantized, spec.config)
    with board:
        with DeviceLink(board.port, spec.config, spec.baud, timeout=0.2) as link:
            driver = Driver(link)
            board.unplug()
            with pytest.raises(EngineError, match="answer"):
                driver.load(image)
        board.unplug(False)
        with DeviceLink(board.port, spec.config, spec.baud, timeout=5) as link:
            driver = Driver(link)
            driver.load(image)
            run = driver.generate(np.array([[3, 4]]), 6, max_cycles=10_000_000)
    twin = Twin(quantized, 1).generate(torch.tensor([[3, 4]]), 6)
    assert np.array_equal(run.tokens, twin.tokens.numpy())


def test_the_command_runs_a_board(tmp_path, monkeypatch, capfd):
    spec, board = ecpix5_board()
    monkeypatch.setattr(catalogue, "boards", lambda: {spec.name: spec})
    quantized = integers(2)
    compile_image(quantized, spec.config)[0].save(tmp_path / "model.fcar")
    (tmp_path / "prompt.json").write_text("[[3, 1, 4, 1]]")
    command = ["run", "--board", spec.name, "--image", tmp_path / "model.fcar", "--prompt", tmp_path / "prompt.json",
               "--frames", "3", "--gate", "tas", "--threshold", "0"]  # fmt: skip
    with board:
        ending = run_command([*map(str, command), "--port", board.port, "--out", str(tmp_path / "out"),
                              "--json", str(tmp_path / "result.json")])  # fmt: skip
    assert ending == 0, capfd.readouterr().err
    gate = GateSettings(kind="tas", threshold=0.0)
    twin = Twin(quantized, 1).generate(torch.tensor([[3, 1, 4, 1]]), 12, gate)
    assert np.array_equal(np.load(tmp_path / "out" / "tokens.npy"), twin.tokens.numpy())
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["board"] == spec.name and result["tokens"] == twin.tokens.tolist()
    assert result["counters"]["cycles"] > 10_000
    # Nobody is at the port any more: nothing is written.
    assert run_command([*map(str, command), "--port", board.port, "--out", str(tmp_path / "none")]) in (1, 2)
    assert not (tmp_path / "none").exists()
