"""The gate against the transaction-level model: scores, decisions, counters, trace, registers."""

import random

import pytest
from amaranth.sim import Simulator

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs import Definition, DrsModel, Gate, GateKind
from fastcar_hw.isa import Cond, GateFunc

CONFIG = AcceleratorConfig(name="gate", lanes=5, cores=2, rows=2, max_layers=3, max_heads=4, trace=True)


def simulate(process, config=CONFIG):
    dut = Gate(config)
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def bench(ctx):
        await process(ctx, dut)

    sim.add_testbench(bench)
    sim.run()


async def settle(ctx, dut):
    while ctx.get(dut.busy):
        await ctx.tick()


async def command(ctx, dut, func, **values):
    """Issue a command; the cycle after its acceptance is current when this returns."""
    ctx.set(dut.command.payload, {"func": func.value, **values})
    ctx.set(dut.command.valid, 1)
    while not ctx.get(dut.command.ready):
        await ctx.tick()
    await ctx.tick()
    ctx.set(dut.command.valid, 0)


async def score(ctx, dut, lane, head, value):
    ctx.set(dut.tas.payload, {"lane": lane, "head": head, "score": value})
    ctx.set(dut.tas.valid, 1)
    await ctx.tick()
    ctx.set(dut.tas.valid, 0)


async def write(ctx, window, addr, value, strobe=15):
    ctx.set(window.addr, addr)
    ctx.set(window.w_data, value & 0xFFFFFFFF)
    ctx.set(window.w_strobe, strobe)
    await ctx.tick()
    ctx.set(window.w_strobe, 0)


async def read(ctx, window, addr):
    ctx.set(window.addr, addr)
    await ctx.tick()
    return ctx.get(window.r_data)


