"""The matrix board: products on a simulated iCEBreaker, everything else in the twin; the video is the twin's."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from vector_reference import rsat

from boards import catalogue, icebreaker
from boards.matrix import MatrixCore
from boards.simulation import SimulatedBoard
from fastcar_hw.presets import MODELS
from fastcar_sw.cli.app import run_command
from fastcar_sw.engines.device import DeviceLink, MatrixBoard
from fastcar_sw.engines.link import EngineError, RequestError
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.quantize_ranges import random_tokens
from fastcar_sw.twin import Twin

#: A bit is four cycles: the line would take longer than the products.
SPEC = dataclasses.replace(icebreaker.SPEC, baud=3_000_000)


def simulated():
    return SimulatedBoard(SPEC, MatrixCore(SPEC))


def link(board, spec=SPEC, timeout=5.0):
    return DeviceLink(board.port, spec.config, spec.baud, timeout=timeout, identity=spec.identity)


def integers(seed=0, model=MODELS["test"]):
    return quantize(model, random_model(model, seed=seed), random_tokens(model, seed=seed))


def test_products_on_the_board_make_the_video_of_the_twin():
    quantized, gate = integers(), GateSettings(kind="tas", threshold=0.0)
    prompt = torch.from_numpy(np.random.default_rng(1).integers(0, 32, (1, 5)))
    pure = Twin(quantized, 1).generate(prompt, 12, gate, trace=True)
    with simulated() as board, link(board) as line:
        matrices = MatrixBoard(line)
        matrices.load(quantized)
        mixed = Twin(quantized, 1, linear=matrices.linear).generate(prompt, 12, gate, trace=True)
    for name in ("tokens", "logits", "compute", "tas"):
        assert torch.equal(getattr(mixed, name), getattr(pure, name))
    # The gate replayed something, which takes three products less.
    layers, skipped = quantized.config.layers, int((~pure.compute).sum())
    assert skipped
    assert matrices.products == 11 * layers * 7 - 3 * skipped + len(pure.logits)


def test_a_product_of_every_matrix_is_the_twin_s():
    quantized, rng = integers(3), np.random.default_rng(3)
    with simulated() as board, link(board) as line:
        matrices = MatrixBoard(line)
        matrices.load(quantized)
        for _, matrix in quantized.matrices():
            out, width = matrix.weight.shape
            # Small exponents saturate, large ones round to almost nothing.
            for exponent in (0, 9, 25):
                values = rng.integers(-127, 128, width)
                acc = matrix.weight.astype(object) @ values
                want = [
                    rsat(int(a) * int(s), matrix.shift - exponent) for a, s in zip(acc, matrix.scale, strict=True)
                ]
                found = matrices.multiply(matrix, values, exponent)
                assert found.shape == (out,) and found.tolist() == want


def test_a_model_too_large_and_a_wrong_board_are_refused():
    quantized = integers()
    with simulated() as board:
        with link(board) as line:
            matrices = MatrixBoard(line)
            with pytest.raises(EngineError, match="loaded before"):
                matrices.linear([quantized.head])
            line.memory_bytes = 4096
            with pytest.raises(RequestError, match=r"take \d+ bytes, but the board has 4096"):
                matrices.load(quantized)
        # An accelerator of the same configuration is something else.
        with pytest.raises(EngineError, match="must carry 'icebreaker' with the identity"):
            DeviceLink(board.port, SPEC.config, SPEC.baud, timeout=5.0)


def test_registers_refuse_what_cannot_be_multiplied():
    with simulated() as board, link(board) as line:
        MatrixBoard(line)
        # Start without a shape; no whole tile of inputs; more than the unit holds; no tiles; unknown; read-only.
        for offset, value in ((0x14, 0), (0x04, 1 << 16 | 3), (0x04, 1 << 16 | 4096), (0x04, 4), (0x18, 0), (0, 1)):
            with pytest.raises(EngineError, match="answered with"):
                line.write(offset, value)
        with pytest.raises(EngineError, match="answered with"):
            line.read(0x08)
        assert line.read(0x14) == 0


def test_the_command_runs_the_board(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(catalogue, "boards", lambda: {SPEC.name: SPEC})
    quantized = integers(2)
    compile_image(quantized, SPEC.config)[0].save(tmp_path / "model.fcar")
    (tmp_path / "prompt.json").write_text("[[3, 1, 4, 1]]")
    with simulated() as board:
        ending = run_command(["run", "--board", SPEC.name, "--image", str(tmp_path / "model.fcar"), "--prompt",
                              str(tmp_path / "prompt.json"), "--frames", "3", "--port", board.port, "--out",
                              str(tmp_path / "out"), "--json", str(tmp_path / "result.json")])  # fmt: skip
    assert ending == 0, capfd.readouterr().err
    twin = Twin(quantized, 1).generate(torch.tensor([[3, 1, 4, 1]]), 12)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["board"] == result["engine"] == SPEC.name and result["tokens"] == twin.tokens.tolist()
