"""Which instructions of a layer run, given the replay decisions."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Cond
from .policy import Definition, GateKind

__all__ = ["Dispatcher"]


class Dispatcher(wiring.Component):
    """Judge an instruction's condition; what does not run is dropped by the sequencer, and counted there.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    cond : In, `isa.Cond`; lane : In, 5 bits
        The instruction at hand.
    compute : In, bit per lane; any_compute : In
        Index register of the scheduler.
    eligible : In
        The present token may replay.
    kind : In, `GateKind`; definition : In, `Definition`
        Registers.
    run : Out
        The instruction runs.

    Notes
    -----
    Combinational.  A lane outside of the hardware neither computes nor replays.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "cond": In(Cond),
                "lane": In(5),
                "compute": In(config.lanes),
                "any_compute": In(1),
                "eligible": In(1),
                "kind": In(GateKind),
                "definition": In(Definition),
                "run": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        exists, computes, scores = Signal(), Signal(), Signal()
        m.d.comb += [
            exists.eq(self.lane < self._config.lanes),
            computes.eq(self.compute.bit_select(self.lane, 1)),
            scores.eq(self.eligible & (self.kind == GateKind.TAS)),
        ]
        with m.Switch(self.cond):
            for cond, value in (
                (Cond.ALWAYS, 1),
                (Cond.COMPUTE, exists & computes),
                (Cond.REPLAY, exists & ~computes),
                (Cond.ANY, self.any_compute),
                (Cond.TAS, scores),
                (Cond.PAPER, scores & (self.definition == Definition.PAPER)),
                (Cond.RAW, scores & (self.definition == Definition.REFERENCE_CODE)),
                (Cond.FORCED, self.eligible & (self.kind == GateKind.FORCED)),
            ):
                with m.Case(cond):
                    m.d.comb += self.run.eq(value)
        return m
