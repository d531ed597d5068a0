"""Beat FIFO: order, destinations, beats that several passes share, credits, cycles."""

from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_bench import SMALL, Bench, Pauses, in_a_row, receive

from fastcar_hw.isa import Dest
from fastcar_hw.memory.beat_fifo import BeatFifo


@dataclass(frozen=True)
class Tile:
    """Beats that the matrix unit reads ``passes`` times before it frees them.

    They are freed with the last transfer, or ``late`` cycles after it; they come ``gap`` cycles after those before.
    """

    beats: int
    passes: int = 1
    late: int = 0
    gap: int = 0


@dataclass(frozen=True)
class Others:
    """Beats of another consumer."""

    dest: Dest
    beats: int


class FifoBench(Bench):
    """A producer that keeps the credits, three consumers, and a watch on credits and level."""

    def __init__(self, config=SMALL):
        super().__init__(BeatFifo(config))
        self.config = config
        for process in (self._fill, self._matrix, self._vector, self._ctrl):
            self.sim.add_testbench(process)
        self.sim.add_testbench(self._watch, background=True)

    def run(self, plan, pauses=(0.0,) * 4, seed=0, start=0):
        """Run a plan; the consumers begin after ``start`` cycles."""
        self.plan, self.start = plan, start
        self.pauses = [Pauses(probability, seed + i) for i, probability in enumerate(pauses)]
        self.got = {dest: [] for dest in Dest}
        self.cycles = {dest: [] for dest in Dest}
        self.filled, self.freed, self.most = [], 0, 0
        self.simulate()

    @staticmethod
    def payload(number):
        """Return a beat that no other equals."""
        return [number & 255, number >> 8, (number * 7 + 3) & 255, (number * 31) & 255]

    def numbered(self):
        """Yield (entry of the plan, numbers of its beats)."""
        number = 0
        for entry in self.plan:
            yield entry, list(range(number, number + entry.beats))
            number += entry.beats

    def expected(self, dest):
        """Return the beats that a consumer must see."""
        beats = []
        for entry, numbers in self.numbered():
            if isinstance(entry, Tile):
                if dest is Dest.MATRIX:
                    beats += numbers * entry.passes
            elif entry.dest is dest:
                beats += numbers
        return [self.payload(number) for number in beats]

    async def _fill(self, ctx):
        port, depth = self.dut.i, self.config.weight_fifo_depth
        for entry, numbers in self.numbered():
            dest = Dest.MATRIX if isinstance(entry, Tile) else entry.dest
            for _ in range(getattr(entry, "gap", 0)):
                await ctx.tick()
            for number in numbers:
                while self.pauses[0]() or len(self.filled) - self.freed == depth:
                    await ctx.tick()
                ctx.set(port.valid, 1)
                ctx.set(port.payload, {"dest": dest, "beat": self.payload(number)})
                _, _, ready = await ctx.tick().sample(port.ready)
                assert ready, "no room though a credit was left"
                self.filled.append(self.cycle)
                ctx.set(port.valid, 0)

    async def _matrix(self, ctx):
        port, pauses = self.dut.matrix, self.pauses[1]
        await ctx.tick().repeat(self.start + 1)
        for entry, _ in self.numbered():
            if isinstance(entry, Tile):
                for number in range(entry.passes):
                    last = number == entry.passes - 1
                    await self._read(ctx, entry.beats, last and not entry.late, pauses)
                    if not last:
                        ctx.set(port.rewind, 1)
                        # Ready or not: nothing may be transferred.
                        ctx.set(port.stream.ready, pauses())
                        _, _, *valid = await ctx.tick().sample(*self._valid())
                        assert not any(valid), "a beat was offered during the rewind"
                        ctx.set(port.rewind, 0)
                if entry.late:
                    for _ in range(entry.late - 1):
                        await ctx.tick()
                    ctx.set(port.commit, 1)
                    await ctx.tick()
                    ctx.set(port.commit, 0)
        await ctx.tick()

    def _valid(self):
        return self.dut.matrix.stream.valid, self.dut.vector.valid, self.dut.ctrl.valid

    async def _read(self, ctx, count, commit, pauses):
        """Read beats; free with the last one, as the feeder does: in the cycle of its transfer."""
        port = self.dut.matrix
        while count:
            ready = not pauses()
            ctx.set(port.stream.ready, ready)
            ctx.set(port.commit, bool(commit and count == 1 and ready and ctx.get(port.stream.valid)))
            _, _, valid, payload = await ctx.tick().sample(port.stream.valid, port.stream.payload)
            if valid and ready:
                self.got[Dest.MATRIX].append(list(payload))
                self.cycles[Dest.MATRIX].append(self.cycle)
                count -= 1
        ctx.set(port.stream.ready, 0)
        ctx.set(port.commit, 0)

    async def _vector(self, ctx):
        await self._other(ctx, Dest.VECTOR, self.dut.vector, self.pauses[2])

    async def _ctrl(self, ctx):
        await self._other(ctx, Dest.CTRL, self.dut.ctrl, self.pauses[3])

    async def _other(self, ctx, dest, port, pauses):
        await ctx.tick().repeat(self.start + 1)
        for _ in range(len(self.expected(dest))):
            self.got[dest] += [list(beat) for beat in await receive(ctx, port, 1, pauses)]
            self.cycles[dest].append(self.cycle)
        # What was freed last is told a cycle later.
        await ctx.tick()

    async def _watch(self, ctx):
        """Judge ``level`` and add up ``freed_count``."""
        dut = self.dut
        level = 0
        async for _, _, seen, freed, filled, ready in ctx.tick().sample(
            dut.level, dut.freed_count, dut.i.valid, dut.i.ready
        ):
            # What was freed in the cycle before is gone now.
            level -= freed
            assert seen == level
            level += filled & ready
            self.freed += freed
            self.most = max(self.most, seen)
            assert 0 <= level <= self.config.weight_fifo_depth

    def check(self):
        """Every consumer got exactly its beats, in order, and all of them were freed."""
        for dest in Dest:
            assert self.got[dest] == self.expected(dest), dest
        assert self.freed == sum(entry.beats for entry in self.plan)


