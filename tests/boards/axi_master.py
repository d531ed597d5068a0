"""A master of AXI4 for tests of slaves: random pauses on every channel."""

import random

from amaranth.sim import Simulator

from fastcar_hw.memory.axi import BURST_INCR, Response

__all__ = ["Master", "illegal_requests", "merged", "simulate", "traffic"]


class Master:
    """Requests of one master, with pauses on every channel."""

    def __init__(self, read, write, seed=0, pause=0.0):
        self.r, self.w, self.rng, self.pause = read, write, random.Random(seed), pause

    async def rest(self, ctx):
        while self.rng.random() < self.pause:
            await ctx.tick()

    async def offer(self, ctx, port, payload):
        await self.rest(ctx)
        ctx.set(port.payload, payload)
        ctx.set(port.valid, 1)
        taken = False
        while not taken:
            _, _, taken = await ctx.tick().sample(port.ready)
        ctx.set(port.valid, 0)

    async def take(self, ctx, port):
        await self.rest(ctx)
        ctx.set(port.ready, 1)
        there = False
        while not there:
            _, _, there, payload = await ctx.tick().sample(port.valid, port.payload)
        ctx.set(port.ready, 0)
        return payload

    @staticmethod
    def request(address, beats, size=3, burst=BURST_INCR):
        return {"addr": address, "len": beats - 1, "size": size, "burst": burst}

    async def read(self, ctx, address, beats, **options):
        """Return the beats and their responses."""
        await self.offer(ctx, self.r.ar, self.request(address, beats, **options))
        found = [await self.take(ctx, self.r.r) for _ in range(beats)]
        assert [beat.last for beat in found] == [0] * (beats - 1) + [1]
        return [beat.data for beat in found], {Response(beat.resp) for beat in found}

    async def write(self, ctx, address, data, strobes=None, **options):
        """Return the response."""
        strobes = strobes or [255] * len(data)
        await self.offer(ctx, self.w.aw, self.request(address, len(data), **options))
        for number, (beat, strobe) in enumerate(zip(data, strobes, strict=True)):
            await self.offer(ctx, self.w.w, {"data": beat, "strb": strobe, "last": number == len(data) - 1})
        return Response((await self.take(ctx, self.w.b)).resp)


def simulate(m, *benches, background=()):
    """Run until all benches have ended; those in the background may go on for ever."""
    sim = Simulator(m)
    sim.add_clock(1e-6)
    for bench in benches:
        sim.add_testbench(bench)
    for bench in background:
        sim.add_testbench(bench, background=True)
    sim.run()


def merged(old, new, strobe):
    mask = sum(255 << 8 * n for n in range(8) if strobe >> n & 1)
    return (old & ~mask) | (new & mask)


async def traffic(ctx, master, content, base, rng, rounds):
    """Random bursts against a list of beats that only this master changes."""
    for _ in range(rounds):
        beats = rng.randrange(1, 9)
        first = rng.randrange(len(content) - beats + 1)
        if rng.random() < 0.5:
            data = [rng.getrandbits(64) for _ in range(beats)]
            strobes = [rng.choice([255, 255, 0x0F, 0xA5, 0]) for _ in range(beats)]
            assert await master.write(ctx, base + 8 * first, data, strobes) is Response.OKAY
            for n in range(beats):
                content[first + n] = merged(content[first + n], data[n], strobes[n])
        else:
            found, responses = await master.read(ctx, base + 8 * first, beats)
            assert found == content[first : first + beats] and responses == {Response.OKAY}


async def illegal_requests(ctx, master, size):
    """Make requests that a memory of so many bytes cannot serve; all of it must stay zero."""
    for address, beats, options in ((size, 1, {}), (size - 8, 2, {}), (4, 1, {}), (0, 1, {"size": 2}),
                                    (0, 2, {"burst": 0})):  # fmt: skip
        assert await master.write(ctx, address, [1] * beats, **options) is Response.SLVERR
        assert (await master.read(ctx, address, beats, **options))[1] == {Response.SLVERR}
    for first in range(0, size // 8, 16):
        assert (await master.read(ctx, 8 * first, 16))[0] == [0] * 16
