"""Blocks of the vector unit: gearbox, trees, score memory, pipeline."""

import random

import pytest
from amaranth.hdl import Elaboratable, Module, Signal, signed
from amaranth.sim import Simulator
from vector_reference import exp2neg, rsat, shr, sigmoid

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.numerics.rounding import RoundShift
from fastcar_hw.vector.gearbox import Gearbox
from fastcar_hw.vector.pipeline import First, Second, VectorPipeline
from fastcar_hw.vector.reduce import maximum, total, tree, tree_latency
from fastcar_hw.vector.scores import ScoreMemory

CONFIG = AcceleratorConfig(
    name="blocks", cores=1, rows=1, cols=16, lanes=1, vector_width=2, weight_fifo_depth=64, burst_beats=16,
    max_hidden=16, max_ffn=16, max_layers=1, max_heads=1, max_head_dim=16, max_seq=16,
)  # fmt: skip


def run(dut, *testbenches, cycles=20_000):
    """Run until the first test bench has ended; the others accompany it."""
    finished = []

    async def first(ctx):
        await testbenches[0](ctx)
        finished.append(True)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(first)
    for other in testbenches[1:]:
        sim.add_testbench(other, background=True)
    sim.run_until(cycles * 1e-6)
    assert finished, "simulation timed out"


# --- gearbox ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_gearbox_hands_out_words_and_drops_what_is_left(pause):
    """Vectors of 1 to 9 words, each behind a header that is skipped; four words a beat."""
    rng = random.Random(1)
    dut, words = Gearbox(CONFIG), CONFIG.derived.words_per_beat
    vectors = [[[rng.randrange(-(1 << 15), 1 << 15) for _ in range(2)] for _ in range(n)] for n in range(1, 10)]
    beats = []
    for vector in vectors:
        beats.append([len(vector)] * 16)
        raw = [b for word in vector for v in word for b in (v & 0xFFFF).to_bytes(2, "little")]
        raw += [0xEE] * (-len(raw) % 16)
        beats += [raw[i : i + 16] for i in range(0, len(raw), 16)]
    cycles = 0

    async def feed(ctx):
        for beat in beats:
            while rng.random() < pause:
                await ctx.tick()
            ctx.set(dut.beats.payload, beat)
            ctx.set(dut.beats.valid, 1)
            await ctx.tick().until(dut.beats.ready)
            ctx.set(dut.beats.valid, 0)
            ctx.set(dut.beats.payload, [0xDD] * 16)
        await ctx.tick().repeat(1000)

    async def take(ctx):
        nonlocal cycles
        for vector in vectors:
            ctx.set(dut.skip, 1)
            (header,) = await ctx.tick().sample(dut.beats.payload[0]).until(dut.beats.valid)
            assert header == len(vector)
            ctx.set(dut.skip, 0)
            got = []
            while len(got) < len(vector):
                ready = rng.random() >= pause
                ctx.set(dut.o.ready, ready)
                _, _, valid, word = await ctx.tick().sample(dut.o.valid, dut.o.payload)
                cycles += 1
                if ready and valid:
                    got.append(list(word))
            assert got == vector
            # A strobe: a beat that was used up has left already, and the next one stays, also for a ready consumer.
            ctx.set(dut.o.ready, 1)
            ctx.set(dut.drop, 1)
            _, _, valid = await ctx.tick().sample(dut.o.valid)
            assert not valid
            ctx.set(dut.o.ready, 0)
            ctx.set(dut.drop, 0)

    run(dut, take, feed)
    assert words == 4
    if not pause:
        assert cycles == sum(map(len, vectors))


# --- trees --------------------------------------------------------------------------------------------------


class Trees(Elaboratable):
    """Trees over different numbers of elements."""

    sizes = (1, 2, 3, 5, 8)

    def __init__(self) -> None:
        self.en = Signal()
        self.values = [Signal(signed(7), name=f"value_{i}") for i in range(max(self.sizes))]
        self.largest, self.sums = {}, {}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for size in self.sizes:
            values = self.values[:size]
            for store, combine, name in ((self.largest, maximum, "max"), (self.sums, total, "sum")):
                found = tree(m, values, combine, self.en, f"{name}_{size}")
                store[size] = found
        return m


def test_trees_reduce_any_number_of_elements():
    rng = random.Random(2)
    dut = Trees()
    history: list[list[int]] = []

    async def testbench(ctx):
        for _ in range(300):
            values = [rng.choice((-64, 63, rng.randrange(-64, 64))) for _ in dut.values]
            en = rng.random() < 0.7
            ctx.set(dut.en, en)
            for signal, value in zip(dut.values, values, strict=True):
                ctx.set(signal, value)
            await ctx.tick()
            if en:
                history.append(values)
            for size in dut.sizes:
                if len(history) >= tree_latency(size):
                    past = history[-tree_latency(size)][:size]
                    assert ctx.get(dut.largest[size]) == max(past)
                    assert ctx.get(dut.sums[size]) == sum(past)

    run(dut, testbench)
    assert [tree_latency(size) for size in dut.sizes] == [1, 1, 2, 3, 3]


