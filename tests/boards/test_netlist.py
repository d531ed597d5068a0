"""Behind synthesis: the netlist of the iCEBreaker's bitstream makes the twin's decode step, cell by cell."""

import pytest
import torch
from test_matrix_board import integers

from boards import icebreaker, ulx3s
from boards.simulation import SimulatedBoard
from boards.simulation.netlist import netlist_verilog
from fastcar_hw.export import ToolError
from fastcar_sw.engines.device import DeviceLink, MatrixBoard
from fastcar_sw.engines.verilator.toolchain import cache_folder
from fastcar_sw.twin import Twin

SPEC = icebreaker.SPEC


def test_the_netlist_makes_a_decode_step_of_the_twin():
    text = netlist_verilog(SPEC, cache_folder() / "boards")
    # What is simulated is made of cells: multipliers, memories, logic.
    for cell, least in (("SB_MAC16", 8), ("SB_SPRAM256KA", 4), ("SB_RAM40_4K", 4), ("SB_LUT4", 2000)):
        assert text.count(f"\n  {cell} ") >= least
    quantized, prompt = integers(), torch.tensor([[3]])
    with SimulatedBoard(SPEC, text) as board:
        with DeviceLink(board.port, SPEC.config, SPEC.baud, timeout=30, identity=SPEC.identity) as line:
            matrices = MatrixBoard(line)
            matrices.load(quantized)
            found = Twin(quantized, 1, linear=matrices.linear).generate(prompt, 2)
    want = Twin(quantized, 1).generate(prompt, 2)
    assert torch.equal(found.logits, want.logits) and torch.equal(found.tokens, want.tokens)
    assert matrices.products == 7 * quantized.config.layers + 1


def test_a_family_without_models_is_refused():
    with pytest.raises(ToolError, match="no complete models of the cells of ecp5"):
        netlist_verilog(ulx3s.SPEC, cache_folder())
