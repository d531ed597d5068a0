"""Prefetcher with the beat FIFO, on a memory that judges every request."""

from dataclasses import dataclass
from functools import cache

import pytest
from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from axi_model import Behaviour, ReadMemory, content
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_bench import SMALL, Bench, Pauses, in_a_row, receive, send

from fastcar_hw.errors import ErrorCode
from fastcar_hw.isa import Dest, LoadClass
from fastcar_hw.memory.axi import Response
from fastcar_hw.memory.beat_fifo import BeatFifo
from fastcar_hw.memory.prefetcher import Prefetcher

#: A memory bus as it is used: 64 beats in flight hide a latency of 32 cycles.
LARGE = SMALL.replace(burst_beats=16, outstanding=4, weight_fifo_depth=128)
BEAT = SMALL.derived.beat_bytes
WINDOW = (0x1000, 0x8FFF)


class Pair(Elaboratable):
    """Prefetcher and FIFO; the matrix unit frees what it reads."""

    def __init__(self, config):
        self.prefetcher, self.fifo = Prefetcher(config), BeatFifo(config)

    def elaborate(self, platform):
        m = Module()
        m.submodules.prefetcher = prefetcher = self.prefetcher
        m.submodules.fifo = fifo = self.fifo
        wiring.connect(m, prefetcher.o, fifo.i)
        matrix = fifo.matrix.stream
        m.d.comb += [
            prefetcher.freed_count.eq(fifo.freed_count),
            fifo.flush.eq(prefetcher.clear),
            fifo.matrix.commit.eq(matrix.valid & matrix.ready),
        ]
        return m


@dataclass(frozen=True)
class Load:
    """A LOAD."""

    addr: int
    beats: int
    dest: Dest = Dest.MATRIX
    kind: LoadClass = LoadClass.WEIGHTS

    def command(self):
        return {"a": self.addr, "b": self.beats, "func": self.dest.value | self.kind.value << 2}

    def expected(self):
        return [content(self.addr + i * BEAT, BEAT) for i in range(self.beats)]


class PrefetchBench(Bench):
    """Loads in, beats out of the FIFO, and a watch on credits."""

    LIMIT = 6000

    def __init__(self, config):
        super().__init__(Pair(config))
        self.config = config
        self.unit, self.fifo = self.dut.prefetcher, self.dut.fifo
        self.memory = ReadMemory(config, self.unit.axi)
        self.sim.add_testbench(self.memory.serve, background=True)
        self.sim.add_testbench(self._watch, background=True)
        self.ports = {
            Dest.MATRIX: self.fifo.matrix.stream, Dest.VECTOR: self.fifo.vector, Dest.CTRL: self.fifo.ctrl
        }  # fmt: skip
        for process in (self._drive, self._matrix, self._vector, self._ctrl):
            self.sim.add_testbench(process)

    def run(self, loads, behaviour=None, *, pauses=(0.0,) * 4, seed=0, script=None, start=0):
        """Run loads to their end, or ``script(ctx)`` while nobody takes a beat but the script.

        The consumers begin after ``start`` cycles.
        """
        self.loads, self.script, self.start = loads, script, start
        self.memory.behave(behaviour or Behaviour(), WINDOW)
        self.pauses = [Pauses(probability, seed + i) for i, probability in enumerate(pauses)]
        self.got = {dest: [] for dest in Dest}
        self.classes = {kind: 0 for kind in LoadClass}
        self.freed = self.most_held = self.full = 0
        self.commanded = []
        self.simulate()

    async def _drive(self, ctx):
        unit = self.unit
        ctx.set(unit.window_base, WINDOW[0])
        ctx.set(unit.window_limit, WINDOW[1])
        if self.script is not None:
            await self.script(ctx)
            return
        for load in self.loads:
            await send(ctx, unit.command, [load.command()], self.pauses[0])
            self.commanded.append(self.cycle)
        assert ctx.get(unit.busy)
        await ctx.tick().until(~unit.busy)
        while not ctx.get(unit.quiet):
            await ctx.tick()

    async def _matrix(self, ctx):
        await self._take(ctx, Dest.MATRIX)

    async def _vector(self, ctx):
        await self._take(ctx, Dest.VECTOR)

    async def _ctrl(self, ctx):
        await self._take(ctx, Dest.CTRL)

    async def _take(self, ctx, dest):
        await ctx.tick().repeat(self.start + 1)
        count = 0 if self.script else sum(load.beats for load in self.loads if load.dest is dest)
        self.got[dest] = await receive(ctx, self.ports[dest], count, self.pauses[1 + dest.value])

    async def _watch(self, ctx):
        """Beats that were asked for fit the FIFO; those that arrive are counted by class."""
        unit, fifo = self.unit, self.fifo
        async for _, _, freed, valid, ready, kind, strobe, full, clear in ctx.tick().sample(
            fifo.freed_count, fifo.i.valid, fifo.i.ready, unit.beat_class, unit.beat_strobe, unit.full, unit.clear
        ):
            asked = self.memory.asked
            if clear:
                self.freed = asked
            self.most_held = max(self.most_held, asked - self.freed)
            self.freed += freed
            assert ready or not valid, "a beat came that the FIFO has no room for"
            self.full += full
            if strobe:
                self.classes[LoadClass(kind)] += 1

    def check(self):
        """Everything arrived, in order, and no limit was passed."""
        for dest in Dest:
            beats = [bytes(beat) for beat in self.got[dest]]
            assert beats == [beat for load in self.loads if load.dest is dest for beat in load.expected()]
        for kind in LoadClass:
            assert self.classes[kind] == sum(load.beats for load in self.loads if load.kind is kind)
        assert self.memory.most_in_flight <= self.config.outstanding
        assert self.most_held <= self.config.weight_fifo_depth

    async def load(self, ctx, *loads):
        """Queue loads (in a script)."""
        await send(ctx, self.unit.command, [load.command() for load in loads])

    async def quiet(self, ctx):
        """Wait until the bus is (in a script)."""
        while not ctx.get(self.unit.quiet):
            await ctx.tick()

    async def clear(self, ctx):
        """Forget everything (in a script)."""
        ctx.set(self.unit.clear, 1)
        await ctx.tick()
        ctx.set(self.unit.clear, 0)

    async def works(self, ctx, addr=0x2000):
        """Load a few beats as after a reset (in a script)."""
        load = Load(addr, 7, Dest.VECTOR)
        await self.load(ctx, load)
        assert [bytes(beat) for beat in await receive(ctx, self.ports[Dest.VECTOR], 7)] == load.expected()
        assert ctx.get(self.fifo.level) == 0
        assert ctx.get(self.unit.error) == ErrorCode.NONE


