"""The sampler against the integer law: lists, ties, random choice, interleaved lanes."""

import random

import pytest
from amaranth.sim import Simulator
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.numerics.exp2neg import Exp2Neg
from fastcar_hw.sampler import Sampler
from fastcar_hw.sampler_candidates import CandidateList, CandidateWeights

CONFIG = AcceleratorConfig(name="sampler", lanes=3, cols=8, vector_width=4, topk_max=5, burst_beats=16, trace=True)
ONE = CONFIG.replace(lanes=1, topk_max=1)
EXTREMES = (-(1 << 31), (1 << 31) - 1, 0, -1, 1)


def simulate(process, config):
    dut = Sampler(config)
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def bench(ctx):
        await process(ctx, dut)

    sim.add_testbench(bench)
    sim.run()


async def settle(ctx, dut):
    cycles = 0
    while ctx.get(dut.busy):
        await ctx.tick()
        cycles += 1
        assert cycles < 500, "busy for ever"
    return cycles


async def start(ctx, dut, seed):
    ctx.set(dut.seed, seed)
    ctx.set(dut.start, 1)
    await ctx.tick()
    ctx.set(dut.start, 0)
    assert await settle(ctx, dut) == dut._config.lanes + 1


async def word(ctx, dut, lane, addr, values):
    """Hand over one word; return the cycles that it took until the sampler is free again."""
    ctx.set(dut.logits.payload, {"lane": lane, "addr": addr, "data": values})
    ctx.set(dut.logits.valid, 1)
    while not ctx.get(dut.logits.ready):
        await ctx.tick()
    await ctx.tick()
    ctx.set(dut.logits.valid, 0)


async def command(ctx, dut, lane):
    ctx.set(dut.command.payload, {"lane": lane})
    ctx.set(dut.command.valid, 1)
    assert ctx.get(dut.command.ready)
    await ctx.tick()
    ctx.set(dut.command.valid, 0)


def token_of(ctx, dut, lane):
    ctx.set(dut.token_lane, lane)
    return ctx.get(dut.token)


def reference(logits, k, it, shift, state):
    """Section 12 of the law, written once more."""
    ranked = sorted(enumerate(logits), key=lambda pair: (-pair[1], pair[0]))
    if k == 0:
        return ranked[0][0], state
    ranked = ranked[:k]
    weights = []
    for _, logit in ranked:
        x = (ranked[0][1] - logit) * it
        d = min(2**25 - 1, (2 * x + 2**shift) // 2 ** (shift + 1))
        weights.append(Exp2Neg.model(d))
    state ^= (state << 13) % 2**32
    state ^= state >> 17
    state ^= (state << 5) % 2**32
    r = state * sum(weights) // 2**32
    for j in range(len(ranked)):
        if sum(weights[: j + 1]) > r:
            return ranked[j][0], state
    raise AssertionError


def test_model():
    """The block's own model is the law, also for all states of the generator that matter."""
    assert Sampler.seed_state(0, 0) == 0x9E3779B9
    assert Sampler.seed_state(0x9E3779B9, 0) == 1
    assert Sampler.seed_state(0, 1) == 0x3C6EF372
    rng = random.Random(1)
    for _ in range(500):
        logits = [
            rng.choice((rng.randrange(-5, 5), rng.randrange(-(1 << 31), 1 << 31))) for _ in range(rng.randrange(1, 20))
        ]
        case = (
            logits,
            rng.randrange(0, 9),
            rng.randrange(1 << 16),
            rng.randrange(64),
            rng.randrange(1, 1 << 32),
        )
        assert Sampler.model(*case) == reference(*case)


logit_lists = st.lists(
    st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-3, 3), st.sampled_from(EXTREMES)),
    min_size=16, max_size=16,
)  # fmt: skip


