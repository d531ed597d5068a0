"""The rounding rule: exhaustive at small widths, random and edges at full width, constants."""

import gc
import random
from fractions import Fraction
from math import floor

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from fastcar_hw.numerics.rounding import (
    MAX_SHIFT,
    MIN_SHIFT,
    RoundShift,
    clamp_shift,
    round_shift_saturate,
    rsat,
    shr,
)
from fastcar_hw.systolic.scaled_shift import ScaledShift


def exact(x: int, k: int, bits: int, low: int | None = None) -> tuple[int, bool]:
    """The rule over rational numbers: halves go up, then the clamp."""
    rounded = floor(Fraction(x) / Fraction(2) ** max(-16, min(47, k)) + Fraction(1, 2))
    high = 2 ** (bits - 1) - 1
    result = max(-high - 1 if low is None else low, min(high, rounded))
    return result, result != rounded


def run(dut, names: tuple[str, ...], values: list[tuple[int, ...]], latency: int, stall: float = 0.0) -> list:
    """Feed operands, one tuple an enabled cycle; return (o, saturated) of each."""
    rng = random.Random(1)
    results = []

    async def testbench(ctx):
        moved = 0
        while len(results) < len(values):
            en = rng.random() >= stall
            ctx.set(dut.en, en)
            if en:
                for name, value in zip(names, values[min(moved, len(values) - 1)], strict=True):
                    ctx.set(getattr(dut, name), value)
            await ctx.tick()
            moved += en
            if en and moved >= latency:
                results.append((ctx.get(dut.o), bool(ctx.get(dut.saturated))))

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(testbench)
    sim.run()
    return results


def test_every_operand_and_every_count_at_eight_bits():
    values = [(x, k, 0) for k in range(MIN_SHIFT, MAX_SHIFT + 1) for x in range(-128, 128)]
    dut = RoundShift(8)
    got = run(dut, ("x", "k", "limit"), values, dut.latency)
    assert got == [exact(x, k, 32) for x, k, _ in values]
    assert got == [dut.model(*value) for value in values]


@pytest.mark.parametrize("limit", range(4))
@pytest.mark.parametrize("width", [17, 34, 48, 64])
def test_edges_of_every_limit(width, limit):
    """Around each power of two, where the half decides between fitting and clamping."""
    bits = RoundShift.LIMIT_BITS[limit]
    low = -(2 ** (bits - 1)) + (limit == RoundShift.LIMIT_SYM16)
    rng = random.Random(width)
    values = []
    for k in range(MIN_SHIFT, MAX_SHIFT + 1):
        for around in (
            2 ** max(0, bits - 1 + k),
            2 ** max(0, bits - 2 + k),
            0,
            2 ** (width - 1),
            2 ** max(0, k - 1),
        ):
            for delta in (-2, -1, 0, 1, 2, -(2 ** max(0, k - 1)), 2 ** max(0, k - 1)):
                for x in (around + delta, -around + delta):
                    if -(2 ** (width - 1)) <= x < 2 ** (width - 1):
                        values.append((x, k, limit))
    values += [(rng.getrandbits(rng.randint(1, width - 1)) * rng.choice((1, -1)), rng.randint(-16, 47), limit)
               for _ in range(500)]  # fmt: skip
    dut = RoundShift(width)
    got = run(dut, ("x", "k", "limit"), values, dut.latency)
    assert got == [exact(x, k, bits, low) for x, k, _ in values]
    assert got == [dut.model(*value) for value in values]


def test_stages_stand_still_without_enable():
    rng = random.Random(2)
    values = [(rng.getrandbits(40), rng.randint(-16, 47), rng.randint(0, 3)) for _ in range(200)]
    dut = RoundShift(48)
    assert run(dut, ("x", "k", "limit"), values, dut.latency, stall=0.5) == [dut.model(*v) for v in values]


def combinational(outputs, x: Signal, values) -> list[tuple[int, ...]]:
    """Evaluate expressions of one signal."""
    m = Module()
    signals = [Signal(o.shape()) for o in outputs]
    m.d.comb += [s.eq(o) for s, o in zip(signals, outputs, strict=True)]
    results = []

    async def testbench(ctx):
        for value in values:
            ctx.set(x, value)
            results.append(tuple(ctx.get(s) for s in signals))

    sim = Simulator(m)
    sim.add_testbench(testbench)
    sim.run()
    return results


def test_constant_counts():
    x = Signal(signed(9))
    counts = range(-4, 12)
    values = range(-256, 256)
    got = combinational([round_shift_saturate(x, k, 6) for k in counts], x, values)
    assert got == [tuple(exact(value, k, 6)[0] for k in counts) for value in values]


def test_counts_are_clamped():
    k = Signal(signed(10))
    values = range(-512, 512)
    assert combinational([clamp_shift(k)], k, values) == [(max(-16, min(47, v)),) for v in values]


def test_python_models_follow_the_law():
    for k in range(-20, 60):
        for x in (-129, -128, -65, -64, -3, -2, -1, 0, 1, 2, 3, 63, 64, 65, 2**40 + 2**20, -(2**40) - 2**20):
            assert rsat(x, k, 24) == exact(x, k, 24)[0]
    assert [shr(x, 1) for x in (-3, -1, 1, 3)] == [-1, 0, 1, 2]


def refuses(match: str, build) -> None:
    """A constructor must raise; what it leaves behind was never meant to be elaborated."""
    with pytest.raises(ValueError, match=match):
        build()
    gc.collect()


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("width", [0, 7, 65])
def test_widths_are_checked(width):
    refuses(f"width must be in 8..64, not {width}", lambda: RoundShift(width))


@pytest.mark.parametrize("acc_width", [9, 17, 18, 24, 30, 32])
def test_scaled_shift(acc_width):
    rng = random.Random(acc_width)
    top = 2 ** (acc_width - 1)
    values = [(acc, scale, k, 0) for acc in (-top, -1, 0, 1, top - 1) for scale in (0, 1, 32768, 65535)
              for k in (-512, -17, -16, -1, 0, 1, 20, 46, 47, 48, 511)]  # fmt: skip
    values += [(rng.randint(-top, top - 1), rng.getrandbits(16), rng.randint(-20, 50), rng.randint(0, 1))
               for _ in range(300)]  # fmt: skip
    dut = ScaledShift(acc_width)
    got = run(dut, ("acc", "scale", "k", "limit"), values, dut.LATENCY, stall=0.2)
    assert got == [exact(acc * scale, k, (32, 24)[limit]) for acc, scale, k, limit in values]


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("acc_width", [1, 33])
def test_accumulator_widths_are_checked(acc_width):
    refuses(f"acc_width must be in 2..32, not {acc_width}", lambda: ScaledShift(acc_width))
