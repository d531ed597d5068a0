"""Matrix unit against the integer law: modes, maps, passes, stalls, cycle counts."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matrix_bench import Stalls, bench
from matrix_reference import Job, World, expected

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Map, MatMode
from fastcar_hw.presets import accelerator_preset
from fastcar_hw.systolic import MatrixUnit

#: More lanes than places on three cores, of which one gets fewer.
WIDE = AcceleratorConfig(
    name="3x2", cores=3, rows=2, cols=8, lanes=7, vector_width=4, weight_fifo_depth=128, burst_beats=16,
    max_hidden=16, max_ffn=24, max_layers=1, max_heads=2, max_head_dim=8, max_seq=32,
)  # fmt: skip
PRESETS = [accelerator_preset(name) for name in ("test", "test-2x2", "test-passes", "test-gqa")]
CONFIGS = [config.replace(trace=True) for config in [*PRESETS, WIDE]]
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)

# Seeds do not shrink to anything simpler, and a shrinking failure would run the simulator for minutes.
quick = settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


def random_job(config: AcceleratorConfig, rng: np.random.Generator, mode: MatMode, lanes: int) -> Job:
    """A job whose results are of all sizes, saturated ones included."""
    g, cols = config.derived, config.cols
    tiles = 1 if mode is MatMode.TAS else int(rng.integers(1, 4))
    attention = mode in (MatMode.SCORE, MatMode.TAS)
    single = mode not in (MatMode.LINEAR, MatMode.LOGITS)
    longest = config.max_head_dim if attention else config.max_seq if mode is MatMode.PV else g.max_vector
    steps = int(rng.integers(1, longest + 1))
    job = Job(
        mode,
        weights=rng.integers(-127, 128, (tiles, steps, cols)),
        map=Map.LANE if single else Map(int(rng.integers(0, 3))),
        lane=int(rng.integers(0, lanes)),
        offset=int(rng.integers(0, g.act_depth - steps + 1)),
        shift=int(rng.integers(-4, 30)),
        eidx=int(rng.integers(0, g.ex_slots)),
        d=int(rng.integers(0, 200)),
        bank=int(rng.integers(0, 2)),
        tag=int(rng.integers(0, 256)),
        layer=int(rng.integers(0, 128)),
    )
    if attention:
        job.ve, job.ke = rng.integers(0, 26, (tiles, cols)), rng.integers(0, 26, (tiles, cols))
        job.d = int(rng.integers(1, tiles * cols + 1)) if mode is MatMode.SCORE else job.d
        job.element = int(rng.integers(0, cols))
        job.shift = int(rng.integers(0, 40))
    elif mode is not MatMode.PV:
        job.scales = rng.integers(0, 1 << 16, (tiles, cols)) >> rng.integers(0, 16, (tiles, cols))
    return job


def linear(config: AcceleratorConfig, rng: np.random.Generator, *, steps: int, tiles: int, **fields) -> Job:
    """A projection."""
    job = random_job(config, rng, MatMode.LINEAR, 1)
    job.weights = rng.integers(-127, 128, (tiles, steps, config.cols))
    job.scales = rng.integers(0, 1 << 16, (tiles, config.cols))
    job.offset = 0
    for name, value in fields.items():
        setattr(job, name, value)
    return job


def check(config: AcceleratorConfig, world: World, jobs: list[Job], stalls: Stalls | None = None, **options):
    """Run jobs and compare everything with the reference; return what was observed."""
    want = expected(world, jobs)
    seen = bench(config, late_exponents=options.pop("late", False)).run(world, jobs, stalls, **options)
    # The order of lanes is the unit's own; heads come as they were asked for.
    assert seen.s == want.s
    assert seen.tas == want.tas
    assert sorted(seen.y) == sorted(want.y)
    assert sorted(seen.logits) == sorted(want.logits)
    if config.trace:
        assert sorted(seen.trace) == sorted(want.trace)
    assert seen.macs == want.macs
    assert seen.saturated == want.saturated
    return seen


@configs
@quick
@given(seed=st.integers(0, 2**32 - 1), slow=st.sampled_from([0.0, 0.3, 0.8]), data=st.data())
def test_all_modes_with_random_stalls(config, seed, slow, data):
    rng = np.random.default_rng(seed)
    world = World.random(config, rng)
    modes = data.draw(st.lists(st.sampled_from(list(MatMode)), min_size=3, max_size=6))
    jobs = [random_job(config, rng, mode, world.lanes) for mode in modes]
    stalls = Stalls(seed, *(data.draw(st.sampled_from([0.0, 0.2, slow])) for _ in range(3)))
    check(config, world, jobs, stalls, late=bool(seed & 1))


@configs
def test_every_mode_and_map_without_stalls(config):
    rng = np.random.default_rng(5)
    world = World.random(config, rng, config.lanes)
    jobs = [random_job(config, rng, mode, world.lanes) for mode in MatMode for _ in range(2)]
    for place in Map:
        jobs.append(linear(config, rng, steps=3, tiles=2, map=place, lane=config.lanes - 1))
    check(config, world, jobs)


@configs
@pytest.mark.parametrize("late", [False, True])
def test_exponents_may_come_at_once_or_a_cycle_late(config, late):
    rng = np.random.default_rng(6)
    world = World.random(config, rng, config.lanes)
    check(config, world, [random_job(config, rng, mode, world.lanes) for mode in MatMode], late=late)


@configs
@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_neither_overflow_nor_wrap(config, sign):
    """Longest products of the largest operands: accumulators, products and saturation."""
    rng = np.random.default_rng(7)
    g = config.derived
    world = World.random(config, rng, config.lanes)
    world.act[:] = 127
    world.exponents[:, 0], world.exponents[:, 1] = -128, 127
    world.scales[:] = 65535
    # -128 is no weight of the law, but memory may hold it, and the accumulators have room for it.
    value = 127 if sign > 0 else -128
    jobs = []
    for eidx, shift in ((0, 63), (1, -64), (2, 8)):
        job = linear(config, rng, steps=g.max_vector, tiles=1, eidx=eidx, shift=shift)
        job.weights[:] = value
        job.scales[:] = 65535
        pv = random_job(config, rng, MatMode.PV, world.lanes)
        pv.weights = np.full((1, config.max_seq, config.cols), value)
        pv.offset, pv.eidx, pv.shift = g.act_depth - config.max_seq, eidx, shift
        score = random_job(config, rng, MatMode.SCORE, world.lanes)
        score.weights = np.full((1, config.max_head_dim, config.cols), value)
        score.ve, score.ke = np.full((1, config.cols), 31), np.full((1, config.cols), 25)
        score.d, score.eidx, score.shift = config.cols, eidx, shift
        jobs += [job, pv, score]
    seen = check(config, world, jobs)
    assert seen.saturated > 0


@configs
def test_shortest_products(config):
    rng = np.random.default_rng(8)
    world = World.random(config, rng, config.lanes)
    jobs = [linear(config, rng, steps=1, tiles=3, map=place) for place in Map]
    pv = random_job(config, rng, MatMode.PV, world.lanes)
    pv.weights = pv.weights[:, :1]
    check(config, world, [*jobs, pv])


@configs
def test_rows_without_a_lane_say_nothing(config):
    rng = np.random.default_rng(9)
    world = World.random(config, rng, 1)
    world.mapped = [[] for _ in range(config.cores)]
    nobody = linear(config, rng, steps=5, tiles=2, map=Map.MAPPED)
    one = linear(config, rng, steps=5, tiles=2, map=Map.STATIC)
    seen = check(config, world, [nobody, one, nobody])
    assert {word[0] for word in seen.y} == {0}
    assert seen.macs == 5 * 2 * config.cols


def test_commands_without_tiles_do_nothing():
    config = CONFIGS[1]
    rng = np.random.default_rng(10)
    world = World.random(config, rng, config.lanes)
    empty = linear(config, rng, steps=5, tiles=1)
    empty.weights, empty.scales = empty.weights[:0], empty.scales[:0]
    tas = random_job(config, rng, MatMode.TAS, world.lanes)
    tas.element = 0
    check(config, world, [empty, tas, empty])


def test_the_comparison_bites():
    config = CONFIGS[0]
    rng = np.random.default_rng(11)
    world = World.random(config, rng, config.lanes)
    jobs = [linear(config, rng, steps=8, tiles=1, shift=12, eidx=0)]
    world.exponents[:] = 0
    want = expected(world, jobs)
    jobs[0].weights[0, 3, 2] += 40 if jobs[0].weights[0, 3, 2] < 0 else -40
    seen = bench(config).run(world, jobs)
    assert sorted(seen.y) != sorted(want.y)


# --- time ---------------------------------------------------------------------------------------------------


def idle_rows(config: AcceleratorConfig, world: World, job: Job, number_of_pass: int) -> tuple[int, int]:
    """(rows in use, idle rows below them) of a pass."""
    places = [p for p in world.places(job) if p[1] // config.rows == number_of_pass or job.map is Map.LANE]
    lowest: dict[int, int] = {}
    for core, index, _ in places:
        lowest[core] = max(lowest.get(core, 0), index % config.rows)
    return len(places), max((config.rows - 1 - row for row in lowest.values()), default=0)


@configs
def test_a_tile_takes_k_and_two_cycles(config):
    """Tiles of a command, and commands, follow one another without a gap while the drain works beside them."""
    rng = np.random.default_rng(12)
    world = World.random(config, rng, config.lanes)
    passes = world.passes(linear(config, rng, steps=1, tiles=1, map=Map.STATIC))
    steps = min(config.cores * config.rows * config.cols // config.vector_width + 20, config.derived.max_vector)
    tiles = 4
    jobs = [linear(config, rng, steps=steps, tiles=tiles, map=Map.STATIC) for _ in range(2)]
    seen = check(config, world, jobs, prefill=30)
    total = MatrixUnit.cycles(steps=steps, tiles=tiles, passes=passes)
    if passes == 1:
        assert total == tiles * (steps + 2)
    assert seen.taken[0] - seen.accepted[0] == MatrixUnit.START
    assert seen.taken[-1] - seen.taken[0] + 1 == 2 * total
    assert seen.held == 0
    slots, idle = idle_rows(config, world, jobs[0], passes - 1)
    assert (
        seen.words[-1] - seen.taken[-1]
        == MatrixUnit.latency(config, idle) + slots * (config.cols // config.vector_width) - 1
    )
    assert seen.idle == seen.words[-1] + 1


@configs
@pytest.mark.parametrize("mode", [MatMode.SCORE, MatMode.PV, MatMode.TAS])
def test_attention_without_bubbles(config, mode):
    rng = np.random.default_rng(13)
    world = World.random(config, rng, config.lanes)
    steps = 2 * config.cols
    jobs = []
    for lane in range(config.lanes):
        job = random_job(config, rng, mode, world.lanes)
        job.lane, job.offset = lane, 0
        job.weights = rng.integers(-127, 128, (job.tiles, steps, config.cols))
        jobs.append(job)
    seen = check(config, world, jobs, prefill=30)
    params = mode is not MatMode.PV
    total = sum(MatrixUnit.cycles(steps=steps, tiles=job.tiles, params=params) for job in jobs)
    assert seen.taken[-1] - seen.taken[0] + 1 == total
    assert seen.held == 0


@configs
def test_only_the_drain_holds_short_products(config):
    """Ends of passes are exactly as far apart as the drain of the first needs."""
    rng = np.random.default_rng(14)
    world = World.random(config, rng, config.lanes)
    for place in (Map.STATIC, Map.LANE):
        job = linear(config, rng, steps=1, tiles=5, map=place, lane=config.lanes - 1)
        passes = world.passes(job)
        seen = check(config, world, [job], prefill=30)
        distance = 0
        first = job.lane // config.cores // config.rows if place is Map.LANE else 0
        for tile in range(job.tiles):
            for number in range(first, first + passes):
                if (tile, number) == (job.tiles - 1, first + passes - 1):
                    break
                slots, idle = idle_rows(config, world, job, number)
                ahead = 3 if number == first + passes - 1 else 1 + MatrixUnit.REWIND
                distance += max(ahead, MatrixUnit.least_distance(config, slots, idle))
        assert seen.taken[-1] - seen.taken[2] == distance
        assert seen.held > 0


def test_scores_of_the_demonstration_run_without_bubbles():
    """K = 32 with 32 columns and words of 16: the drain is over long before the next block ends."""
    config = accelerator_preset("tiny")
    steps = config.max_head_dim
    for lane in range(config.lanes):
        idle = config.rows - 1 - lane // config.cores % config.rows
        assert MatrixUnit.least_distance(config, slots=1, idle=idle) <= steps + 2
    assert MatrixUnit.cycles(steps=steps, tiles=16) == 16 * 34


def test_stalls_are_counted():
    config = CONFIGS[1]
    rng = np.random.default_rng(15)
    world = World.random(config, rng, config.lanes)
    job = linear(config, rng, steps=16, tiles=3, map=Map.STATIC)
    steady = check(config, world, [job], prefill=70)
    assert steady.starved == 0
    slow = check(config, world, [job], Stalls(1, beats=0.7))
    needed = MatrixUnit.cycles(steps=16, tiles=3, passes=world.passes(job))
    assert slow.starved == slow.taken[-1] - slow.accepted[0] - MatrixUnit.START + 1 - needed - slow.held
    blocked = check(config, world, [job, job, job], Stalls(2, results=0.9))
    assert blocked.held > 0