@cache
def bench(config=SMALL):
    return PrefetchBench(config)


def test_loads_reach_their_consumers():
    b = bench()
    b.run([
        Load(0x1000, 5), Load(0x2004, 1, Dest.CTRL, LoadClass.CONTROL), Load(0x8F00, 64, Dest.VECTOR, LoadClass.KV),
        Load(0x3000, 0), Load(0x1000, 3, Dest.VECTOR, LoadClass.REPLAY), Load(0x5000, 2, kind=LoadClass.PARAMS),
    ])  # fmt: skip
    b.check()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_loads_and_any_stalls(data):
    first, last = (value // BEAT for value in WINDOW)
    # Many start shortly before a 4 KiB boundary.
    start = st.integers(first, last) | st.builds(
        lambda page, before: 1024 * page - before, st.integers(first // 1024 + 1, last // 1024), st.integers(0, 9)
    )
    beats = st.integers(0, 24)
    load = st.builds(
        lambda start, beats, dest, kind: Load(BEAT * start, min(beats, last + 1 - start), dest, kind),
        start, beats, st.sampled_from(Dest), st.sampled_from(LoadClass),
    )  # fmt: skip
    pause = st.sampled_from([0.0, 0.3, 0.6])
    behaviour = st.builds(Behaviour, st.integers(1, 40), pause, pause, seed=st.integers(0, 999))
    b = bench(data.draw(st.sampled_from([SMALL, SMALL.replace(burst_beats=1, outstanding=1, weight_fifo_depth=4)])))
    b.run(
        data.draw(st.lists(load, min_size=1, max_size=6)), data.draw(behaviour),
        pauses=data.draw(st.tuples(*[pause] * 4)), seed=data.draw(st.integers(0, 999)),
    )  # fmt: skip
    b.check()


def test_bursts_are_as_long_as_they_may_be():
    """Whole bursts, a short one up to the 4 KiB boundary, and what is left."""
    b = bench()
    b.run([Load(0x1FE4, 20)])
    b.check()
    assert [(burst.addr, burst.beats) for burst in b.memory.requests] == [
        (0x1FE4, 4), (0x1FF4, 3), (0x2000, 4), (0x2010, 4), (0x2020, 4), (0x2030, 1)
    ]  # fmt: skip


def test_cycles_of_short_loads():
    """The first request leaves ``FIRST`` cycles after its command, then one every ``SETUP + 1`` of single bursts."""
    b = bench(LARGE)
    b.run([Load(0x1000 + 64 * i, 1) for i in range(8)])
    b.check()
    asked = [burst.cycle for burst in b.memory.requests]
    assert asked[0] == Prefetcher.FIRST + b.commanded[0]
    assert in_a_row(asked) == [Prefetcher.SETUP + 1] * 7


def test_cycles_of_bursts():
    """Within a load, requests follow each other in ``SETUP`` cycles until as many are in flight as may be."""
    b = bench(LARGE)
    b.run([Load(0x1000, 80)], Behaviour(latency=100))
    b.check()
    assert in_a_row([burst.cycle for burst in b.memory.requests][:4]) == [Prefetcher.SETUP] * 3
    # The fifth waits for the last beat of the first.
    assert b.memory.requests[4].cycle == b.memory.landed[15] + 2


def test_a_beat_a_cycle_whatever_the_latency():
    """A load, loads in a row, bursts cut at 4 KiB: from the first beat on, none is missing."""
    b = bench(LARGE)
    b.run([Load(0x1000, 200)] + [Load(0x1F80 + 0x40 * i, 16, Dest.VECTOR) for i in range(8)], Behaviour(latency=32))
    b.check()
    assert in_a_row(b.memory.landed) == [1] * 327


@pytest.mark.parametrize("limit", ["bursts in flight", "room in the FIFO"])
def test_the_longest_latency_that_is_hidden(limit):
    config = LARGE if limit == "bursts in flight" else LARGE.replace(outstanding=8, weight_fifo_depth=64)
    b = bench(config)
    hidden = Prefetcher.hidden_latency(config)
    assert hidden == {"bursts in flight": 47, "room in the FIFO": 43}[limit]
    for latency, complete in ((hidden, True), (hidden + 1, False)):
        b.run([Load(0x1000, 256)], Behaviour(latency=latency))
        b.check()
        assert (in_a_row(b.memory.landed) == [1] * 255) is complete
    # What holds it is what was said.
    assert (b.memory.most_in_flight == config.outstanding) is (limit == "bursts in flight")
    assert (b.full > 0) is (limit == "room in the FIFO")


def test_the_fifo_is_filled_and_never_overrun():
    """Nobody takes a beat for a while: as many are asked for as fit, and the rest when there is room again."""
    b = bench()
    b.run([Load(0x1000, 40), Load(0x2000, 40, Dest.VECTOR)], start=200)
    b.check()
    assert b.most_held == SMALL.weight_fifo_depth
    assert b.full > 100


@pytest.mark.parametrize(
    ("addr", "beats"),
    [
        (0x0FFC, 1), (0x0FFC, 2), (0x9000, 1), (0x8FFC, 2), (0x1000, 0x8000 // BEAT + 1), (0x1002, 1), (0x8FFF, 1),
        (0, 1), (0xFFFF_FFFC, 1), (0xFFFF_FFFC, 0x1000), (0x1000, 0xFFFF_FFFF), (0x1000, 0x4000_0000), (0x1001, 0),
    ],
)  # fmt: skip
def test_outside_of_the_window(addr, beats):
    """The error stays, the bus sees nothing of it, and nothing behind it."""
    b = bench()

    async def script(ctx):
        unit = b.unit
        await b.load(ctx, Load(addr, beats), Load(0x1000, 2), Load(0x2000, 2))
        await ctx.tick().repeat(30)
        assert ctx.get(unit.error) == ErrorCode.READ_WINDOW
        assert ctx.get(unit.error_address) == addr
        assert ctx.get(unit.quiet)
        assert not b.memory.requests
        await b.clear(ctx)
        assert ctx.get(unit.error) == ErrorCode.NONE
        assert not ctx.get(unit.busy)
        await b.works(ctx)
        assert b.memory.asked == 7

    b.run([], script=script)


@pytest.mark.parametrize(
    "load", [Load(0x1000, 1), Load(0x8FFC, 1), Load(0x1000, 0x8000 // BEAT), Load(0x9000, 0)],
    ids=["first", "last", "all", "nothing"],
)  # fmt: skip
def test_the_window_can_be_used_to_its_ends(load):
    b = bench()

    # Nobody takes the beats, so of the largest one only the beginning is asked for.
    async def script(ctx):
        await b.load(ctx, load)
        await ctx.tick().repeat(30)
        assert ctx.get(b.unit.error) == ErrorCode.NONE
        assert bool(b.memory.requests) == bool(load.beats)

    b.run([], script=script)


def test_the_window_may_be_all_addresses():
    b = bench()

    async def script(ctx):
        ctx.set(b.unit.window_base, 0)
        ctx.set(b.unit.window_limit, 0xFFFF_FFFF)
        b.memory.window = (0, 0xFFFF_FFFF)
        await b.load(ctx, Load(0, 1), Load(0xFFFF_FFE0, 8))
        await ctx.tick().repeat(30)
        assert ctx.get(b.unit.error) == ErrorCode.NONE
        await b.load(ctx, Load(0xFFFF_FFE0, 9))
        await ctx.tick().repeat(10)
        assert ctx.get(b.unit.error) == ErrorCode.READ_WINDOW
        assert b.memory.asked == 9

    b.run([], script=script)


@pytest.mark.parametrize("response", [Response.SLVERR, Response.DECERR], ids=lambda response: response.name)
def test_an_error_response(response):
    """Beats before it arrive, none after it; the address is that of its burst, also when more errors follow."""
    b = bench()
    behaviour = Behaviour(latency=20, failing=((0x2018, response), (0x2020, Response.SLVERR)))

    async def script(ctx):
        unit = b.unit
        await b.load(ctx, Load(0x2000, 16, Dest.VECTOR), Load(0x3000, 4))
        beats = await receive(ctx, b.ports[Dest.VECTOR], 6)
        assert [bytes(beat) for beat in beats] == Load(0x2000, 6).expected()
        await b.quiet(ctx)
        assert ctx.get(unit.error) == ErrorCode.READ_BUS
        assert ctx.get(unit.error_address) == 0x2010
        assert ctx.get(b.fifo.level) == 0
        assert sum(b.classes.values()) == 6
        await ctx.tick().repeat(30)
        # The third burst was in flight when the error came; no other was asked for.
        assert [burst.addr for burst in b.memory.requests] == [0x2000, 0x2010, 0x2020]
        await b.clear(ctx)
        await b.works(ctx, 0x4000)

    b.run([], behaviour, script=script)


def test_an_exclusive_okay_is_no_error():
    b = bench()
    b.run([Load(0x1000, 8)], Behaviour(failing=((0x1004, Response.EXOKAY),)))
    b.check()


@pytest.mark.parametrize("wait", range(16))
def test_halt_at_any_time(wait):
    """A request that was offered stays; what arrives is dropped; then the bus is quiet, and all can be cleared."""
    b = bench()
    # Requests are taken late, so some halts come while one is offered.
    behaviour = Behaviour(latency=9, ask_pause=0.7, seed=wait)

    async def script(ctx):
        unit = b.unit
        await b.load(ctx, Load(0x2000, 40), Load(0x3000, 40))
        await ctx.tick().repeat(wait + 1)
        ctx.set(unit.halt, 1)
        offered = ctx.get(unit.axi.ar.valid)
        before, level = b.memory.asked, ctx.get(b.fifo.level)
        assert not offered or not ctx.get(unit.quiet)
        await b.quiet(ctx)
        assert b.memory.asked == before + (4 if offered else 0)
        assert len(b.memory.landed) == b.memory.asked
        assert ctx.get(b.fifo.level) == level
        await ctx.tick().repeat(20)
        assert ctx.get(unit.quiet)
        assert len(b.memory.landed) == b.memory.asked == before + (4 if offered else 0)
        await b.clear(ctx)
        assert not ctx.get(unit.busy)
        ctx.set(unit.halt, 0)
        await b.works(ctx)

    b.run([], behaviour, script=script)


@pytest.mark.parametrize("wait", range(24))
def test_clear_whenever_quiet(wait):
    """Also without a halt before it, and while a burst waits for room: nothing of the old loads comes."""
    b = bench()

    async def script(ctx):
        await b.load(ctx, Load(0x2000, 18), Load(0x3000, 18))
        await ctx.tick().repeat(wait + 1)
        await b.quiet(ctx)
        await b.clear(ctx)
        assert not ctx.get(b.unit.busy)
        await b.works(ctx)

    b.run([], script=script)


def test_the_queue_holds_as_many_loads_as_it_says():
    """None is lost when no more are accepted; ``busy`` until the last one was turned into bursts."""
    b = bench()

    async def script(ctx):
        unit = b.unit
        ctx.set(unit.halt, 1)
        await b.load(ctx, *[Load(0x2000 + 4 * i, 1) for i in range(SMALL.load_queue)])
        ctx.set(unit.command.valid, 1)
        for _ in range(5):
            assert not ctx.get(unit.command.ready)
            assert ctx.get(unit.busy)
            assert ctx.get(unit.quiet)
            await ctx.tick()
        ctx.set(unit.command.valid, 0)
        ctx.set(unit.halt, 0)
        beats = await receive(ctx, b.ports[Dest.MATRIX], SMALL.load_queue)
        assert [bytes(beat) for beat in beats] == Load(0x2000, SMALL.load_queue).expected()
        assert not ctx.get(unit.busy)

    b.run([], script=script)
