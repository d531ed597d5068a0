"""Reciprocal square root for RMSNorm (docs/numerics.md, section 9)."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .tables import rsqrt_table

__all__ = ["ReciprocalSqrt"]


class ReciprocalSqrt(wiring.Component):
    """Sequential 1/sqrt(v) = R * 2^(-16 - h).

    Attributes
    ----------
    start : In
        Strobe; ``v`` is read in this cycle.
    v : In, unsigned 48
        Argument.
    r : Out, unsigned 16; h : Out, unsigned 5
        Mantissa and exponent, valid from ``done`` on until the next start.
    done : Out
        Strobe, `LATENCY` cycles after ``start``.

    Notes
    -----
    Normalises by even shifts in two cycles (32, 16, 8; then 4, 2), then looks up and interpolates.
    Relative error at most 1e-4.
    """

    #: Cycles from start to done.
    LATENCY = 6

    start: In(1)
    v: In(48)
    r: Out(16)
    h: Out(5)
    done: Out(1)

    @staticmethod
    def model(v: int) -> tuple[int, int]:
        """Return (R, h) in Python."""
        if v == 0:
            return 65535, 0
        base, slope = rsqrt_table()
        h = (v.bit_length() - 1) >> 1
        mm = (v << 14) >> (2 * h)
        x = mm - 2**14
        return base[x >> 8] - ((slope[x >> 8] * (x & 255) + 128) >> 8), h

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        base, slope = rsqrt_table()
        entry = data.StructLayout({"base": unsigned(16), "slope": unsigned(10)})
        rows = [{"base": b, "slope": s} for b, s in zip(base, slope, strict=True)]
        m.submodules.rom = rom = memory.Memory(shape=entry, depth=192, init=rows)
        read = rom.read_port()

        # v is moved to the top of 48 bits in even steps, so that its leading pair of bits is not 00.
        value, value1 = Signal(48), Signal(48)
        exponent, exponent1 = Signal(5), Signal(5)
        zero = Signal()
        steps = Signal(self.LATENCY)
        m.d.sync += steps.eq((steps << 1) | self.start)
        m.d.comb += self.done.eq(steps[-1])

        second = Signal(48)
        exponent2 = Signal(5)
        rest = Signal(8)
        product = Signal(18)
        top16 = Signal(16)
        base2 = Signal(16)
        m.d.comb += top16.eq(second[-16:])

        def normalise(source, shifts, amount):
            for shift in shifts:
                moved, left = Signal(48), Signal(5)
                empty = source[48 - shift :] == 0
                m.d.comb += [moved.eq(source), left.eq(amount)]
                with m.If(empty):
                    m.d.comb += [moved.eq(source << shift), left.eq(amount - shift // 2)]
                source, amount = moved, left
            return source, amount

        coarse, coarse_exponent = normalise(self.v, (32, 16), 23)
        middle, middle_exponent = normalise(value1, (8, 4), exponent1)
        fine, fine_exponent = normalise(value, (2,), exponent)
        with m.If(self.start):
            m.d.sync += [value1.eq(coarse), exponent1.eq(coarse_exponent), zero.eq(self.v == 0)]
        with m.If(steps[0]):
            m.d.sync += [value.eq(middle), exponent.eq(middle_exponent)]
        with m.If(steps[1]):
            m.d.sync += [second.eq(fine), exponent2.eq(fine_exponent)]
        # top16 = m * 2^14 with m in [1, 4); the table starts at m = 1.
        m.d.comb += [read.addr.eq((top16 - 2**14)[8:16]), read.en.eq(1)]
        m.d.sync += [rest.eq(top16[:8]), product.eq(read.data.slope * rest), base2.eq(read.data.base)]
        with m.If(steps[4]):
            m.d.sync += [self.r.eq(base2 - ((product + 128) >> 8)), self.h.eq(exponent2)]
            with m.If(zero):
                m.d.sync += [self.r.eq(65535), self.h.eq(0)]
        return m
