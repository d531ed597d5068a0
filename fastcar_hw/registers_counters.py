"""Many 64-bit counters in little area: short accumulators, emptied into a memory in turn."""

from collections.abc import Sequence

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["CounterBank"]


class CounterBank(wiring.Component):
    """Event counters of 64 bits.

    Each counter has a short accumulator; every ``period`` cycles it is added to the counter's word in a
    memory. Against 64-bit counters in registers this takes an eighth of the flip-flops and one wide adder.

    Parameters
    ----------
    widths
        Bits of each counter's increment; at least two counters.

    Attributes
    ----------
    amount : In, one field ``c<n>`` a counter
        Increments of this cycle.
    clear : In
        Strobe: all counters become zero; the increments of this cycle are lost.
    select : In
        Counter to read.
    read : In
        Held until ``done``.
    done, value : Out
        Strobe, and the counter with every increment up to two cycles before, at most ``period`` + 1 cycles
        later.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = tuple(widths)
        #: Cycles between two visits of a counter.
        self.period = len(self._widths)
        #: The words, for simulators: they lag behind by what is in the accumulators.
        self.words = memory.MemoryData(shape=64, depth=max(2, self.period), init=[])
        super().__init__(
            {
                "amount": In(data.StructLayout({f"c{n}": width for n, width in enumerate(self._widths)})),
                "clear": In(1),
                "select": In(range(self.period)),
                "read": In(1),
                "done": Out(1),
                "value": Out(64),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.words = words = memory.Memory(self.words)
        read, write = words.read_port(domain="comb"), words.write_port()
        turn = Signal(range(self.period))
        # The memory itself cannot be cleared at once: a counter's first visit ignores its old word.
        fresh = Signal(self.period, init=-1)
        m.d.sync += turn.eq(Mux(turn == self.period - 1, 0, turn + 1))

        short = []
        for number, width in enumerate(self._widths):
            amount = self.amount[f"c{number}"]
            total = Signal(range(((1 << width) - 1) * self.period + 1), name=f"short_{number}")
            short.append(total)
            with m.If(self.clear):
                m.d.sync += total.eq(0)
            with m.Elif(turn == number):
                m.d.sync += [total.eq(amount), fresh[number].eq(0)]
            with m.Else():
                m.d.sync += total.eq(total + amount)
        with m.If(self.clear):
            m.d.sync += fresh.eq(-1)

        # A visit takes two cycles: select, then add.
        visited, visiting = Signal.like(turn), Signal()
        word, addend = Signal(64), Signal(max(len(total) for total in short))
        m.d.sync += [
            visited.eq(turn),
            visiting.eq(~self.clear),
            word.eq(Mux(fresh.bit_select(turn, 1), 0, read.data)),
            addend.eq(Array(short)[turn]),
        ]
        m.d.comb += [
            read.addr.eq(turn),
            self.value.eq(word + addend),
            write.addr.eq(visited),
            write.data.eq(self.value),
            write.en.eq(visiting),
            self.done.eq(self.read & visiting & (visited == self.select)),
        ]
        return m
