"""Bench of the vector unit: a table for places, random stalls, the matrix unit's traffic beside its passes."""

import random
from dataclasses import dataclass, field
from functools import cache

from amaranth.hdl import Cat, Elaboratable, Module
from amaranth.lib import data, memory
from amaranth.sim import Simulator
from vector_reference import Effects, Job

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.vector import VectorUnit


def places(config: AcceleratorConfig) -> dict[tuple[int, int], tuple[int, int]]:
    """(core, index) of each (lane, mapped); the mapped ones are in reverse order, so that they differ."""
    found = {}
    for lane in range(config.lanes):
        for mapped, place in enumerate((lane, config.lanes - 1 - lane)):
            found[lane, mapped] = (place % config.cores, place // config.cores)
    return found


class Surroundings(Elaboratable):
    """The unit and the places that answer it within a cycle."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.unit = VectorUnit(config)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        g, unit = self.config.derived, self.unit
        shape = data.StructLayout({"core": g.core_bits, "index": g.slot_bits})
        rows = [{"core": 0, "index": 0} for _ in range(64)]
        for (lane, mapped), (core, index) in places(self.config).items():
            rows[lane << 1 | mapped] = {"core": core, "index": index}
        m.submodules.unit = unit
        m.submodules.places = table = memory.Memory(shape=shape, depth=64, init=rows)
        place = table.read_port(domain="comb")
        m.d.comb += [
            place.addr.eq(Cat(unit.place_mapped, unit.place_lane)),
            unit.place_core.eq(place.data.core),
            unit.place_index.eq(place.data.index),
        ]
        return m


@dataclass
class Stalls:
    """Probabilities of a pause, a cycle."""

    seed: int = 0
    command: float = 0.0
    beats: float = 0.0
    bytes: float = 0.0
    traffic: float = 0.0


@dataclass
class Word:
    """A word for the Y memory."""

    lane: int
    addr: int
    data: list[int]


@dataclass
class Scores:
    """A word for the score memory."""

    bank: int
    addr: int
    data: list[int]
    ve: list[int]
    mask: int
    first: int


@dataclass
class Batch:
    """Passes that follow one another, and what the matrix unit writes before and during them."""

    jobs: list[Job]
    y: list[Word] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    y_beside: list[Word] = field(default_factory=list)
    scores_beside: list[Scores] = field(default_factory=list)


@dataclass
class Observed:
    """What came out of a batch, and how long it took."""

    effects: Effects = field(default_factory=Effects)
    entries: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    cycles: int = 0  # from the cycle in which the first command was taken until busy falls
    blocked: int = 0  # cycles in which the pass waited for room for its bytes
    held: int = 0  # cycles in which words for Y waited


class Bench:
    """A simulation that can be run again and again: compiling it takes longer than most runs."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.dut = Surroundings(config)
        self.sim = Simulator(self.dut)
        self.sim.add_clock(1e-6)
        self.sim.add_testbench(self._process)
        self._fresh = True

    def run(self, batches: list[Batch], stalls: Stalls | None = None) -> list[Observed]:
        """Run batches from reset on; the next begins when the one before has ended."""
        self._work = batches, stalls or Stalls()
        self.observed: list[Observed] = []
        self.finished = False
        if not self._fresh:
            self.sim.reset()
        self._fresh = False
        self.sim.run()
        assert self.finished
        return self.observed

    async def _process(self, ctx) -> None:
        batches, stalls = self._work
        self._rng = random.Random(stalls.seed)
        for batch in batches:
            # Nothing else moves while results of the matrix unit come, and the maxima settle.
            await self._batch(ctx, Batch([], y_beside=batch.y, scores_beside=batch.scores), stalls)
            await ctx.tick().repeat(4)
            self.observed.append(await self._batch(ctx, batch, stalls))
        self.finished = True

    async def _batch(self, ctx, batch: Batch, stalls: Stalls) -> Observed:
        unit, rng = self.dut.unit, self._rng
        seen = Observed()
        beat_bytes = self.config.derived.beat_bytes
        # What is offered in turn, the probability of a pause, and a payload that must not matter without an offer.
        commands = [job.command() for job in batch.jobs]
        sources = {
            unit.command: (commands, stalls.command, {"a": 0x5A5A5A5A, "b": 1, "func": 7}),
            unit.beats: ([b for job in batch.jobs for b in job.beats(beat_bytes)], stalls.beats, [0x5A] * beat_bytes),
            unit.y_write: ([vars(word) for word in batch.y_beside], stalls.traffic, {"addr": 1}),
            unit.s_write: ([vars(word) for word in batch.scores_beside], stalls.traffic, {"first": 1, "mask": 1}),
        }
        offered, shown = dict.fromkeys(sources, False), dict.fromkeys(sources, True)
        accepted = ended = None
        waiting = None
        cycle = 0
        limit = 3000 + 200 * len(commands) + 100 * sum(len(items) for items, _, _ in sources.values())
        while cycle < limit:
            for port, (items, pause, junk) in sources.items():
                if offered[port]:
                    continue
                offered[port] = bool(items) and (not pause or rng.random() >= pause)
                if offered[port] or shown[port]:
                    shown[port] = offered[port]
                    ctx.set(port.payload, items[0] if offered[port] else junk)
                    ctx.set(port.valid, offered[port])
            ready = not stalls.bytes or rng.random() >= stalls.bytes
            ctx.set(unit.bytes.ready, ready)

            busy = ctx.get(unit.busy)
            # A command makes the unit busy at once.
            assert busy or accepted is None or accepted != cycle - 1
            if not busy and ended is None and not commands:
                ended = cycle
                seen.cycles = cycle - (accepted or 0)
                self._read_entries(ctx, seen)
            waiting = self._watch(ctx, seen, busy, ready, waiting)
            for port, (items, _, _) in sources.items():
                if offered[port] and ctx.get(port.ready):
                    items.pop(0)
                    offered[port] = False
                    if port is unit.command and accepted is None:
                        accepted = cycle
                elif offered[port] and port is unit.y_write:
                    seen.held += 1
            await ctx.tick()
            cycle += 1
            # Traffic may take longer than the passes; two cycles more, and nothing may follow.
            done = not any(items for items, _, _ in sources.values()) and not ctx.get(unit.bytes.valid)
            if ended is not None and cycle > ended + 2 and done:
                break
        assert cycle < limit, "the unit hangs"
        for port in sources:
            ctx.set(port.valid, 0)
        return seen

    def _watch(self, ctx, seen: Observed, busy: int, ready: bool, waiting: tuple | None) -> tuple | None:
        """Take what leaves; return an item that waits."""
        unit, effects = self.dut.unit, seen.effects
        if not busy:
            assert not (ctx.get(unit.act_en) or ctx.get(unit.trace.valid) or ctx.get(unit.stalled))
            assert not ctx.get(unit.saturated)
        seen.blocked += ctx.get(unit.stalled)
        effects.saturated += ctx.get(unit.saturated)
        if ctx.get(unit.act_en):
            effects.act.append((ctx.get(unit.act_core), ctx.get(unit.act_index), ctx.get(unit.act_addr),
                                tuple(ctx.get(unit.act_data))))  # fmt: skip
        if ctx.get(unit.trace.valid):
            t = ctx.get(unit.trace)
            effects.trace.append((t.tag, t.layer, t.lane, t.kind, t.addr, tuple(t.data)[: t.count]))
        if not ctx.get(unit.bytes.valid):
            assert waiting is None, "an offer was withdrawn"
            return None
        payload = ctx.get(unit.bytes.payload)
        item = tuple(payload.data)[: payload.count]
        assert waiting in (None, item), "an offer changed"
        if ready:
            effects.bytes.append(item)
            return None
        return item

    def _read_entries(self, ctx, seen: Observed) -> None:
        """Read the exponent file as the matrix unit does: without a clock."""
        unit = self.dut.unit
        for lane in range(self.config.lanes):
            ctx.set(unit.ex_lane, lane)
            for index in range(self.config.derived.ex_slots):
                ctx.set(unit.ex_index, index)
                seen.entries[lane, index] = (ctx.get(unit.ex_exponent), ctx.get(unit.ex_scale))

@cache
def bench(config: AcceleratorConfig) -> Bench:
    """Return the (compiled) bench of a configuration."""
    return Bench(config)
