"""A systolic core by itself: skew, latency, result chain."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.systolic.core import SystolicCore
from fastcar_hw.systolic.row import ArrayRow

CONFIG = AcceleratorConfig(
    name="core", cores=1, rows=3, cols=4, lanes=5, vector_width=2, burst_beats=16,
    max_hidden=8, max_ffn=8, max_layers=1, max_heads=1, max_head_dim=8, max_seq=8,
)  # fmt: skip


@pytest.mark.parametrize("gap", [0, 2])
def test_products_back_to_back(gap):
    """Each product is captured `latency` after its last beat, in all rows, while the next one runs."""
    g = CONFIG.derived
    rng = np.random.default_rng(1)
    act = rng.integers(-128, 128, (g.slots, g.act_depth))
    products = []
    for number in range(6):
        steps = int(rng.integers(8, 17))
        start = int(rng.integers(0, g.act_depth - steps))
        products.append((number % g.passes, start, rng.integers(-128, 128, (steps, CONFIG.cols))))
    beats = []
    for number_of_pass, start, weights in products:
        for k, row in enumerate(weights):
            addr = number_of_pass * g.act_depth + start + k
            beats.append(({"valid": 1, "first": k == 0, "last": k == len(weights) - 1, "addr": addr}, row))
            beats += [({"valid": 0, "first": 1, "last": 1, "addr": 0}, row)] * int(rng.integers(0, gap + 1))
    dut = SystolicCore(CONFIG)
    latency = SystolicCore.latency(CONFIG)
    assert latency == ArrayRow.LATENCY + CONFIG.rows - 1
    seen, ends = [], []

    async def feed(ctx):
        ctx.set(dut.act_en, 1)
        for slot in range(g.slots):
            for address in range(0, g.act_depth, CONFIG.vector_width):
                ctx.set(dut.act_index, slot)
                ctx.set(dut.act_addr, address)
                ctx.set(dut.act_data, [int(v) for v in act[slot, address : address + CONFIG.vector_width]])
                await ctx.tick()
        ctx.set(dut.act_en, 0)
        # The last write is seen after `ACT_LATENCY`, of which the loop has waited one.
        await ctx.tick().repeat(SystolicCore.ACT_LATENCY - 1)
        shifts = 0
        idle = ({"valid": 0, "first": 0, "last": 0, "addr": 0}, [0] * CONFIG.cols)
        for cycle, (control, weights) in enumerate(beats + [idle] * (latency + CONFIG.rows)):
            ctx.set(dut.control, control)
            ctx.set(dut.weights, [int(w) for w in weights])
            if control["valid"] and control["last"]:
                ends.append(cycle)
            if cycle - latency in ends:
                shifts = CONFIG.rows
            ctx.set(dut.shift, shifts > 0)
            if shifts:
                seen.append(list(ctx.get(dut.result)))
                shifts -= 1
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(feed)
    sim.run()
    want = []
    for number_of_pass, start, weights in products:
        for row in reversed(range(CONFIG.rows)):
            vector = act[number_of_pass * CONFIG.rows + row, start : start + len(weights)]
            want.append([int(v) for v in weights.T @ vector])
    assert seen == want
