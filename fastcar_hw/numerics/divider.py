"""Exact reciprocal of the softmax sum by restoring division (docs/numerics.md, section 8)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Reciprocal"]


class Reciprocal(wiring.Component):
    """Sequential min(65535, floor(2^(b + 15) / x)) with b = bitlen(x).

    Attributes
    ----------
    start : In
        Strobe; ``x`` is read in this cycle.
    x : In, unsigned 32
        Divisor, not zero.
    o : Out, unsigned 16; bits : Out, unsigned 6
        Quotient and b, valid from ``done`` until the next start.
    done : Out
        Strobe.

    Notes
    -----
    The divisor is first shifted left until its top bit is set (at most 31 cycles, one a bit), then 17 quotient
    bits follow, one a cycle.
    """

    start: In(1)
    x: In(32)
    o: Out(16)
    bits: Out(6)
    done: Out(1)

    @staticmethod
    def model(x: int) -> tuple[int, int]:
        """Return (quotient, b) in Python."""
        b = x.bit_length()
        return min(65535, (1 << (b + 15)) // x), b

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        divisor = Signal(32)
        remainder = Signal(33)
        quotient = Signal(17)
        step = Signal(5)
        trial = Signal(34)
        m.d.comb += trial.eq(remainder - divisor)

        with m.FSM():
            with m.State("WAIT"):
                with m.If(self.start):
                    m.d.sync += [divisor.eq(self.x), self.bits.eq(32)]
                    m.next = "NORMALISE"
            with m.State("NORMALISE"):
                with m.If(divisor[-1] | (self.bits == 0)):
                    # With the divisor in [2^31, 2^32), 2^(b+15)/x is 2^47/divisor: 17 bits from remainder 2^31.
                    m.d.sync += [remainder.eq(1 << 31), quotient.eq(0), step.eq(0)]
                    m.next = "DIVIDE"
                with m.Else():
                    m.d.sync += [divisor.eq(divisor << 1), self.bits.eq(self.bits - 1)]
            with m.State("DIVIDE"):
                fits = ~trial[-1]
                m.d.sync += [
                    quotient.eq((quotient << 1) | fits),
                    remainder.eq(Mux(fits, trial[:33], remainder) << 1),
                    step.eq(step + 1),
                ]
                with m.If(step == 16):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.sync += self.o.eq(Mux(quotient[16], 65535, quotient))
                m.next = "TELL"
            with m.State("TELL"):
                m.d.comb += self.done.eq(1)
                m.next = "WAIT"
        return m
