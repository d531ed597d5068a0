"""2^-d for softmax and sampling (docs/numerics.md, section 9)."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .tables import exp2neg_table

__all__ = ["Exp2Neg"]


class Exp2Neg(wiring.Component):
    """Pipelined power of two with a non-positive exponent.

    Attributes
    ----------
    en : In
        Stages move only in cycles with ``en``.
    d : In, unsigned 25, 12 fraction bits
        The exponent, negated.
    o : Out, unsigned 16, 15 fraction bits
        2^-d, `LATENCY` enabled cycles later.

    Notes
    -----
    One value a cycle; error at most 1.5 units in the last place.
    """

    LATENCY = 4
    FRACTION = 12

    en: In(1)
    d: In(25)
    o: Out(16)

    @staticmethod
    def model(d: int) -> int:
        """Return the same integer in Python."""
        base, slope = exp2neg_table()
        whole, fraction = d >> 12, d & 4095
        index, rest = fraction >> 6, fraction & 63
        t = base[index] - ((slope[index] * rest + 32) >> 6)
        if whole > 16:
            return 0
        return (t + (1 << (whole - 1))) >> whole if whole else t

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        base, slope = exp2neg_table()
        entry = data.StructLayout({"base": unsigned(16), "slope": unsigned(9)})
        rows = [{"base": b, "slope": s} for b, s in zip(base, slope, strict=True)]
        m.submodules.rom = rom = memory.Memory(shape=entry, depth=64, init=rows)
        read = rom.read_port()
        m.d.comb += [read.addr.eq(self.d[6:12]), read.en.eq(self.en)]

        rest = Signal(6)
        product = Signal(15)
        base2 = Signal(16)
        t = Signal(16)
        wholes = [Signal(5, name=f"whole_{i}") for i in range(3)]
        with m.If(self.en):
            m.d.sync += [
                rest.eq(self.d[:6]),
                # Anything beyond 16 shifts everything out.
                wholes[0].eq(self.d[12:17] | (self.d[17:].any()).replicate(5)),
                product.eq(read.data.slope * rest),
                base2.eq(read.data.base),
                wholes[1].eq(wholes[0]),
                t.eq(base2 - ((product + 32) >> 6)),
                wholes[2].eq(wholes[1]),
                # One guard bit below keeps the half for rounding.
                self.o.eq((((t << 1) >> wholes[2]) + 1) >> 1),
            ]
            with m.If(wholes[2] > 16):
                m.d.sync += self.o.eq(0)
        return m