@pytest.mark.parametrize("definition", list(Definition))
@pytest.mark.parametrize("kind", list(GateKind))
def test_matches_model(kind, definition):
    """Random layers: same decisions, scores, mappings, conditions and counters as the model."""
    rng = random.Random(f"{kind}{definition}")
    weights = [3, 0, 250, 2]
    # A threshold that is hit exactly tells `>=` from `>`.
    thresholds = [-70000, 0, 12345]
    lanes = 4
    model = DrsModel(CONFIG, lanes, kind, definition, thresholds=thresholds, head_weights=weights)

    async def process(ctx, dut):
        ctx.set(dut.kind, kind)
        ctx.set(dut.definition, definition)
        ctx.set(dut.lanes, lanes)
        for index, value in enumerate(thresholds):
            await write(ctx, dut.thresholds, index, value)
        for index, value in enumerate(weights):
            await write(ctx, dut.head_weights, index, value)
        cost = 0
        for _ in range(60):
            layer, eligible = rng.randrange(3), rng.random() < 0.8
            await command(ctx, dut, GateFunc.BEGIN, a=layer, b=int(eligible))
            model.begin(layer, eligible=eligible)
            for lane in range(lanes):
                if lane and rng.random() < 0.2:
                    continue  # no scores: zero
                exact = rng.random() < 0.4
                for head in range(4):
                    value = rng.randrange(-(1 << 23), 1 << 23)
                    if exact:
                        # weights 3, 2 and 0 reach any threshold exactly
                        target = thresholds[layer]
                        value = {0: target % 2, 1: value, 2: 0, 3: (target - 3 * (target % 2)) // 2}[head]
                    await score(ctx, dut, lane, head, value)
                    model.tas(lane, head, value)
                    if rng.random() < 0.3:
                        await ctx.tick()
            forced = rng.getrandbits(32)
            for lane in range(lanes):
                await command(ctx, dut, GateFunc.DECIDE, lane=lane, a=forced)
                expected = model.decide(lane, forced)
                # The trace comes a cycle after the command was accepted, the decision another one later.
                trace = dut.trace
                assert ctx.get(dut.busy) and ctx.get(trace.valid)
                assert ctx.get(trace.score) == model.scores[lane]
                assert (ctx.get(trace.layer), ctx.get(trace.lane)) == (layer, lane)
                assert (ctx.get(trace.eligible), ctx.get(trace.compute)) == (eligible, expected)
                await ctx.tick()
                assert not ctx.get(dut.busy)
                assert ctx.get(dut.compute) >> lane & 1 == expected
            for cond in Cond:
                for lane in range(lanes):
                    ctx.set(dut.cond, cond)
                    ctx.set(dut.cond_lane, lane)
                    assert ctx.get(dut.run) == model.runs(cond, lane)
            ctx.set(dut.command.payload, {"func": GateFunc.SCHEDULE.value})
            ctx.set(dut.command.valid, 1)
            while True:
                cost += ctx.get(dut.scheduling)
                await ctx.tick()
                ctx.set(dut.command.valid, 0)
                if not ctx.get(dut.busy):
                    break
            mapping = model.schedule()
            for lane, place in mapping.places.items():
                ctx.set(dut.place_lane, lane)
                ctx.set(dut.place_mapped, 1)
                assert (ctx.get(dut.place_core), ctx.get(dut.place_index)) == place
        assert cost == model.drs_cycles
        for (layer, lane), count in model.eligible_count.items():
            assert await read(ctx, dut.eligible_count, layer * CONFIG.lanes + lane) == count
        for (layer, lane), count in model.replayed_count.items():
            assert await read(ctx, dut.replayed_count, layer * CONFIG.lanes + lane) == count
        if kind in (GateKind.TAS, GateKind.FORCED):
            replayed = sum(model.replayed_count.values())
            assert 0 < replayed < sum(model.eligible_count.values())

    simulate(process)


def test_threshold_equality():
    """`paper` replays at the threshold, `reference-code` only above it."""

    async def process(ctx, dut):
        ctx.set(dut.kind, GateKind.TAS)
        ctx.set(dut.lanes, 1)
        for definition, value, computes in (
            (Definition.PAPER, 100, 0), (Definition.PAPER, 99, 1),
            (Definition.REFERENCE_CODE, 100, 1), (Definition.REFERENCE_CODE, 101, 0),
        ):  # fmt: skip
            ctx.set(dut.definition, definition)
            await write(ctx, dut.thresholds, 1, 100)
            await command(ctx, dut, GateFunc.BEGIN, a=1, b=1)
            await score(ctx, dut, 0, 0, value)
            # Issued at once: the gate itself waits for the sum.
            await command(ctx, dut, GateFunc.DECIDE, lane=0)
            await settle(ctx, dut)
            assert ctx.get(dut.compute) & 1 == computes

    simulate(process)


def test_back_to_back():
    """BEGIN and DECIDE in neighbouring cycles already see the threshold of the new layer."""

    async def process(ctx, dut):
        ctx.set(dut.kind, GateKind.TAS)
        ctx.set(dut.lanes, 2)
        await write(ctx, dut.thresholds, 0, 1)
        await write(ctx, dut.thresholds, 2, 0)
        for layer, computes in ((2, 0), (0, 1), (2, 0)):
            await command(ctx, dut, GateFunc.BEGIN, a=layer, b=1)
            await command(ctx, dut, GateFunc.DECIDE, lane=1)
            await settle(ctx, dut)
            assert ctx.get(dut.compute) >> 1 & 1 == computes

    simulate(process)


def test_clear_and_windows():
    """The counters clear, the arrays read back byte by byte, and weights default to one."""

    async def process(ctx, dut):
        ctx.set(dut.kind, GateKind.ALWAYS)
        ctx.set(dut.lanes, 5)
        assert [await read(ctx, dut.head_weights, i) for i in range(4)] == [1] * 4
        assert await read(ctx, dut.thresholds, 2) == 0x7FFFFFFF
        await write(ctx, dut.thresholds, 1, 0x11223344)
        await write(ctx, dut.thresholds, 1, 0xAABBCCDD, strobe=0b0110)
        assert await read(ctx, dut.thresholds, 1) == 0x11BBCC44
        await write(ctx, dut.head_weights, 3, 0xFFFF, strobe=0b1110)
        assert await read(ctx, dut.head_weights, 3) == 1
        for lane in range(5):
            await command(ctx, dut, GateFunc.BEGIN, a=2, b=1)
            await command(ctx, dut, GateFunc.DECIDE, lane=lane)
        await settle(ctx, dut)
        assert [await read(ctx, dut.replayed_count, i) for i in range(15)] == [0] * 10 + [1] * 5
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        cycles = 0
        while ctx.get(dut.busy):
            await ctx.tick()
            cycles += 1
        assert cycles == CONFIG.max_layers * CONFIG.lanes
        for window in (dut.eligible_count, dut.replayed_count):
            assert [await read(ctx, window, i) for i in range(15)] == [0] * 15

    simulate(process)


def test_one_lane():
    """The smallest hardware has neither lane nor core bits to spare."""
    config = AcceleratorConfig(name="one", max_layers=1, max_heads=1)

    async def process(ctx, dut):
        ctx.set(dut.kind, GateKind.FORCED)
        ctx.set(dut.lanes, 1)
        for forced in (0, 1):
            await command(ctx, dut, GateFunc.BEGIN, a=0, b=1)
            await command(ctx, dut, GateFunc.DECIDE, lane=0, a=forced)
            await command(ctx, dut, GateFunc.SCHEDULE)
            await settle(ctx, dut)
            assert ctx.get(dut.compute) == forced
            assert ctx.get(dut.places.mapped_count[0]) == forced
        assert await read(ctx, dut.replayed_count, 0) == 1

    simulate(process, config)