# --- score memory -------------------------------------------------------------------------------------------


def test_score_memory_keeps_the_maxima_of_two_banks_apart():
    """Words of both banks interleaved, written weights in between; maxima stand when nothing settles."""
    rng = random.Random(3)
    config = CONFIG.replace(vector_width=4)
    dut, w, depth = ScoreMemory(config), 4, 4
    memory, exponents = [[None] * depth for _ in range(2)], [[None] * depth for _ in range(2)]
    largest, ve_largest = [0, 0], [0, 0]

    async def testbench(ctx):
        for step in range(250):
            bank, addr = rng.randrange(2), rng.randrange(depth)
            first = step < 2 or rng.random() < 0.1
            bank = step if step < 2 else bank
            data = [rng.choice((-(1 << 23), (1 << 23) - 1, rng.randrange(-(1 << 23), 1 << 23))) for _ in range(w)]
            ve, mask = [rng.randrange(26) for _ in range(w)], rng.randrange(1, 1 << w)
            valid, write = step < 2 or rng.random() < 0.7, step > 2 and rng.random() < 0.3
            ctx.set(dut.i.payload, {"bank": bank, "addr": addr, "data": data, "ve": ve, "mask": mask, "first": first})
            ctx.set(dut.i.valid, valid)
            weights = [rng.randrange(1 << 15) for _ in range(w)]
            ctx.set(dut.write_en, write)
            ctx.set(dut.write_bank, 1 - bank)
            ctx.set(dut.write_addr, addr)
            ctx.set(dut.write_data, weights)
            assert ctx.get(dut.i.ready) == (not write)
            await ctx.tick()
            if write:
                memory[1 - bank][addr] = weights
            elif valid:
                memory[bank][addr], exponents[bank][addr] = data, ve
                counted = [i for i in range(w) if mask >> i & 1]
                start = (-(1 << 23), 0) if first else (largest[bank], ve_largest[bank])
                largest[bank] = max(start[0], *(data[i] for i in counted))
                ve_largest[bank] = max(start[1], *(ve[i] for i in counted))
                # Two levels of the tree for four elements.
                assert ctx.get(dut.settling)
            if step % 5 == 4:
                ctx.set(dut.i.valid, 0)
                ctx.set(dut.write_en, 0)
                waited = 0
                while ctx.get(dut.settling):
                    await ctx.tick()
                    waited += 1
                assert waited <= tree_latency(w)
                for number in range(2):
                    ctx.set(dut.bank, number)
                    assert (ctx.get(dut.largest), ctx.get(dut.ve_largest)) == (largest[number], ve_largest[number])
        ctx.set(dut.i.valid, 0)
        ctx.set(dut.write_en, 0)
        ctx.set(dut.read_en, 1)
        for number in range(2):
            for addr in range(depth):
                ctx.set(dut.read_bank, number)
                ctx.set(dut.read_addr, addr)
                await ctx.tick()
                assert list(ctx.get(dut.score)) == memory[number][addr]
                assert list(ctx.get(dut.ve)) == exponents[number][addr]
        # Without the enable the last word stays.
        ctx.set(dut.read_en, 0)
        ctx.set(dut.read_addr, 0)
        await ctx.tick()
        assert list(ctx.get(dut.score)) == memory[1][depth - 1]

    run(dut, testbench)


# --- pipeline -----------------------------------------------------------------------------------------------

LIMITS = {RoundShift.LIMIT_32: 32, RoundShift.LIMIT_16: 16, RoundShift.LIMIT_SYM16: 16}


def clamp(x: int, k: int, limit: int) -> int:
    value = rsat(x, k, LIMITS[limit])
    return max(value, -32767) if limit == RoundShift.LIMIT_SYM16 else value


