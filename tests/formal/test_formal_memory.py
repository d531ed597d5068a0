"""Proofs about the memory masters: an error has a cause, an error response always raises it, and its code is right."""

import pytest
from amaranth.hdl import Assert
from test_formal_axi import CONFIG, PrefetcherProof, StoreProof, before

from fastcar_hw.errors import ErrorCode
from fastcar_hw.memory.axi import Response
from fastcar_hw.memory.master import MasterFrame


class Causes:
    """What must hold of the error codes of a master, beside what its own proof says."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        dut = m.submodules["dut"]
        answer = getattr(dut.axi, self.CHANNEL)
        resp, error = answer.payload.resp, dut.error
        bad = answer.valid & answer.ready & ((resp == Response.SLVERR) | (resp == Response.DECERR))
        stopped = dut.halt | dut.clear | (error != ErrorCode.NONE)
        was_none, was_bad = before(m, error == ErrorCode.NONE), before(m, bad & ~stopped)
        m.d.comb += Assert((error == ErrorCode.NONE) | (error == self.WINDOW) | (error == self.BUS))
        # A bus error comes of an error response that was transferred, and of nothing else ...
        with m.If(was_none & (error == self.BUS)):
            m.d.comb += Assert(was_bad)
        # ... and every such response raises it, unless the master had stopped already.
        with m.If(was_bad):
            m.d.comb += Assert(error == self.BUS)
        return m


class ReadCauses(Causes, PrefetcherProof):
    CHANNEL, WINDOW, BUS = "r", ErrorCode.READ_WINDOW, ErrorCode.READ_BUS


class WriteCauses(Causes, StoreProof):
    CHANNEL, WINDOW, BUS = "b", ErrorCode.WRITE_WINDOW, ErrorCode.WRITE_BUS


BOTH = pytest.mark.parametrize("kind", [ReadCauses, WriteCauses], ids=["prefetcher", "store"])


@BOTH
def test_errors_have_causes(prove, kind):
    """For all time: with the invariants of the master's own proof the induction closes."""
    passed, log = prove(kind(CONFIG), depth=2)
    assert passed, log


#: Broken frames: text that is replaced, and by what.
MUTATIONS = {
    "response without valid": ("self.answered & ((self.resp", "((self.resp"),
    "slave error missed": ("(self.resp == Response.SLVERR) | ", ""),
    "decode error missed": (" | (self.resp == Response.DECERR)", ""),
    "wrong code": ("self.error.eq(self._bus_error)", "self.error.eq(self._window_error)"),
}


@BOTH
@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_frame_fails(prove, kind, name):
    """The proof bites: every broken frame has a counterexample, from reset."""
    passed, log = prove(kind(CONFIG, (MasterFrame, *MUTATIONS[name])), depth=16, mode="bmc")
    assert not passed, log
    assert "Assert failed" in log
