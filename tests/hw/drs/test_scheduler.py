"""Scheduler and dispatcher against the transaction-level model."""

import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs import Definition, Dispatcher, GateKind, Scheduler
from fastcar_hw.drs.model import runs, schedule, static_place
from fastcar_hw.isa import Cond


def configuration(lanes, cores, rows=1):
    return AcceleratorConfig(name="drs", lanes=lanes, cores=cores, rows=rows)


def simulate(dut, process, *, clocked=True):
    sim = Simulator(dut)
    if clocked:
        sim.add_clock(1e-6)
    sim.add_testbench(process)
    sim.run()


async def load(ctx, dut, lanes, compute):
    """Write the index register and the number of active lanes."""
    ctx.set(dut.lanes, lanes)
    ctx.set(dut.begin, 1)
    await ctx.tick()
    ctx.set(dut.begin, 0)
    for lane, computes in enumerate(compute):
        if not computes:
            ctx.set(dut.decide, 1)
            ctx.set(dut.decide_lane, lane)
            ctx.set(dut.decide_compute, 0)
            await ctx.tick()
    ctx.set(dut.decide, 0)


async def fill(ctx, dut):
    """Schedule; return the cycles until the tables can be used."""
    ctx.set(dut.start, 1)
    await ctx.tick()
    ctx.set(dut.start, 0)
    cycles = 1
    while ctx.get(dut.busy):
        await ctx.tick()
        cycles += 1
    return cycles


def place_of(ctx, dut, lane, mapped):
    ctx.set(dut.place_lane, lane)
    ctx.set(dut.place_mapped, mapped)
    return ctx.get(dut.place_core), ctx.get(dut.place_index)


def lane_at(ctx, dut, core, index, mapped):
    ctx.set(dut.places.core, core)
    ctx.set(dut.places.index, index)
    ctx.set(dut.places.mapped, mapped)
    return ctx.get(dut.places.lane)


def counts_of(ctx, port, cores):
    return tuple(ctx.get(port[core]) for core in range(cores))


@pytest.mark.parametrize(
    ("lanes", "cores", "rows"),
    [(1, 1, 1), (2, 2, 1), (3, 2, 1), (4, 4, 1), (8, 3, 2), (8, 4, 2), (20, 5, 2), (32, 1, 4), (32, 4, 8),
     (32, 6, 2), (32, 16, 1), (32, 32, 1)],
)  # fmt: skip
def test_matches_model(lanes, cores, rows):
    """Every look-up, count and latency equals the model's, for any decisions and number of active lanes."""
    config = configuration(lanes, cores, rows)

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(st.data())
    def run(draw):
        jobs = draw.draw(
            st.lists(
                st.tuples(st.integers(0, (1 << lanes) - 1), st.integers(0, lanes), st.booleans()),
                min_size=1, max_size=3,
            )
        )  # fmt: skip
        dut = Scheduler(config)

        async def process(ctx):
            for mask, active, static_map in jobs:
                compute = [bool(mask >> lane & 1) for lane in range(lanes)]
                ctx.set(dut.static_map, static_map)
                await load(ctx, dut, active, compute)
                assert ctx.get(dut.compute) == mask
                assert ctx.get(dut.any_compute) == any(compute[:active])
                cycles = await fill(ctx, dut)
                expected = schedule(compute[:active], cores, static_map=static_map)
                assert cycles == expected.cycles == Scheduler.latency(active) <= max(1, 2 * active)
                assert counts_of(ctx, dut.places.mapped_count, cores) == expected.counts
                for lane, place in expected.places.items():
                    assert place_of(ctx, dut, lane, 1) == place
                for core, members in enumerate(expected.members):
                    for index, lane in enumerate(members):
                        assert lane_at(ctx, dut, core, index, 1) == lane
                if not static_map:
                    assert max(expected.counts) - min(expected.counts) <= 1
                static = [static_place(lane, cores) for lane in range(active)]
                for lane, place in enumerate(static):
                    assert place_of(ctx, dut, lane, 0) == place
                    assert lane_at(ctx, dut, *place, 0) == lane
                assert counts_of(ctx, dut.places.static_count, cores) == tuple(
                    sum(place[0] == core for place in static) for core in range(cores)
                )

        simulate(dut, process)

    run()


def test_begin_keeps_the_map():
    """The matrix unit may still work on a layer when the next one begins."""
    dut = Scheduler(configuration(4, 2))

    async def process(ctx):
        await load(ctx, dut, 4, [True, False, False, True])
        await fill(ctx, dut)
        ctx.set(dut.begin, 1)
        await ctx.tick()
        ctx.set(dut.begin, 0)
        assert ctx.get(dut.compute) == 0b1111
        assert counts_of(ctx, dut.places.mapped_count, 2) == (1, 1)
        assert [lane_at(ctx, dut, core, 0, 1) for core in range(2)] == [0, 3]

    simulate(dut, process)


def test_dispatcher():
    """Every condition, lane, gate and definition."""
    lanes = 3
    dut = Dispatcher(configuration(lanes, 2))

    async def process(ctx):
        for mask in range(1 << lanes):
            compute = [bool(mask >> lane & 1) for lane in range(lanes)]
            ctx.set(dut.compute, mask)
            ctx.set(dut.any_compute, mask != 0)
            for kind in GateKind:
                ctx.set(dut.kind, kind)
                for definition in Definition:
                    ctx.set(dut.definition, definition)
                    for eligible in (False, True):
                        ctx.set(dut.eligible, eligible)
                        for cond in Cond:
                            ctx.set(dut.cond, cond)
                            for lane in range(lanes):
                                ctx.set(dut.lane, lane)
                                expected = runs(
                                    cond, lane, compute, eligible=eligible, kind=kind, definition=definition
                                )
                                assert ctx.get(dut.run) == expected, (cond, kind, definition, eligible, lane)
        for cond in (Cond.COMPUTE, Cond.REPLAY):
            ctx.set(dut.cond, cond)
            ctx.set(dut.lane, lanes)
            assert not ctx.get(dut.run)

    simulate(dut, process, clocked=False)
