"""Table functions and rounding: gates against their models, models against float64."""

import math
import random

import pytest
from amaranth.sim import Simulator

from fastcar_hw.numerics.divider import Reciprocal
from fastcar_hw.numerics.exp2neg import Exp2Neg
from fastcar_hw.numerics.rounding import MAX_SHIFT, MIN_SHIFT, RoundShift, rsat
from fastcar_hw.numerics.rsqrt import ReciprocalSqrt
from fastcar_hw.numerics.sigmoid import Sigmoid


def run(dut, testbench, cycles=2_000_000):
    finished = []

    async def bench(ctx):
        await testbench(ctx)
        finished.append(True)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run_until(cycles * 1e-6)
    assert finished, "simulation timed out"


def pipeline(dut, inputs, output, values, latency, stall=0.2):
    """Feed values with random stalls; return what comes out, in order."""
    rng = random.Random(1)
    results = []

    async def testbench(ctx):
        moved = 0
        while moved < len(values) + latency:
            en = rng.random() >= stall
            ctx.set(dut.en, en)
            if moved < len(values):
                for port, value in zip(inputs, values[moved], strict=True):
                    ctx.set(port, value)
            await ctx.tick()
            moved += en
            if en and moved >= latency:
                results.append(ctx.get(output))

    run(dut, testbench)
    return results[: len(values)]


def test_exp2neg_is_its_model_everywhere_and_within_its_bound():
    values = list(range(0, 17 * 4096, 29)) + [65535, 65536, 69631, 69632, 2**20, 2**24 + 5, 2**25 - 1]
    dut = Exp2Neg()
    assert pipeline(dut, [dut.d], dut.o, [(v,) for v in values], dut.LATENCY) == [dut.model(v) for v in values]
    worst = max(abs(Exp2Neg.model(d) - 2**15 * 2 ** (-d / 4096)) for d in range(18 * 4096))
    assert worst <= 1.5


def test_sigmoid_is_its_model_everywhere_and_within_its_bound():
    values = [*range(-32768, 32768, 41), -32768, -32767, 32767, -1, 0, 1]
    dut = Sigmoid()
    assert pipeline(dut, [dut.z], dut.o, [(v,) for v in values], dut.LATENCY) == [dut.model(v) for v in values]
    worst = max(abs(Sigmoid.model(z) - 2**15 / (1 + math.exp(-z / 2048))) for z in range(-32768, 32768))
    assert worst <= 3


def test_rsqrt():
    rng = random.Random(2)
    values = [0, 1, 2, 3, 4, 5, 2**48 - 1, *(2**i for i in range(48)), *(2**i - 1 for i in range(2, 48))]
    values += [rng.getrandbits(rng.randint(1, 48)) for _ in range(400)]
    dut = ReciprocalSqrt()

    async def testbench(ctx):
        for value in values:
            ctx.set(dut.v, value)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            cycles = 1
            while not ctx.get(dut.done):
                await ctx.tick()
                cycles += 1
            assert cycles == dut.LATENCY
            assert (ctx.get(dut.r), ctx.get(dut.h)) == dut.model(value), value

    run(dut, testbench)
    for value in filter(None, values):
        r, h = ReciprocalSqrt.model(value)
        assert r * 2.0 ** (-16 - h) * math.sqrt(value) == pytest.approx(1, abs=1e-4)


def test_reciprocal_is_exact():
    rng = random.Random(3)
    values = [1, 2, 3, 32767, 32768, 32769, 65535, 2**31, 2**32 - 1] + [rng.getrandbits(32) | 1 for _ in range(100)]
    dut = Reciprocal()

    async def testbench(ctx):
        for value in values:
            ctx.set(dut.x, value)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            await ctx.tick().until(dut.done)
            assert (ctx.get(dut.o), ctx.get(dut.bits)) == dut.model(value), value

    run(dut, testbench)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_round_shift_exhaustive_at_small_width(limit):
    width = {0: 32, 1: 24, 2: 16, 3: 16}[limit]
    values = [(x, k, limit) for k in range(MIN_SHIFT, 12) for x in range(-128, 128, 3 + (k % 3))]
    dut = RoundShift(8)
    expected = [rsat(x, k, width) for x, k, _ in values]
    if limit == 3:
        expected = [max(-32767, y) for y in expected]
    assert pipeline(dut, [dut.x, dut.k, dut.limit], dut.o, values, dut.LATENCY) == expected


def test_round_shift_random_at_full_width():
    rng = random.Random(4)
    edges = [0, 1, -1, 2**47 - 1, -(2**47)]
    values = [
        (rng.choice(edges) if rng.random() < 0.2 else rng.getrandbits(rng.randint(1, 47)) * rng.choice((1, -1)),
         rng.randint(MIN_SHIFT, MAX_SHIFT), 0)
        for _ in range(1500)
    ]  # fmt: skip
    dut = RoundShift(48)
    expected = [rsat(x, k) for x, k, _ in values]
    assert pipeline(dut, [dut.x, dut.k, dut.limit], dut.o, values, dut.LATENCY) == expected
