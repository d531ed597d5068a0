"""Trace of the vector unit (simulation only): every word that it writes."""

import enum

from amaranth.hdl import Module, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Command
from ..memory.words import StoreWord
from ..systolic.words import TraceWord
from .decode import PassTraits
from .words import ValueWord

__all__ = ["PassTrace", "VectorTraceKind"]


class VectorTraceKind(enum.IntEnum):
    """What a record of the vector unit's trace holds."""

    X = 0
    Y = 1
    WEIGHTS = 2  #: of the softmax
    ACT = 3
    BYTES = 4  #: to the store unit: header and 8-bit results


class PassTrace(wiring.Component):
    """Copy the writes of a pass.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    command : In, `isa.Command`; traits : In, `PassTraits`
        The pass.
    strobe : In; index : In; result : In, W x s32; quantized : In, W x s8
        A word is written; its number and its two forms.
    sent : In; item : In, `StoreWord`
        Bytes are taken by the store unit.
    o : Out, `TraceWord`
        In the same cycle.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "command": In(Command),
                "traits": In(PassTraits),
                "strobe": In(1),
                "index": In(16),
                "result": In(ValueWord(config)),
                "quantized": In(data.ArrayLayout(signed(8), config.vector_width)),
                "sent": In(1),
                "item": In(StoreWord(config)),
                "o": Out(TraceWord(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        trace, traits = self.o, self.traits
        m.d.comb += [
            trace.tag.eq(self.command.tag),
            trace.layer.eq(self.command.layer),
            trace.lane.eq(self.command.lane),
            trace.addr.eq(self.index),
            trace.count.eq(w),
            trace.data.eq(self.result),
        ]
        with m.If(traits.quantizes):
            m.d.comb += [trace.data[i].eq(self.quantized[i]) for i in range(w)]
        with m.If(traits.sends_bytes):
            m.d.comb += [trace.valid.eq(self.sent), trace.kind.eq(VectorTraceKind.BYTES)]
            m.d.comb += trace.count.eq(self.item.count)
            with m.If(self.item.count == 1):
                m.d.comb += trace.data[0].eq(self.item.data[0])
        for trait, kind in (
            (traits.writes_x, VectorTraceKind.X),
            (traits.writes_y, VectorTraceKind.Y),
            (traits.writes_scores, VectorTraceKind.WEIGHTS),
            (traits.writes_act, VectorTraceKind.ACT),
        ):
            with m.If(trait):
                m.d.comb += [trace.valid.eq(self.strobe), trace.kind.eq(kind)]
        return m
