"""Score memory: two banks of scores with their running maxima."""

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..systolic.words import ScoreWord
from .reduce import maximum, tree, tree_latency

__all__ = ["ScoreMemory"]


class ScoreMemory(wiring.Component):
    """Scores of two heads, the exponents of V beside them, and the maxima of both.

    Parameters
    ----------
    config
        The accelerator; a bank holds ``derived.s_words`` words.

    Attributes
    ----------
    i : In, stream of `ScoreWord`
        From the matrix unit; waits while the vector unit writes.
    write_en, write_bank, write_addr, write_data : In
        Softmax weights, written over the scores.
    read_en, read_bank, read_addr : In; score, ve : Out
        Read port; one cycle.
    bank : In; largest : Out, s24; ve_largest : Out, u5
        Maxima of a bank (over elements with ``mask``).
    settling : Out
        A word is on its way into the maxima.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g, w = config.derived, config.vector_width
        super().__init__(
            {
                "i": In(stream.Signature(ScoreWord(config))),
                "write_en": In(1),
                "write_bank": In(1),
                "write_addr": In(range(g.s_words)),
                "write_data": In(data.ArrayLayout(signed(24), w)),
                "read_en": In(1),
                "read_bank": In(1),
                "read_addr": In(range(g.s_words)),
                "score": Out(data.ArrayLayout(signed(24), w)),
                "ve": Out(data.ArrayLayout(unsigned(5), w)),
                "bank": In(1),
                "largest": Out(signed(24)),
                "ve_largest": Out(5),
                "settling": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        g, w = self._config.derived, self._config.vector_width

        m.submodules.scores = scores = memory.Memory(
            shape=data.ArrayLayout(signed(24), w), depth=2 * g.s_words, init=[]
        )
        m.submodules.exponents = exponents = memory.Memory(
            shape=data.ArrayLayout(unsigned(5), w), depth=2 * g.s_words, init=[]
        )
        score_write, score_read = scores.write_port(), scores.read_port()
        ve_write, ve_read = exponents.write_port(), exponents.read_port()
        word = self.i.payload
        take = Signal()
        address = word.bank * g.s_words + word.addr
        m.d.comb += [
            self.i.ready.eq(~self.write_en),
            take.eq(self.i.valid & self.i.ready),
            score_write.en.eq(take | self.write_en),
            score_write.addr.eq(Mux(self.write_en, self.write_bank * g.s_words + self.write_addr, address)),
            score_write.data.eq(Mux(self.write_en, self.write_data.as_value(), word.data.as_value())),
            ve_write.en.eq(take),
            ve_write.addr.eq(address),
            ve_write.data.eq(word.ve),
        ]
        for read in (score_read, ve_read):
            m.d.comb += [read.en.eq(self.read_en), read.addr.eq(self.read_bank * g.s_words + self.read_addr)]
        m.d.comb += [self.score.eq(score_read.data), self.ve.eq(ve_read.data)]

        # The maxima trail the writes by the depth of the tree.
        levels = tree_latency(w)
        lowest = -(1 << 23)
        best = tree(m, [Mux(word.mask[i], word.data[i], lowest) for i in range(w)], maximum, 1, "score_max")
        best_ve = tree(m, [Mux(word.mask[i], word.ve[i], 0) for i in range(w)], maximum, 1, "ve_max")
        flags = data.StructLayout({"valid": 1, "first": 1, "bank": 1})
        stages = [Signal(flags, name=f"flags_{i}") for i in range(levels)]
        m.d.sync += [stages[0].valid.eq(take), stages[0].first.eq(word.first), stages[0].bank.eq(word.bank)]
        for before, after in zip(stages, stages[1:], strict=False):
            m.d.sync += after.eq(before)
        settling = stages[0].valid
        for stage in stages[1:]:
            settling = settling | stage.valid
        m.d.comb += self.settling.eq(settling)
        end = stages[-1]
        for bank in range(2):
            largest, ve_largest = Signal(signed(24), name=f"largest_{bank}"), Signal(5, name=f"ve_largest_{bank}")
            with m.If(end.valid & (end.bank == bank)):
                m.d.sync += [
                    largest.eq(Mux(end.first, best, maximum(largest, best))),
                    ve_largest.eq(Mux(end.first, best_ve, maximum(ve_largest, best_ve))),
                ]
            with m.If(self.bank == bank):
                m.d.comb += [self.largest.eq(largest), self.ve_largest.eq(ve_largest)]
        return m
