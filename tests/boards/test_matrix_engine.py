"""The parts of the matrix board: memory port, engine, and what they refuse."""

import gc
import random

import numpy as np
import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from axi_master import Master, illegal_requests, simulate, traffic
from vector_reference import rsat

from boards import icebreaker
from boards.ice40 import Spram
from boards.matrix.engine import MatrixEngine
from boards.matrix.port import AxiPort, SinglePortMemory
from fastcar_hw.config import ConfigError

#: Vectors longer than what is read ahead, which the array takes at half the speed of the memory.
CONFIG = icebreaker.SPEC.config.replace(max_ffn=128)
DEPTH = 1024
#: A beat that a word of results does not fill.
WIDE = CONFIG.replace(cols=16, max_hidden=16, max_ffn=32, max_seq=32, max_head_dim=16)


class Shared(wiring.Component):
    """A memory behind AXI4, with grants that come and go."""

    def __init__(self, axi, seed=None):
        self.axi, self.stalls = axi, Signal(init=1)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.axi, m.submodules.memory = self.axi, (memory := SinglePortMemory(DEPTH, 64))
        wiring.connect(m, self.axi.port, memory.port)
        m.d.comb += self.axi.grant.eq(self.stalls)
        return m


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_bursts_reach_the_memory(pause):
    shared = Shared(AxiPort(20, 64, DEPTH))

    async def run(ctx):
        master = Master(shared.axi.read, shared.axi.write, seed=1, pause=pause)
        await traffic(ctx, master, [0] * DEPTH, 0, random.Random(2), 60)

    async def grants(ctx):
        rng = random.Random(3)
        while True:
            await ctx.tick()
            ctx.set(shared.stalls, rng.random() >= pause)

    simulate(shared, run, background=[grants])


def test_bursts_that_leave_the_memory_change_nothing():
    shared = Shared(AxiPort(20, 64, DEPTH))

    async def run(ctx):
        await illegal_requests(ctx, Master(shared.axi.read, shared.axi.write), 8 * DEPTH)

    simulate(shared, run)


def test_cycles_of_bursts():
    shared = Shared(AxiPort(20, 64, DEPTH))
    axi, found = shared.axi, []

    async def run(ctx):
        for port, payload in ((axi.read.ar, Master.request(0, 8)), (axi.write.aw, Master.request(0, 8))):
            for ready in (axi.read.r.ready, axi.write.b.ready, axi.write.w.valid):
                ctx.set(ready, 1)
            ctx.set(port.payload, payload)
            ctx.set(port.valid, 1)
            await ctx.tick()
            ctx.set(port.valid, 0)
            cycles = beats = 1
            while ctx.get(axi.active):
                ctx.set(axi.write.w.payload.last, beats == 8)
                await ctx.tick()
                cycles, beats = cycles + 1, beats + 1
                assert cycles < 100
            found.append(cycles)

    simulate(shared, run)
    # As the notes say: two cycles a beat and one, a cycle a beat and two.
    assert found == [17, 10]


class Multiplier(wiring.Component):
    """An engine with its memory, which a test bench reaches while the engine rests."""

    def __init__(self):
        self.engine = MatrixEngine(CONFIG, DEPTH)
        self.grant, self.load = Signal(init=1), Signal()
        self.addr, self.data = Signal(range(DEPTH)), Signal(CONFIG.derived.data_width)
        self.write, self.read = Signal(), Signal(CONFIG.derived.data_width)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self.engine
        m.submodules.memory = memory = SinglePortMemory(DEPTH, CONFIG.derived.data_width)
        mine = {"en": 1, "write": Mux(self.write, -1, 0), "addr": self.addr, "w_data": self.data}
        for name, value in mine.items():
            m.d.comb += getattr(memory.port, name).eq(Mux(self.load, value, getattr(engine.port, name)))
        m.d.comb += [
            engine.port.r_data.eq(memory.port.r_data),
            self.read.eq(memory.port.r_data),
            engine.grant.eq(self.grant),
        ]
        return m


def multiply(steps, tiles, shift, exponent, seed, stall):
    """Run a product; return the results, what they should be, and the cycles."""
    rng, cols = np.random.default_rng(seed), CONFIG.cols
    vector = rng.integers(-127, 128, steps)
    weights = rng.integers(-127, 128, (tiles, steps, cols))
    scales = rng.integers(0, 1 << 16, (tiles, cols))
    words = list(vector.astype(np.int8).view("<u4"))
    result, matrix = len(words), len(words) + tiles * cols
    words += [0] * (tiles * cols)
    for tile in range(tiles):
        words += list(scales[tile].astype("<u2").view("<u4")) + list(weights[tile].astype(np.int8).view("<u4")[:, 0])
    bench, found = Multiplier(), []

    async def run(ctx):
        ctx.set(bench.load, 1)
        ctx.set(bench.write, 1)
        for number, word in enumerate(words):
            ctx.set(bench.addr, number)
            ctx.set(bench.data, int(word))
            await ctx.tick()
        ctx.set(bench.write, 0)
        ctx.set(bench.load, 0)
        product = {"steps": steps, "tiles": tiles, "vector": 0, "matrix": matrix, "result": result, "shift": shift,
                   "exponent": exponent}  # fmt: skip
        ctx.set(bench.engine.product, product)
        ctx.set(bench.engine.start, 1)
        await ctx.tick()
        ctx.set(bench.engine.start, 0)
        random_ = random.Random(seed)
        cycles = 0
        while ctx.get(bench.engine.busy):
            assert cycles < 10_000
            ctx.set(bench.grant, random_.random() >= stall)
            await ctx.tick()
            cycles += 1
        ctx.set(bench.load, 1)
        for number in range(tiles * cols):
            ctx.set(bench.addr, result + number)
            await ctx.tick()
            value = ctx.get(bench.read)
            found.append(value - (1 << 32) if value >> 31 else value)
        found.append(cycles)

    simulate(bench, run)
    cycles = found.pop()
    acc = np.einsum("k,tkc->tc", vector, weights)
    want = [rsat(int(a) * int(s), shift - exponent) for a, s in zip(acc.ravel(), scales.ravel(), strict=True)]
    return found, want, cycles


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("steps", "tiles", "shift", "exponent"),
    [(4, 1, 9, 0), (16, 3, 20, -3), (32, 2, 12, 12), (8, 9, 47, 30), (128, 1, 15, 2)],
)
def test_products_are_those_of_the_law(steps, tiles, shift, exponent, stall):
    found, want, cycles = multiply(steps, tiles, shift, exponent, seed=steps, stall=stall)
    assert found == want
    if not stall:
        width = CONFIG.vector_width
        beats = steps // CONFIG.cols + tiles * (steps + 2) + tiles * CONFIG.cols
        assert beats <= cycles <= steps // width + tiles * (steps + 3 + 4 * width) + MatrixEngine.START


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_a_memory_that_is_no_whole_number_of_blocks_is_refused():
    # `test_netlist` simulates the blocks.
    for depth, width in ((0, 32), (1000, 32), (1 << 14, 8), (1 << 14, 0)):
        with pytest.raises(ConfigError, match="memory must be made of blocks of 16384 x 16 bits"):
            Spram(depth, width)
        gc.collect()


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AxiPort(12, 64, 1024), r"depth must be in 1..512 words, not 1024"),
        (lambda: MatrixEngine(CONFIG.replace(lanes=2, weight_fifo_depth=512), DEPTH), "lanes must be 1"),
        (lambda: MatrixEngine(WIDE, DEPTH), "vector_width must be at least cols/4"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
    gc.collect()