class PipelineInput:
    """Operands of a word, and what the pipeline must make of them."""

    def __init__(self, rng: random.Random, settings: dict, shared: dict) -> None:
        def values(bits: int, low: int | None = None) -> list[int]:
            low = -(1 << (bits - 1)) if low is None else low
            return [rng.randrange(low, 1 << (bits - 1)) >> rng.randrange(bits) for _ in range(2)]

        exp = settings["first"] is First.EXP
        self.a = [shared["reference"] - (rng.randrange(1 << 24) >> rng.randrange(24)) for _ in range(2)] \
            if exp else values(32)
        self.a = [max(v, -(1 << 23)) for v in self.a] if exp else self.a
        self.ve = [rng.randrange(shared["ve_max"] + 1) for _ in range(2)]
        self.mask = rng.randrange(4)
        self.params, self.other = values(16), values(32)
        s = settings
        self.moved = [clamp(v, s["k0"], s["limit0"]) for v in self.a]
        # Elements that do not count may have any distance.
        self.exp = [exp2neg(shared["reference"] - v) if self.mask >> i & 1 and exp else 0 for i, v in enumerate(self.a)]
        weights = [shr(e, shared["ve_max"] - v) for e, v in zip(self.exp, self.ve, strict=True)]
        self.square = [
            {
                First.PASS: x,
                First.SQUARE: x * x,
                First.SCALAR: x * s["scalar"],
                First.COSINE: x * self.params[0],
                First.SIGMOID: a * (sigmoid(x) if abs(x) <= 32768 else 0),
                First.EXP: weight,
            }[s["first"]]
            for x, a, weight in zip(self.moved, self.a, weights, strict=True)
        ]
        b = [clamp(v, s["k1"], s["limit1"]) for v in self.square]
        match s["second"]:
            case Second.PASS:
                product = b
            case Second.PARAM:
                product = [x * y for x, y in zip(b, self.params, strict=True)]
            case Second.OTHER:
                product = [x * y for x, y in zip(self.other, b, strict=True)]
            case Second.SINE:
                sine = [x * self.params[1] for x in self.moved[::-1]]
                product = [self.square[0] - sine[0], self.square[1] + sine[1]]
        self.r = [rsat(v, s["k2"]) for v in product]
        self.saturated = sum((rsat(v, s["k2"], 60) != rsat(v, s["k2"])) << i for i, v in enumerate(product))


#: Combinations that the passes use.
SETTINGS = [
    {"first": First.PASS, "second": Second.PASS, "k0": -5, "limit0": RoundShift.LIMIT_32},
    {"first": First.SQUARE, "second": Second.PASS, "k0": 12, "limit0": RoundShift.LIMIT_SYM16},
    {"first": First.SCALAR, "second": Second.PARAM, "k0": 9, "limit0": RoundShift.LIMIT_SYM16, "k1": 3, "k2": 11},
    {"first": First.COSINE, "second": Second.SINE, "k2": 14},
    {"first": First.EXP, "second": Second.PASS},
    {"first": First.SIGMOID, "second": Second.OTHER, "k0": 14, "limit0": RoundShift.LIMIT_16, "k1": 28,
     "limit1": RoundShift.LIMIT_16, "k2": 10},
    {"first": First.PASS, "second": Second.PASS, "k0": 14, "limit0": RoundShift.LIMIT_SYM16, "k1": -8, "k2": -9},
]  # fmt: skip


def test_pipeline_stages_are_where_they_are_stated():
    """Operands that enter late, results that leave early; nothing moves without the enable."""
    rng = random.Random(4)
    dut = VectorPipeline(CONFIG)

    async def testbench(ctx):
        for number, chosen in enumerate(SETTINGS):
            settings = {"k0": 0, "k1": 0, "k2": 0, "limit0": 0, "limit1": 0, "scalar": rng.randrange(1 << 16)} | chosen
            shared = {"reference": rng.randrange(1 << 22), "ve_max": rng.randrange(26)}
            words = [PipelineInput(rng, settings, shared) for _ in range(30)]
            ctx.set(dut.settings, settings)
            ctx.set(dut.reference, shared["reference"])
            ctx.set(dut.ve_max, shared["ve_max"])
            step = 0
            while step < len(words) + dut.LATENCY:
                en = rng.random() < 0.8
                ctx.set(dut.en, en)
                for stage, names in ((0, ("a", "ve", "mask")), (dut.PARAM_STAGE, ("params",)),
                                     (dut.OTHER_STAGE, ("other",))):  # fmt: skip
                    # Other operands than the word's own, before and after.
                    word = words[(step - stage) % len(words)]
                    for name in names:
                        ctx.set(getattr(dut, name), getattr(word, name))
                if en:
                    self_check(ctx, number, step, words, settings)
                await ctx.tick()
                step += en

    def self_check(ctx, number, step, words, settings):
        outputs = [(dut.PARAM_STAGE, "mantissa", "moved"), (dut.LATENCY, "r", "r"), (dut.LATENCY, "saturated", None)]
        if settings["first"] is First.EXP:
            outputs.append((dut.EXP_STAGE, "exp", "exp"))
        if settings["first"] is First.SQUARE:
            outputs.append((dut.SQUARE_STAGE, "square", "square"))
        for stage, port, expected in outputs:
            if not 0 <= step - stage < len(words):
                continue
            word = words[step - stage]
            got = ctx.get(getattr(dut, port))
            if port == "saturated":
                assert got == word.saturated, (number, port)
            elif port != "mantissa" or settings["limit0"] == RoundShift.LIMIT_SYM16:
                assert list(got) == getattr(word, expected), (number, port)

    run(dut, testbench)
    assert dut.LATENCY == 17
