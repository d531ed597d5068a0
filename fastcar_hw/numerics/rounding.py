"""The one rounding rule in gates: shift right, add half, saturate (docs/numerics.md, section 1)."""

import itertools

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = [
    "MAX_SHIFT",
    "MIN_SHIFT",
    "RoundShift",
    "clamp_shift",
    "round_shift",
    "round_shift_saturate",
    "rsat",
    "saturate",
    "shr",
]

#: Shift counts that depend on data are clamped to this range.
MIN_SHIFT, MAX_SHIFT = -16, 47


def shr(x: int, k: int) -> int:
    """Shift a Python integer right by k bits, halves up (left for negative k)."""
    return (x + (1 << (k - 1))) >> k if k > 0 else x << -k


def rsat(x: int, k: int, width: int = 32) -> int:
    """Return the law's ``rsat_width(x, k)`` on Python integers."""
    y = shr(x, max(MIN_SHIFT, min(MAX_SHIFT, k)))
    high = (1 << (width - 1)) - 1
    return max(-high - 1, min(high, y))


def clamp_shift(k: Value) -> Value:
    """Clamp a signed shift count of any width to the range of `RoundShift`; the result is signed 7."""
    low, high = Const(MIN_SHIFT, signed(7)), Const(MAX_SHIFT, signed(7))
    return Mux(k < MIN_SHIFT, low, Mux(k > MAX_SHIFT, high, k[:7].as_signed()))


def saturate(value: Value, width: int) -> Value:
    """Clamp a signed value to ``signed(width)`` combinationally."""
    if len(value) <= width:
        return value
    top = value[width - 1 :]
    fits = (top == 0) | top.all()
    sign = value[-1]
    limit = Cat((~sign).replicate(width - 1), sign).as_signed()
    return Mux(fits, value[:width].as_signed(), limit)


def round_shift(value: Value, k: int) -> Value:
    """Shift a signed value right by a constant, halves up, combinationally (left for negative k)."""
    return (value + (1 << (k - 1))) >> k if k > 0 else value << -k


def round_shift_saturate(value: Value, k: int, width: int) -> Value:
    """Return ``rsat_width(value, k)`` for a constant shift count, combinationally."""
    return saturate(Value.cast(round_shift(value, max(MIN_SHIFT, min(MAX_SHIFT, k)))), width)


class RoundShift(wiring.Component):
    """Pipelined ``rsat_n(x, k)`` with a shift count that may change every cycle.

    Parameters
    ----------
    width
        Bits of the signed operand, 8 to 64.

    Attributes
    ----------
    en : In
        Stages move only in cycles with ``en``.
    x : In, signed ``width``; k : In, signed 7, in -16..47 (see `clamp_shift`)
        Operands.
    limit : In, 2 bits
        Clamp of the result: 0 = 32 bits, 1 = 24 bits, 2 = 16 bits, 3 = symmetric 16 bits.
    o : Out, signed 32
        Result, `latency` enabled cycles later.
    saturated : Out
        The result was clamped; beside ``o``.

    Notes
    -----
    One result a cycle.  The barrel shifter is split: multiples of eight, then the rest; the third stage
    rounds and clamps, and decides the clamp beside the adder instead of behind it.
    """

    LATENCY = 3
    LIMIT_32, LIMIT_24, LIMIT_16, LIMIT_SYM16 = range(4)
    #: Result bits of the codes of ``limit``.
    LIMIT_BITS = (32, 24, 16, 16)

    # Behind the coarse shift: 32 result bits, one bit of overflow, the half, and up to seven places to go.
    _KEPT = 32 + 1 + 1 + 7

    def __init__(self, width: int) -> None:
        if not 8 <= width <= 64:
            raise ValueError(f"width must be in 8..64, not {width!r}")
        self._width = width
        super().__init__(
            {
                "en": In(1),
                "x": In(signed(width)),
                "k": In(signed(7)),
                "limit": In(2),
                "o": Out(signed(32)),
                "saturated": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Enabled cycles from the operands to the result."""
        return self.LATENCY

    @classmethod
    def model(cls, x: int, k: int, limit: int = 0) -> tuple[int, bool]:
        """Return ``(o, saturated)`` as Python integers."""
        exact = shr(x, max(MIN_SHIFT, min(MAX_SHIFT, k)))
        high = (1 << (cls.LIMIT_BITS[limit] - 1)) - 1
        low = -high if limit == cls.LIMIT_SYM16 else -high - 1
        o = max(low, min(high, exact))
        return o, o != exact

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        # Left by 16 makes every count a right shift; one more bit below keeps the half for rounding.
        size = max(self._width + 17, self._KEPT + 1)
        wide = Signal(Shape(size, signed=True))
        count = Signal(6)
        m.d.comb += [wide.eq(self.x << 17), count.eq(self.k - MIN_SHIFT)]

        # Coarse shift.  What lies above the kept bits can only overflow, and one bit says so.
        kept = Shape(self._KEPT, signed=True)
        coarse, coarse1, fine = Signal(kept), Signal(kept), Signal(kept)
        above = Signal(size)
        over1, over2, negative1, negative2 = Signal(), Signal(), Signal(), Signal()
        fine_count = Signal(3)
        limit1, limit2 = Signal(2), Signal(2)
        with m.Switch(count[3:]):
            for places in range(0, 64, 8):
                with m.Case(places >> 3):
                    m.d.comb += [coarse.eq(wide >> places), above.eq((wide >> places) >> (self._KEPT - 1))]
        with m.If(self.en):
            m.d.sync += [
                coarse1.eq(coarse),
                over1.eq((above != 0) & ~above.all()),
                negative1.eq(wide[-1]),
                fine_count.eq(count[:3]),
                limit1.eq(self.limit),
                fine.eq(coarse1 >> fine_count),
                over2.eq(over1),
                negative2.eq(negative1),
                limit2.eq(limit1),
            ]
        rounded = Signal(signed(33))
        m.d.comb += rounded.eq(fine[1:33].as_signed() + fine[0])
        fits, limit = Signal(), Signal(signed(32))
        # What all limits ask of the bits between their edges is found once, beside the adder.
        edges = (0, *sorted(set(self.LIMIT_BITS)), self._KEPT)
        none, full, full_but_first = (Signal(len(edges) - 1, name=name) for name in ("none", "full", "full_but_first"))
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            m.d.comb += [
                none[number].eq(fine[low:high] == 0),
                full[number].eq(fine[low:high].all()),
                full_but_first[number].eq(fine[low + 1 : high].all() & ~fine[low]),
            ]
        with m.Switch(limit2):
            for code, bits in enumerate(self.LIMIT_BITS):
                with m.Case(code):
                    high = (1 << (bits - 1)) - 1
                    # The half makes the largest value overflow, and lets the value below the smallest fit.
                    edge = edges.index(bits)
                    ones = full[:edge].all()
                    positive = none[edge:].all() & ~ones
                    inside = full[edge:].all()
                    if code == self.LIMIT_SYM16:
                        inside = inside & ~none[:edge].all()
                    else:
                        inside = inside | (full[edge + 1 :].all() & full_but_first[edge] & ones)
                    m.d.comb += [
                        fits.eq(~over2 & Mux(negative2, inside, positive)),
                        limit.eq(Mux(negative2, -high - (code != self.LIMIT_SYM16), high)),
                    ]
        with m.If(self.en):
            m.d.sync += [self.o.eq(Mux(fits, rounded, limit)), self.saturated.eq(~fits)]
        return m
