"""Proofs about the dispatcher: what is dropped is exactly what the decisions made superfluous."""

import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs import Definition, Dispatcher, GateKind
from fastcar_hw.isa import Cond


class DispatcherProof(wiring.Component):
    """Two dispatchers that judge different conditions of the same lane and state."""

    def __init__(self, config, broken=None):
        self._config, self._broken = config, broken
        super().__init__(
            {
                "cond": In(Cond),
                "other": In(Cond),
                "lane": In(5),
                "compute": In(config.lanes),
                "eligible": In(1),
                "kind": In(GateKind),
                "definition": In(Definition),
            }
        )

    def elaborate(self, platform):
        del platform
        m = Module()
        c = self._config
        runs = []
        for name, cond in (("one", self.cond), ("two", self.other)):
            dut = Dispatcher(c)
            m.submodules[name] = dut
            m.d.comb += [
                dut.cond.eq(cond),
                dut.lane.eq(self.lane),
                dut.compute.eq(self.compute),
                dut.any_compute.eq(self.compute.any()),
                dut.eligible.eq(self.eligible),
                dut.kind.eq(self.kind),
                dut.definition.eq(self.definition),
            ]
            runs.append(dut.run)
        one, two = runs
        if self._broken is not None:
            one = one ^ ((self.cond == self._broken) & (self.lane == c.lanes - 1) & self.eligible)
        # Smtbmc wants a clock: the state is a register that nothing reads.
        unused = Signal()
        m.d.sync += unused.eq(~unused)
        m.d.comb += [Assume(~ResetSignal()), Assume(self.lane < c.lanes)]

        def when(first, second):
            return m.If((self.cond == first) & (self.other == second))

        with m.If(self.cond == Cond.ALWAYS):
            m.d.comb += Assert(one)
        # A lane computes or replays: never both, never neither.
        with when(Cond.COMPUTE, Cond.REPLAY):
            m.d.comb += Assert(one != two)
        # An instruction of a computing lane runs only where the shared ones do.
        with when(Cond.COMPUTE, Cond.ANY), m.If(one):
            m.d.comb += Assert(two)
        with m.If((self.cond == Cond.ANY) & (self.compute == 0)):
            m.d.comb += Assert(~one)
        with m.If((self.cond == Cond.COMPUTE) & (self.compute == 0)):
            m.d.comb += Assert(~one)
        # The score is gathered by one definition or the other, and never for a token that must compute.
        with when(Cond.PAPER, Cond.RAW):
            scores = self.eligible & (self.kind == GateKind.TAS)
            m.d.comb += Assert(one + two == scores)
        with when(Cond.TAS, Cond.FORCED):
            m.d.comb += Assert(~(one & two))
        with m.If(~self.eligible & (self.cond.as_value() >= Cond.TAS.value)):
            m.d.comb += Assert(~one)
        return m


@pytest.mark.parametrize("lanes", [1, 5, 32])
def test_dispatcher(prove, lanes):
    config = AcceleratorConfig(name="formal", lanes=lanes)
    passed, log = prove(DispatcherProof(config), depth=2)
    assert passed, log


@pytest.mark.parametrize("cond", [Cond.ALWAYS, Cond.COMPUTE, Cond.ANY, Cond.PAPER, Cond.TAS])
def test_broken_dispatcher_fails(prove, cond):
    config = AcceleratorConfig(name="formal", lanes=3)
    passed, log = prove(DispatcherProof(config, broken=cond), depth=2, mode="bmc")
    assert not passed, log
    assert "Assert failed" in log