@pytest.mark.parametrize("config", [CONFIG, ONE], ids=["lanes", "one"])
def test_matches_law(config):
    """Several steps of all lanes, words interleaved between the lanes at random."""
    lanes = config.lanes

    # Shrinking would simulate for minutes.
    @settings(max_examples=25, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
    @example([[0] * 16] * lanes, config.topk_max, 0, 0, 0x9E3779B9, 0)
    @example([[EXTREMES[0]] * 15 + [EXTREMES[1]]] * lanes, config.topk_max, 0xFFFF, 0, 5, 1)
    @given(
        st.lists(logit_lists, min_size=lanes, max_size=lanes), st.integers(0, config.topk_max),
        st.integers(0, 65535), st.one_of(st.integers(0, 63), st.integers(14, 34)),
        st.integers(0, (1 << 32) - 1), st.integers(0, 1000),
    )  # fmt: skip
    def run(lists, k, it, shift, seed, order):
        rng = random.Random(order)

        async def process(ctx, dut):
            ctx.set(dut.topk, k)
            ctx.set(dut.inv_temperature, it)
            ctx.set(dut.temp_shift, shift)
            await start(ctx, dut, seed)
            states = [Sampler.seed_state(seed, lane) for lane in range(lanes)]
            for step in range(2):
                logits = [row[step:] + row[:step] for row in lists]
                todo = {lane: list(range(4)) for lane in range(lanes)}
                while todo:
                    lane = rng.choice(list(todo))
                    for _ in range(rng.randrange(1, 3)):
                        if todo[lane]:
                            addr = todo[lane].pop(0)
                            await word(ctx, dut, lane, addr, logits[lane][4 * addr : 4 * addr + 4])
                    if not todo[lane]:
                        del todo[lane]
                for lane in rng.sample(range(lanes), lanes):
                    await command(ctx, dut, lane)
                await settle(ctx, dut)
                for lane in range(lanes):
                    token, states[lane] = reference(logits[lane], k, it, shift, states[lane])
                    assert token_of(ctx, dut, lane) == token

        simulate(process, config)

    run()


async def draws(ctx, dut, logits, count):
    """Return some tokens of lane 0, each chosen from the same logits."""
    tokens = []
    for _ in range(count):
        for addr in range(len(logits) // 4):
            await word(ctx, dut, 0, addr, logits[4 * addr : 4 * addr + 4])
        await command(ctx, dut, 0)
        await settle(ctx, dut)
        tokens.append(token_of(ctx, dut, 0))
    return tokens


def test_limit_is_exclusive():
    """With two equal candidates and r = the weight of the first, the second one is taken."""
    seed = next(s for s in range(1 << 20) if Sampler.advance(Sampler.seed_state(s, 0)) >> 16 == 0x8000)

    async def process(ctx, dut):
        ctx.set(dut.topk, 2)
        await start(ctx, dut, seed)
        assert await draws(ctx, dut, [5, 5, 1, 1], 1) == [1]
        await start(ctx, dut, seed)
        assert await draws(ctx, dut, [5, 5, 1, 1], 1) == [1]

    simulate(process, CONFIG)


def test_state_is_never_zero():
    """A seed that cancels the lane's constant still draws different tokens."""
    states = [1]
    for _ in range(8):
        states.append(Sampler.advance(states[-1]))
    expected = [state * 4 >> 32 for state in states[1:]]
    assert len(set(expected)) > 1

    async def process(ctx, dut):
        ctx.set(dut.topk, 4)
        await start(ctx, dut, 0x9E3779B9)
        assert await draws(ctx, dut, [5, 5, 5, 5], 8) == expected

    simulate(process, CONFIG)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_lists_are_exact(size):
    """All entries of a list, in order, for logits with many ties; two lanes take turns."""
    dut = CandidateList(CONFIG.replace(topk_max=size))
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def strobe(ctx, port, **values):
        for name, value in values.items():
            ctx.set(getattr(dut, name), value)
        ctx.set(port, 1)
        await ctx.tick()
        ctx.set(port, 0)

    async def bench(ctx):
        rng = random.Random(size)
        for span in (3, 10, 1 << 31):
            lists = [[], []]
            for _ in range(12):
                lane = rng.randrange(2)
                await strobe(ctx, dut.swap, lane=lane)
                for _ in range(rng.randrange(6)):
                    logit = rng.randrange(-span, span)
                    await strobe(ctx, dut.insert, logit=logit, index=len(lists[lane]))
                    lists[lane].append(logit)
                    if rng.random() < 0.2:
                        await ctx.tick()
                while ctx.get(dut.pending):
                    await ctx.tick()
            for lane, logits in enumerate(lists):
                await strobe(ctx, dut.swap, lane=lane)
                order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:size]
                expected = [None] * (size - len(order)) + [(logits[i], i) for i in reversed(order)]
                for entry in expected:
                    assert ctx.get(dut.last.valid) == (entry is not None)
                    if entry is not None:
                        assert (ctx.get(dut.last.logit), ctx.get(dut.last.index)) == entry
                    await strobe(ctx, dut.drop)
                await strobe(ctx, dut.void)

    sim.add_testbench(bench)
    sim.run()


def test_weights_are_exact():
    """Every weight, also where rounding and clamping decide."""
    dut = CandidateWeights(8)
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def bench(ctx):
        rng = random.Random(9)
        for shift in (0, 1, 2, 7, 12, 17, 31, 47, 48, 49, 63):
            largest = rng.randrange(-(1 << 31), 1 << 31)
            it = rng.randrange(1 << 16)
            # Differences around halves of the resolution, and any others.
            near = [((2 * n + 1) << max(0, shift - 1)) // max(1, it) + rng.randrange(-1, 2) for n in range(6)]
            gaps = [max(0, min(gap, largest + (1 << 31))) for gap in (0, *near, 1 << 32)]
            ctx.set(dut.inv_temperature, it)
            ctx.set(dut.temp_shift, shift)
            ctx.set(dut.largest, largest)
            ctx.set(dut.begin, 1)
            await ctx.tick()
            ctx.set(dut.begin, 0)
            for rank, gap in enumerate(gaps):
                ctx.set(dut.feed, 1)
                ctx.set(dut.rank, rank)
                ctx.set(dut.logit, largest - gap)
                ctx.set(dut.index, 1000 + rank)
                await ctx.tick()
            ctx.set(dut.feed, 0)
            cycles = 0
            while ctx.get(dut.waiting):
                await ctx.tick()
                cycles += 1
            assert cycles == CandidateWeights.LATENCY - 1
            weights = [Exp2Neg.model(min(2**25 - 1, (2 * gap * it + 2**shift) // 2 ** (shift + 1))) for gap in gaps]
            assert ctx.get(dut.total) == sum(weights)
            for rank, weight in enumerate(weights):
                ctx.set(dut.rank, rank)
                assert (ctx.get(dut.weight), ctx.get(dut.picked)) == (weight, 1000 + rank)

    sim.add_testbench(bench)
    sim.run()


def test_ties_and_reset():
    """The first index of equal logits wins; a token empties the list; a start does, too."""

    async def process(ctx, dut):
        await start(ctx, dut, 1)
        for logits, token in (([7, 7, 7, 7], 40), ([-9, -8, -8, -9], 41), ([-100, -100, -100, -99], 43)):
            await word(ctx, dut, 2, 10, logits)
            await word(ctx, dut, 2, 11, logits)
            await command(ctx, dut, 2)
            await settle(ctx, dut)
            assert token_of(ctx, dut, 2) == token
        await word(ctx, dut, 0, 0, [1 << 30] * 4)
        await word(ctx, dut, 1, 0, [1 << 30] * 4)
        await settle(ctx, dut)
        await start(ctx, dut, 1)
        for lane in range(2):
            await word(ctx, dut, lane, 5, [0, 0, 0, 1])
            await command(ctx, dut, lane)
        await settle(ctx, dut)
        assert [token_of(ctx, dut, lane) for lane in range(3)] == [23, 23, 43]

    simulate(process, CONFIG)


def test_cycles_and_trace():
    """Words and tokens take the cycles that the block states, and the trace shows each token once."""

    async def process(ctx, dut):
        await start(ctx, dut, 3)
        await word(ctx, dut, 1, 0, [1, 2, 3, 4])
        assert await settle(ctx, dut) == 1 + 4
        await word(ctx, dut, 1, 1, [1, 2, 3, 4])
        assert await settle(ctx, dut) == 4
        for k in (1, 3, 5, 0):
            ctx.set(dut.topk, k)
            for addr in range(4):
                await word(ctx, dut, 0, addr, [3, 2, 1, 0])
            await settle(ctx, dut)
            await command(ctx, dut, 0)
            seen, cycles = [], 0
            while ctx.get(dut.busy):
                if ctx.get(dut.trace.valid):
                    seen.append((ctx.get(dut.trace.lane), ctx.get(dut.trace.token)))
                await ctx.tick()
                cycles += 1
            assert seen == [(0, token_of(ctx, dut, 0))]
            assert cycles <= Sampler.latency(k, CONFIG.topk_max), (k, cycles)
            assert cycles >= Sampler.latency(k, CONFIG.topk_max) - 1 - k

    simulate(process, CONFIG)


def test_logits_before_a_command_count():
    """A command that is queued while the last word is still being taken apart waits for it."""

    async def process(ctx, dut):
        await start(ctx, dut, 3)
        await word(ctx, dut, 0, 0, [0, 0, 0, 0])
        await word(ctx, dut, 0, 1, [0, 0, 0, 9])
        await command(ctx, dut, 0)
        await settle(ctx, dut)
        assert token_of(ctx, dut, 0) == 7

    simulate(process, CONFIG)


def test_frequencies():
    """Two equal candidates are drawn equally often, a hopeless one never."""
    state, counts = Sampler.seed_state(1234, 0), [0, 0, 0]
    for _ in range(4000):
        token, state = Sampler.model([5 << 12, 5 << 12, -(40 << 12)], 3, 4096, 12, state)
        counts[token] += 1
    assert counts[2] == 0
    assert abs(counts[0] - 2000) < 200


@pytest.mark.parametrize("lanes", [(0,), (0, 1)])
def test_logits_that_nobody_sampled_are_forgotten(lanes):
    """Word 0 begins a new list: prompt positions have logits, but no token is drawn from them."""

    async def process(ctx, dut):
        ctx.set(dut.topk, 0)
        await start(ctx, dut, 1)
        for values in ([90, 80, 70, 60], [1, 2, 9, 3], [4, 8, 2, 1]):
            for lane in lanes:
                await word(ctx, dut, lane, 0, values)
                await word(ctx, dut, lane, 1, [0, 5, 0, 0])
        for lane in lanes:
            await command(ctx, dut, lane)
        await settle(ctx, dut)
        assert [token_of(ctx, dut, lane) for lane in lanes] == [1] * len(lanes)

    simulate(process, CONFIG)
