"""One element of the requantizer: scale, shift, saturate."""

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..numerics.rounding import RoundShift, clamp_shift

__all__ = ["ScaledShift"]


class ScaledShift(wiring.Component):
    """One element: ``rsat(acc * scale, k)``, pipelined.

    Parameters
    ----------
    acc_width
        Bits of the accumulator, at most 32.

    Attributes
    ----------
    en : In
        Stages move only in cycles with ``en``.
    acc : In, signed ``acc_width``; scale : In, unsigned 16; k : In, signed 10; limit : In
        Operands; ``limit`` as in `RoundShift`.
    o : Out, signed 32; saturated : Out
        Result, `LATENCY` enabled cycles later.

    Notes
    -----
    One result a cycle.  The product is the sum of two, each of which fits an 18 x 18 multiplier.
    """

    LATENCY = 3 + RoundShift.LATENCY
    _LOW = 17

    def __init__(self, acc_width: int) -> None:
        if not 2 <= acc_width <= 32:
            raise ValueError(f"acc_width must be in 2..32, not {acc_width!r}")
        self._acc_width = acc_width
        super().__init__(
            {
                "en": In(1),
                "acc": In(signed(acc_width)),
                "scale": In(16),
                "k": In(signed(10)),
                "limit": In(2),
                "o": Out(signed(32)),
                "saturated": Out(1),
            }
        )

    @staticmethod
    def model(acc: int, scale: int, k: int, limit: int = 0) -> tuple[int, bool]:
        """Return ``(o, saturated)`` as Python integers."""
        return RoundShift.model(acc * scale, k, limit)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        width = self._acc_width + 16
        m.submodules.rounder = rounder = RoundShift(max(8, width))

        acc = Signal(signed(self._acc_width), reset_less=True)
        scale = Signal(16, reset_less=True)
        low = Signal(signed(self._LOW + 17), reset_less=True)
        high = Signal(signed(max(1, self._acc_width - self._LOW) + 17), reset_less=True)
        product = Signal(signed(width), reset_less=True)
        k1 = Signal(signed(10), reset_less=True)
        k2, k3 = Signal(signed(7), reset_less=True), Signal(signed(7), reset_less=True)
        limits = [Signal(2, name=f"limit{i}", reset_less=True) for i in (1, 2, 3)]

        factor = Cat(scale, Const(0, 1)).as_signed()
        split = self._acc_width > self._LOW
        low_part = Cat(acc[: self._LOW], Const(0, 1)).as_signed() if split else acc
        high_part = acc[self._LOW :].as_signed() if split else Const(0, signed(1))
        with m.If(self.en):
            m.d.sync += [
                acc.eq(self.acc),
                scale.eq(self.scale),
                k1.eq(self.k),
                low.eq(low_part * factor),
                high.eq(high_part * factor),
                k2.eq(clamp_shift(k1)),
                product.eq(low + (high << self._LOW)),
                k3.eq(k2),
            ]
            m.d.sync += [b.eq(a) for a, b in zip([self.limit, *limits], limits, strict=False)]
        m.d.comb += [
            rounder.en.eq(self.en),
            rounder.x.eq(product),
            rounder.k.eq(k3),
            rounder.limit.eq(limits[-1]),
            self.o.eq(rounder.o),
            self.saturated.eq(rounder.saturated),
        ]
        return m
