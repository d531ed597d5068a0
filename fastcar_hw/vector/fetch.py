"""Operand fetch: issue the reads of a pass, choose the operand, follow every word down the stages."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Command
from .decode import PassTraits
from .stages import OTHER_READ, PARAM_READ, RESIDUAL_READ, STAGES
from .words import ParamWord, ValueWord

__all__ = ["OperandFetch"]


class OperandFetch(wiring.Component):
    """Read the operands of a pass word by word, each when the pipeline needs it.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    command : In, `isa.Command`; traits : In, `PassTraits`
        The pass; they stay the same until its end.
    restart : In
        Strobe before a pass.
    run : In; done : Out
        Words are issued while ``run``; the last one has been issued, and none is in a stage.
    en : In
        Stages move only in cycles with ``en``.
    stream : In, stream of W x s16
        Words from memory.
    x_addr, y_addr, p_addr, s_addr : Out
        Words to read in this cycle, counted in the lane or bank.
    x, y : In, W x s32; scores : In, W x s24; ve : In, W x u5
        What was read, an enabled cycle later.
    a : Out, W x s32; a_ve : Out, W x u5; a_mask : Out, W bits
        Operand, exponents of V and which elements exist, at stage `FETCH`.
    valid : Out, a bit for each of `stages`
        Stages that hold a word; bit 0, the issue itself, stays 0.

    Notes
    -----
    A word a cycle, or every other cycle where Y is read twice; a missing word of the stream leaves a bubble.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        w = config.vector_width
        super().__init__(
            {
                "command": In(Command),
                "traits": In(PassTraits),
                "restart": In(1),
                "run": In(1),
                "done": Out(1),
                "en": In(1),
                "stream": In(stream.Signature(ParamWord(config))),
                "x_addr": Out(16),
                "y_addr": Out(16),
                "p_addr": Out(16),
                "s_addr": Out(16),
                "x": In(ValueWord(config)),
                "y": In(ValueWord(config)),
                "scores": In(data.ArrayLayout(signed(24), w)),
                "ve": In(data.ArrayLayout(unsigned(5), w)),
                "a": Out(ValueWord(config)),
                "a_ve": Out(data.ArrayLayout(unsigned(5), w)),
                "a_mask": Out(w),
                "valid": Out(STAGES),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        word_bits = w.bit_length() - 1
        cmd, traits, v = self.command, self.traits, self.valid

        # Stage 0: reads are issued, the stream is taken.
        words, issued = Signal(17), Signal(16)
        issue, between = Signal(), Signal()
        m.d.sync += words.eq((cmd.b + (w - 1)) >> word_bits)
        m.d.comb += [
            issue.eq(self.run & (issued != words) & ~between & (~traits.streams | self.stream.valid)),
            self.stream.ready.eq(issue & traits.streams),
            self.done.eq((issued == words) & ~v.any()),
        ]
        streamed = Signal(ParamWord(self._config))
        with m.If(self.en):
            m.d.sync += [
                v[1:].eq(Cat(issue, v[1:])),
                streamed.eq(self.stream.payload),
                between.eq(traits.reads_other & issue),
            ]
            with m.If(issue):
                m.d.sync += issued.eq(issued + 1)
        self._addresses(m, issued)

        # Stage 1: the operand is chosen.  Stage 2: it enters the pipeline.
        element = Signal(17)
        with m.If(self.en):
            m.d.sync += self.a_ve.eq(self.ve)
            with m.If(v[1]):
                m.d.sync += element.eq(element + w)
            for i in range(w):
                m.d.sync += self.a_mask[i].eq(element + i < cmd.b)
                with m.If(traits.streams):
                    m.d.sync += self.a[i].eq(streamed[i])
                with m.Elif(traits.reads_x):
                    m.d.sync += self.a[i].eq(self.x[i])
                with m.Elif(traits.reads_scores):
                    m.d.sync += self.a[i].eq(self.scores[i])
                with m.Else():
                    m.d.sync += self.a[i].eq(self.y[i])
        with m.If(self.restart):
            m.d.sync += [issued.eq(0), element.eq(0), between.eq(0)]
        return m

    def _addresses(self, m: Module, issued: Signal) -> None:
        """First operands are read at the issue, all others by counters of the words that reach the stage before."""
        cmd, traits = self.command, self.traits
        counters = {}
        for name, stage in (("other", OTHER_READ), ("param", PARAM_READ), ("residual", RESIDUAL_READ)):
            counters[name] = counter = Signal(16, name=f"{name}_word")
            with m.If(self.restart):
                m.d.sync += counter.eq(0)
            with m.Elif(self.en & self.valid[stage]):
                m.d.sync += counter.eq(counter + 1)
        m.d.comb += [
            self.s_addr.eq(issued),
            self.x_addr.eq(Mux(traits.reads_x, issued, counters["residual"])),
            self.y_addr.eq(
                Mux(traits.reads_other & self.valid[OTHER_READ], cmd.a[:16] + counters["other"], cmd.d + issued)
            ),
            self.p_addr.eq(Mux(traits.rotates, cmd.a[16:], 0) + counters["param"]),
        ]
