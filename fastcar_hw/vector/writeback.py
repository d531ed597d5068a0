"""Write-back: residual, saturation, 8-bit results, and where each word goes."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Command, Map
from ..numerics.rounding import saturate
from .decode import PassTraits
from .words import ValueWord

__all__ = ["WriteBack"]


class WriteBack(wiring.Component):
    """Last stage of a pass.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    command : In, `isa.Command`; traits : In, `PassTraits`; restart : In
        The pass; strobe before it.
    en : In; valid : In
        Enable; ``result`` holds a word.
    r : In, W x s32; clamped : In, W bits; x : In, W x s32
        From the pipeline, and the residual, a cycle before the result.
    result : Out, W x s32; quantized : Out, W x s8
        The word; and clamped to -127..127.
    index : Out
        Number of the word.
    x_write, y_write, p_write, s_write : Out; addr : Out
        Strobes for the memories, and the word in the lane, in P or in the bank.
    act_en, act_core, act_index, act_addr : Out
        Strobe for the activation memories, and where ``quantized`` goes.
    place_lane, place_mapped : Out; place_core, place_index : In
        Where a lane sits (combinational).
    saturated : Out
        Strobe: a word with an element that was clamped to 32 bits.

    Notes
    -----
    A word a cycle, an enabled cycle from ``r`` to ``result``.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g, w = config.derived, config.vector_width
        super().__init__(
            {
                "command": In(Command),
                "traits": In(PassTraits),
                "restart": In(1),
                "en": In(1),
                "valid": In(1),
                "r": In(ValueWord(config)),
                "clamped": In(w),
                "x": In(ValueWord(config)),
                "result": Out(ValueWord(config)),
                "quantized": Out(data.ArrayLayout(signed(8), w)),
                "index": Out(16),
                "x_write": Out(1),
                "y_write": Out(1),
                "p_write": Out(1),
                "s_write": Out(1),
                "addr": Out(16),
                "act_en": Out(1),
                "act_core": Out(g.core_bits),
                "act_index": Out(g.slot_bits),
                "act_addr": Out(range(g.act_depth)),
                "place_lane": Out(5),
                "place_mapped": Out(1),
                "place_core": In(g.core_bits),
                "place_index": In(g.slot_bits),
                "saturated": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        word_bits = w.bit_length() - 1
        cmd, traits = self.command, self.traits

        overflow = []
        for i in range(w):
            exact = Signal(signed(33), name=f"exact_{i}")
            # A mantissa of 2^14 with the exponent 17 is 2^31, one more than the last shifter can say.
            beyond = traits.adds_x & self.clamped[i]
            m.d.comb += exact.eq(self.r[i] + Mux(traits.adds_x, self.x[i], 0) + beyond)
            overflow.append(exact[-1] != exact[-2])
            with m.If(self.en):
                m.d.sync += self.result[i].eq(saturate(exact, 32))
            value = self.result[i]
            m.d.comb += self.quantized[i].eq(Mux(value > 127, 127, Mux(value < -127, -127, value)))
        saturated = Signal()
        with m.If(self.en):
            m.d.sync += saturated.eq(
                ~traits.quantizes & (Cat(overflow).any() | (~traits.adds_x & self.clamped.any()))
            )

        strobe = Signal()
        m.d.comb += [strobe.eq(self.valid & self.en), self.saturated.eq(strobe & saturated)]
        with m.If(self.restart):
            m.d.sync += self.index.eq(0)
        with m.Elif(strobe):
            m.d.sync += self.index.eq(self.index + 1)

        # X and the scores begin at word 0.
        first = Mux(traits.rotates, cmd.a[:16], Mux(traits.writes_y | traits.writes_params, cmd.d, 0))
        m.d.comb += [
            self.x_write.eq(strobe & traits.writes_x),
            self.y_write.eq(strobe & traits.writes_y),
            self.p_write.eq(strobe & traits.writes_params),
            self.s_write.eq(strobe & traits.writes_scores),
            self.addr.eq(first + self.index),
            self.act_en.eq(strobe & traits.writes_act),
            self.act_addr.eq(cmd.a[:16] + (self.index << word_bits)),
            self.place_lane.eq(cmd.lane),
            self.place_mapped.eq(traits.mapped & (cmd.map == Map.MAPPED)),
            self.act_core.eq(self.place_core),
            self.act_index.eq(self.place_index),
        ]
        return m