@cache
def bench(depth=SMALL.weight_fifo_depth):
    return FifoBench(SMALL.replace(weight_fifo_depth=depth, burst_beats=min(depth // 2, SMALL.burst_beats)))


def test_beats_reach_their_consumers_in_order():
    b = bench()
    b.run([Tile(3), Others(Dest.VECTOR, 2), Others(Dest.CTRL, 1), Tile(2), Others(Dest.VECTOR, 1), Tile(1)])
    b.check()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_any_plan_and_any_stalls(data):
    depth = data.draw(st.sampled_from([2, 4, 16]))
    tile = st.builds(Tile, st.integers(1, depth), st.integers(1, 3), st.integers(0, 2))
    others = st.builds(Others, st.sampled_from([Dest.VECTOR, Dest.CTRL]), st.integers(1, depth + 3))
    plan = data.draw(st.lists(tile | others, min_size=1, max_size=8))
    pauses = data.draw(st.tuples(*[st.sampled_from([0.0, 0.3, 0.8])] * 4))
    b = bench(depth)
    b.run(plan, pauses, data.draw(st.integers(0, 999)))
    b.check()


def test_the_head_waits_for_its_own_consumer():
    """A beat that nobody takes is offered to nobody else, and holds the beats behind it."""
    b = bench()
    # The vector unit would take a beat in every cycle; the matrix unit takes one in about ten.
    b.run([Tile(6), Others(Dest.VECTOR, 6)], (0.0, 0.9, 0.0, 0.0), seed=5)
    b.check()
    assert min(b.cycles[Dest.VECTOR]) > max(b.cycles[Dest.MATRIX])
    assert max(b.cycles[Dest.MATRIX]) - min(b.cycles[Dest.MATRIX]) > 12


@pytest.mark.parametrize("dest", Dest, ids=lambda dest: dest.name)
def test_a_beat_a_cycle(dest):
    """From the first beat on, while the FIFO is filled and emptied at once, for longer than it is deep."""
    b = bench()
    number = 3 * SMALL.weight_fifo_depth
    b.run([Tile(1)] * number if dest is Dest.MATRIX else [Others(dest, number)])
    b.check()
    assert in_a_row(b.filled) == [1] * (number - 1)
    assert in_a_row(b.cycles[dest]) == [1] * (number - 1)
    assert b.cycles[dest][0] - b.filled[0] == BeatFifo.LATENCY
    assert b.most == BeatFifo.LATENCY


def test_a_change_of_consumer_costs_nothing():
    b = bench()
    b.run([Others(Dest.VECTOR, 2), Tile(1), Others(Dest.CTRL, 1), Others(Dest.VECTOR, 1), Tile(1)] * 4)
    b.check()
    assert in_a_row(sorted(sum(b.cycles.values(), []))) == [1] * 23


def test_it_holds_as_many_beats_as_it_says():
    """Nobody takes anything for a while: exactly ``depth`` beats fit, and then they leave without a gap."""
    b = bench()
    depth = SMALL.weight_fifo_depth
    b.run([Tile(depth), Tile(depth)], start=3 * depth)
    b.check()
    assert b.most == depth
    assert in_a_row(b.filled[:depth]) == [1] * (depth - 1)
    assert b.filled[depth] > 3 * depth
    assert in_a_row(b.cycles[Dest.MATRIX][:depth]) == [1] * (depth - 1)


@pytest.mark.parametrize("beats", [1, 2, 3, SMALL.weight_fifo_depth])
def test_a_rewind_costs_three_cycles(beats):
    """However long the tile is: also when the look-ahead ran into the next tile, or filled the whole FIFO."""
    b = bench()
    b.run([Tile(beats, passes=3), Tile(4)], start=2 * SMALL.weight_fifo_depth)
    b.check()
    one_pass = [1] * (beats - 1) + [1 + BeatFifo.REWIND]
    assert in_a_row(b.cycles[Dest.MATRIX][: 3 * beats]) == (one_pass * 3)[:-1]


@pytest.mark.parametrize("gap", range(8))
def test_a_beat_comes_while_others_are_read_again(gap):
    """In every cycle around the rewind, so also when it is fetched in that very cycle."""
    b = bench()
    b.run([Tile(2, passes=2), Tile(1, gap=gap), Others(Dest.VECTOR, 1), Tile(3)])
    b.check()


def test_nothing_is_freed_before_the_last_pass():
    """A tile as large as the FIFO stays in it, so no beat of the next one is asked for."""
    b = bench()
    depth = SMALL.weight_fifo_depth
    b.run([Tile(depth, passes=2), Tile(1)])
    b.check()
    assert b.filled[depth] > b.cycles[Dest.MATRIX][2 * depth - 1]


def test_flush_forgets_everything():
    """Also beats on their way out of the memory, at every age of the first one."""
    b = Bench(BeatFifo(SMALL))

    async def process(ctx):
        dut = b.dut
        for age in range(6):
            for number in range(age + 1):
                ctx.set(dut.i.valid, 1)
                ctx.set(dut.i.payload, {"dest": Dest.MATRIX, "beat": [age, number, 1, 2]})
                await ctx.tick()
            ctx.set(dut.i.valid, 0)
            ctx.set(dut.flush, 1)
            await ctx.tick()
            ctx.set(dut.flush, 0)
            for _ in range(5):
                assert ctx.get(dut.level) == 0
                assert not ctx.get(dut.matrix.stream.valid)
                await ctx.tick()
            # It works as after a reset.
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, {"dest": Dest.VECTOR, "beat": [age, 9, 9, 9]})
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            (beat,) = await receive(ctx, dut.vector, 1)
            assert list(beat) == [age, 9, 9, 9]
            assert ctx.get(dut.level) == 0

    b.sim.add_testbench(process)
    b.simulate()
