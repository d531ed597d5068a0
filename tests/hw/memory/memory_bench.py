"""What the benches of the memory side share: a simulation that can run again, and both ends of a stream."""

import random

from amaranth.sim import Simulator

from fastcar_hw.config import AcceleratorConfig

#: Four bytes a beat, two bursts in flight, four of them in the FIFO.
SMALL = AcceleratorConfig(
    name="memory", cols=4, vector_width=2, burst_beats=4, outstanding=2, weight_fifo_depth=16, load_queue=4
)


class Pauses:
    """Random pauses of one end of a stream."""

    def __init__(self, probability: float, seed: int) -> None:
        self._probability, self._random = probability, random.Random(seed)

    def __call__(self) -> bool:
        """Return whether this end pauses in the coming cycle."""
        return bool(self._probability) and self._random.random() < self._probability


class Bench:
    """A simulation that can be run again and again: compiling it takes longer than most runs.

    A subclass adds its testbenches; a run ends with the last of them that is not in the background.
    """

    #: Cycles in which every run must end.
    LIMIT = 3000

    def __init__(self, dut) -> None:
        self.dut = dut
        self.sim = Simulator(dut)
        self.sim.add_clock(1e-6)
        self.sim.add_testbench(self._clock, background=True)
        self._fresh = True
        self.cycle = 0

    async def _clock(self, ctx) -> None:
        """Count cycles; added first, so the others see the number of the cycle that just ended."""
        self.cycle = -1
        async for _ in ctx.tick():
            self.cycle += 1
            assert self.cycle < self.LIMIT, "the simulation does not end"

    def simulate(self) -> None:
        """Run the testbenches from reset to their end."""
        if not self._fresh:
            self.sim.reset()
        self._fresh = False
        self.sim.run()


async def send(ctx, port, items, pauses=None) -> None:
    """Offer items, each until it is taken."""
    for item in items:
        while pauses is not None and pauses():
            await ctx.tick()
        ctx.set(port.valid, 1)
        ctx.set(port.payload, item)
        # No `until`: it cannot be given up in the middle, which happens to a testbench in the background.
        ready = False
        while not ready:
            _, _, ready = await ctx.tick().sample(port.ready)
        ctx.set(port.valid, 0)


async def receive(ctx, port, count, pauses=None) -> list:
    """Take items; ready comes and goes by itself, whether anything is offered or not."""
    items = []
    while len(items) < count:
        ready = pauses is None or not pauses()
        ctx.set(port.ready, ready)
        _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
        if valid and ready:
            items.append(payload)
    ctx.set(port.ready, 0)
    return items


def in_a_row(cycles) -> list[int]:
    """Return the distances of events."""
    return [b - a for a, b in zip(cycles, cycles[1:], strict=False)]
