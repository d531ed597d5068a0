"""The logistic function for SwiGLU (docs/numerics.md, section 9)."""

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .tables import sigmoid_table

__all__ = ["Sigmoid"]


class Sigmoid(wiring.Component):
    """Pipelined logistic function by table and linear interpolation.

    Attributes
    ----------
    en : In
        Stages move only in cycles with ``en``.
    z : In, signed 16, 11 fraction bits
        Argument, within ±16.
    o : Out, unsigned 16, 15 fraction bits
        sigmoid(z), `LATENCY` enabled cycles later; at most 32768.

    Notes
    -----
    One value a cycle; error at most 3 units in the last place.
    """

    LATENCY = 3
    FRACTION = 11

    en: In(1)
    z: In(signed(16))
    o: Out(16)

    @staticmethod
    def model(z: int) -> int:
        """Return the same integer in Python."""
        base, slope = sigmoid_table()
        a = min(abs(z), 32767)
        t = base[a >> 7] + ((slope[a >> 7] * (a & 127) + 64) >> 7)
        return t if z >= 0 else 32768 - t

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        base, slope = sigmoid_table()
        entry = data.StructLayout({"base": unsigned(16), "slope": unsigned(10)})
        rows = [{"base": b, "slope": s} for b, s in zip(base, slope, strict=True)]
        m.submodules.rom = rom = memory.Memory(shape=entry, depth=256, init=rows)
        read = rom.read_port()

        magnitude = Signal(15)
        m.d.comb += magnitude.eq(Mux(self.z == -32768, 32767, Mux(self.z[-1], -self.z, self.z)))
        m.d.comb += [read.addr.eq(magnitude[7:]), read.en.eq(self.en)]
        rest = Signal(7)
        product = Signal(17)
        base2 = Signal(16)
        negative1, negative2 = Signal(), Signal()
        t = Signal(16)
        m.d.comb += t.eq(base2 + ((product + 64) >> 7))
        with m.If(self.en):
            m.d.sync += [
                rest.eq(magnitude[:7]),
                negative1.eq(self.z[-1]),
                product.eq(read.data.slope * rest),
                base2.eq(read.data.base),
                negative2.eq(negative1),
                self.o.eq(Mux(negative2, 32768 - t, t)),
            ]
        return m
