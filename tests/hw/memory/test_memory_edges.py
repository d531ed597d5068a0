"""Memory side: edges of the window, answers that are not valid yet, a full FIFO, a long run, a halt while waiting."""

import pytest
from axi_model import Behaviour
from memory_bench import SMALL, Bench, in_a_row, receive, send
from test_prefetcher import LARGE, Load
from test_prefetcher import bench as prefetch_bench
from test_store_unit import StoreUnit, word
from test_store_unit import bench as store_bench

from fastcar_hw.errors import ErrorCode
from fastcar_hw.isa import Dest
from fastcar_hw.memory.axi import Response
from fastcar_hw.memory.beat_fifo import BeatFifo
from fastcar_hw.memory.prefetcher import Prefetcher

ERRORS = [Response.SLVERR, Response.DECERR]


def test_five_hundred_beats_in_as_many_cycles():
    """A latency of 32 cycles is hidden for good, not only until the FIFO was filled once."""
    b = prefetch_bench(LARGE)
    b.run([Load(0x1000, 500)], Behaviour(latency=32))
    b.check()
    assert in_a_row(b.memory.landed) == [1] * 499


@pytest.mark.parametrize("response", ERRORS, ids=lambda response: response.name)
def test_a_read_response_counts_only_while_it_is_valid(response):
    """A memory may show anything before its beats: AXI gives a response no meaning without valid."""
    b = Bench(Prefetcher(SMALL))

    async def process(ctx):
        dut = b.dut
        ar, r = dut.axi.ar, dut.axi.r
        ctx.set(dut.window_limit, 0xFFFF_FFFF)
        ctx.set(r.payload.resp, response)
        ctx.set(ar.ready, 1)
        await send(ctx, dut.command, [Load(0x1000, 2).command()])
        while not ctx.get(ar.valid):
            assert ctx.get(dut.error) == ErrorCode.NONE
            await ctx.tick()
        await ctx.tick()
        for _ in range(10):
            assert not ctx.get(dut.o.valid)
            assert ctx.get(dut.error) == ErrorCode.NONE
            await ctx.tick()
        for number in range(2):
            ctx.set(r.payload, {"data": 7 + number, "resp": Response.OKAY, "last": number == 1})
            ctx.set(r.valid, 1)
            assert ctx.get(r.ready)
            assert ctx.get(dut.o.valid)
            assert ctx.get(dut.o.payload.beat.as_value()) == 7 + number
            await ctx.tick()
        ctx.set(r.valid, 0)
        ctx.set(r.payload.resp, response)
        await ctx.tick().repeat(5)
        assert ctx.get(dut.error) == ErrorCode.NONE
        assert ctx.get(dut.quiet)

    b.sim.add_testbench(process)
    b.simulate()


@pytest.mark.parametrize("response", ERRORS, ids=lambda response: response.name)
def test_a_write_response_counts_only_while_it_is_valid(response):
    b = Bench(StoreUnit(SMALL))

    async def process(ctx):
        dut = b.dut
        ctx.set(dut.window_limit, 0xFFFF_FFFF)
        ctx.set(dut.axi.b.payload.resp, response)
        ctx.set(dut.axi.aw.ready, 1)
        ctx.set(dut.axi.w.ready, 1)
        await send(ctx, dut.command, [word(0x1000, 5).command()])
        while not ctx.get(dut.axi.w.valid):
            assert ctx.get(dut.error) == ErrorCode.NONE
            await ctx.tick()
        await ctx.tick().repeat(10)
        assert ctx.get(dut.error) == ErrorCode.NONE
        assert ctx.get(dut.busy)
        assert not ctx.get(dut.quiet)
        ctx.set(dut.axi.b.payload.resp, Response.OKAY)
        ctx.set(dut.axi.b.valid, 1)
        assert ctx.get(dut.axi.b.ready)
        await ctx.tick()
        ctx.set(dut.axi.b.valid, 0)
        ctx.set(dut.axi.b.payload.resp, response)
        await ctx.tick().repeat(5)
        assert ctx.get(dut.error) == ErrorCode.NONE
        assert ctx.get(dut.quiet)
        assert not ctx.get(dut.busy)

    b.sim.add_testbench(process)
    b.simulate()


@pytest.mark.parametrize(
    ("window", "addr", "allowed"),
    [
        ((0x1FFF, 0x2007), 0x2000, True), ((0x2000, 0x2007), 0x2000, True), ((0x2001, 0x3000), 0x2000, False),
        ((0x1000, 0x2006), 0x2000, False), ((0x1000, 0x2008), 0x2000, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_window_that_ends_within_a_beat(kind, window, addr, allowed):
    """Eight bytes: two beats of a load, one of a store.  Both ends count to the byte."""
    b = prefetch_bench() if kind == "read" else store_bench()
    code = ErrorCode.READ_WINDOW if kind == "read" else ErrorCode.WRITE_WINDOW

    async def script(ctx):
        unit = b.unit if kind == "read" else b.dut
        ctx.set(unit.window_base, window[0])
        ctx.set(unit.window_limit, window[1])
        b.memory.window = window
        await send(ctx, unit.command, [(Load(addr, 2) if kind == "read" else word(addr, 1)).command()])
        await ctx.tick().repeat(20)
        assert ctx.get(unit.error) == (ErrorCode.NONE if allowed else code)
        assert len(b.memory.requests) == allowed

    b.run([], script=script)


def test_a_full_fifo_takes_nothing():
    """Whoever fills without credits waits: no beat is lost, and none of those inside is overwritten."""
    b = Bench(BeatFifo(SMALL))
    depth = SMALL.weight_fifo_depth

    def item(number):
        return {"dest": Dest.CTRL, "beat": [number, 1, 2, 3]}

    async def process(ctx):
        port = b.dut.i
        ctx.set(port.valid, 1)
        for number in range(depth):
            ctx.set(port.payload, item(number))
            assert ctx.get(port.ready)
            await ctx.tick()
        ctx.set(port.payload, item(depth))
        for _ in range(5):
            assert not ctx.get(port.ready)
            assert ctx.get(b.dut.level) == depth
            await ctx.tick()
        (first,) = await receive(ctx, b.dut.ctrl, 1)
        assert ctx.get(port.ready)
        await ctx.tick()
        ctx.set(port.valid, 0)
        beats = [first, *await receive(ctx, b.dut.ctrl, depth)]
        assert [beat[0] for beat in beats] == list(range(depth + 1))
        assert ctx.get(b.dut.level) == 0

    b.sim.add_testbench(process)
    b.simulate()


def test_halt_while_a_store_waits_for_its_place_in_flight():
    """Its request was not offered yet, so it never is, though places become free."""
    b = store_bench()
    most = StoreUnit.OUTSTANDING

    async def script(ctx):
        dut = b.dut
        await b.store(ctx, *[word(0x2000 + 8 * i, i) for i in range(most + 1)])
        while len(b.memory.requests) < most:
            await ctx.tick()
        await ctx.tick().repeat(10)
        assert not b.memory.answered
        assert not ctx.get(dut.axi.aw.valid)
        ctx.set(dut.halt, 1)
        await b.quiet(ctx)
        await ctx.tick().repeat(10)
        assert len(b.memory.requests) == len(b.memory.answered) == most
        await b.clear(ctx)
        ctx.set(dut.halt, 0)
        await b.works(ctx, 0x5000)

    b.run(behaviour=Behaviour(latency=200), script=script)
