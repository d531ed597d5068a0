"""Memories of the vector unit: residual stream X, vectors Y, parameters P."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..systolic.words import YWord
from .words import ParamWord, ValueWord

__all__ = ["VectorMemories"]


class VectorMemories(wiring.Component):
    """X and Y of every lane, and P; one read and one write port each.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    lane : In
        Lane of the pass; two cycles ahead of its first access.
    en : In
        Reads happen only in cycles with ``en``.
    x_addr, y_addr, p_addr : In
        Words to read, counted in the lane.
    x, y : Out, W x s32; p : Out, W x s16
        What was read, one enabled cycle later.
    residual, other : Out, W x s32
        ``x`` and ``y`` another enabled cycle later: the memories are slow, and what follows there is an adder.
    x_write, y_write, p_write : In
        Write strobes of the pass.
    addr : In; word : In, W x s32
        Where (in the lane) and what the pass writes; P takes the low 16 bits.
    results : In, stream of `YWord`
        From the matrix unit; waits while the pass writes Y.

    Notes
    -----
    A read and a write a cycle and memory.  A read of the word that is being written gives the old one.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "lane": In(5),
                "en": In(1),
                "x_addr": In(16),
                "y_addr": In(16),
                "p_addr": In(16),
                "x": Out(ValueWord(config)),
                "y": Out(ValueWord(config)),
                "p": Out(ParamWord(config)),
                "residual": Out(ValueWord(config)),
                "other": Out(ValueWord(config)),
                "x_write": In(1),
                "y_write": In(1),
                "p_write": In(1),
                "addr": In(16),
                "word": In(ValueWord(config)),
                "results": In(stream.Signature(YWord(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        m.submodules.x_memory = x = memory.Memory(shape=ValueWord(c), depth=c.lanes * g.x_words, init=[])
        m.submodules.y_memory = y = memory.Memory(shape=ValueWord(c), depth=c.lanes * g.y_words, init=[])
        m.submodules.p_memory = p = memory.Memory(shape=ParamWord(c), depth=g.p_words, init=[])

        # The lane stays the same for a whole pass, so that the products can be registered.
        x_base, y_base = Signal(range(c.lanes * g.x_words)), Signal(range(c.lanes * g.y_words))
        m.d.sync += [x_base.eq(self.lane * g.x_words), y_base.eq(self.lane * g.y_words)]

        x_read, y_read, p_read = x.read_port(), y.read_port(), p.read_port()
        m.d.comb += [read.en.eq(self.en) for read in (x_read, y_read, p_read)]
        with m.If(self.en):
            m.d.sync += [self.residual.eq(self.x), self.other.eq(self.y)]
        m.d.comb += [
            x_read.addr.eq(x_base + self.x_addr),
            y_read.addr.eq(y_base + self.y_addr),
            p_read.addr.eq(self.p_addr),
            self.x.eq(x_read.data),
            self.y.eq(y_read.data),
            self.p.eq(p_read.data),
        ]

        x_write, y_write, p_write = x.write_port(), y.write_port(), p.write_port()
        result = self.results.payload
        m.d.comb += [
            x_write.en.eq(self.x_write),
            x_write.addr.eq(x_base + self.addr),
            x_write.data.eq(self.word),
            self.results.ready.eq(~self.y_write),
            y_write.en.eq(self.y_write | self.results.valid),
            y_write.addr.eq(Mux(self.y_write, y_base + self.addr, result.lane * g.y_words + result.addr)),
            y_write.data.eq(Mux(self.y_write, self.word.as_value(), result.data.as_value())),
            p_write.en.eq(self.p_write),
            p_write.addr.eq(self.addr),
        ]
        m.d.comb += [p_write.data[i].eq(self.word[i]) for i in range(c.vector_width)]
        return m
