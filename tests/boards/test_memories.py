"""Memories of boards behind AXI4: every byte, bad requests, cycle counts."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from axi_master import Master, illegal_requests, simulate, traffic

from boards.arbiter import AxiArbiter
from boards.onchip import OnChipMemory
from fastcar_hw.config import ConfigError

SIZE = 1024


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_two_masters_share_a_memory_and_each_sees_its_own_bytes(pause):
    m = Module()
    m.submodules.arbiter = arbiter = AxiArbiter(20, 64)
    m.submodules.memory = memory = OnChipMemory(20, 64, SIZE)
    wiring.connect(m, arbiter.read, memory.read)
    wiring.connect(m, arbiter.write, memory.write)
    half = SIZE // 2

    def bench(number):
        async def run(ctx):
            master = Master(arbiter.reads[number], arbiter.writes[number], seed=number, pause=pause)
            await traffic(ctx, master, [0] * (half // 8), number * half, random.Random(number + 10), 60)

        return run

    simulate(m, bench(0), bench(1))


def test_illegal_requests_change_nothing():
    m = Module()
    m.submodules.memory = memory = OnChipMemory(20, 64, SIZE)

    async def run(ctx):
        await illegal_requests(ctx, Master(memory.read, memory.write), SIZE)

    simulate(m, run)


def test_a_beat_a_cycle():
    m = Module()
    m.submodules.memory = memory = OnChipMemory(20, 64, SIZE)

    async def run(ctx):
        ctx.set(memory.read.ar.payload, Master.request(0, 64))
        ctx.set(memory.read.ar.valid, 1)
        ctx.set(memory.read.r.ready, 1)
        await ctx.tick()
        ctx.set(memory.read.ar.valid, 0)
        for _ in range(OnChipMemory.LATENCY - 1):
            assert not ctx.get(memory.read.r.valid)
            await ctx.tick()
        for number in range(64):
            assert ctx.get(memory.read.r.valid) and ctx.get(memory.read.r.payload.last) == (number == 63)
            await ctx.tick()
        assert not ctx.get(memory.read.r.valid)

    simulate(m, run)


@pytest.mark.parametrize(
    ("size", "message"), [(0, "positive multiple"), (12, "positive multiple"), (1 << 21, "at most")]
)
@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_a_size_that_is_none_is_refused(size, message):
    import gc

    with pytest.raises(ConfigError, match=message):
        OnChipMemory(20, 64, size)
    gc.collect()
