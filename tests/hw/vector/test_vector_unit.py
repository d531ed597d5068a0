"""Vector unit against the integer law: every pass, extremes, stalls, traffic beside the passes, cycle counts."""

import random
from copy import deepcopy

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vector_bench import Batch, Observed, Scores, Stalls, Word, bench, places
from vector_reference import BANKED, Job, Reference, exponent, quant, softmax

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Map, VecFunc
from fastcar_hw.vector import VectorUnit
from fastcar_hw.vector.reduce import tree_latency

#: Two words a beat; more lanes than cores.
WIDE = AcceleratorConfig(
    name="wide", cores=2, rows=2, cols=16, lanes=3, vector_width=4, weight_fifo_depth=64, burst_beats=16,
    max_hidden=32, max_ffn=48, max_layers=1, max_heads=2, max_head_dim=16, max_seq=48, trace=True,
)  # fmt: skip
#: Shortest words; and a single lane with long ones.
NARROW = WIDE.replace(name="narrow", cols=4, vector_width=2, max_hidden=16, max_ffn=24, max_head_dim=8, max_seq=20)
SINGLE = WIDE.replace(name="single", cores=1, rows=1, lanes=1, vector_width=8)
CONFIGS = [WIDE, NARROW, SINGLE]
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)

# Seeds do not shrink to anything simpler, and a shrinking failure would run the simulator for minutes.
quick = settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])

#: Counts that the clamp of the law leaves alone, at both of its ends, and beyond.
SHIFTS = (-64, -17, -16, -15, -1, 0, 1, 31, 46, 47, 48, 63)
#: First words in Y that a pass reads or writes.
Y_OPERANDS = {
    VecFunc.ROPE: lambda job: (job.d, job.target),
    VecFunc.SWIGLU: lambda job: (job.d, job.up),
} | dict.fromkeys(
    (VecFunc.NORM, VecFunc.AMAX, VecFunc.QUANT_ACT, VecFunc.QUANT_BYTES, VecFunc.RESIDUAL, VecFunc.RESIDUAL_STORE),
    lambda job: (job.d,),
)
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


class Maker:
    """Random passes, and the traffic that may run beside them."""

    def __init__(self, config: AcceleratorConfig, seed: int) -> None:
        self.config, self.w = config, config.vector_width
        self.rng = random.Random(seed)
        self.loaded: dict[int, int] = {}  # positions that wait in a score bank

    def values(self, count: int, bits: int = 32) -> list[int]:
        """Signed integers of all sizes, extremes included."""
        rng, limit = self.rng, 1 << (bits - 1)
        size = rng.randrange(1, limit) >> rng.randrange(bits - 1) or 1
        edges = (0, limit - 1, -limit, size - 1, -size)
        return [rng.choice(edges) if rng.random() < 0.1 else rng.randrange(-size, size) for _ in range(count)]

    def y(self) -> list[Word]:
        """Fill the Y memory of every lane."""
        words = self.config.derived.y_words
        return [Word(lane, addr, self.values(self.w)) for lane in range(self.config.lanes) for addr in range(words)]

    def scores(self, bank: int, positions: int) -> list[Scores]:
        """Scores of a head; what lies beyond the last position is larger, and must not matter."""
        rng, w = self.rng, self.w
        found = []
        spread = 1 << rng.randrange(1, 24)
        for addr in range(-(-positions // w)):
            mask = sum(1 << i for i in range(w) if addr * w + i < positions)
            data = [rng.randrange(-spread, spread) if mask >> i & 1 else (1 << 23) - 1 for i in range(w)]
            ve = [rng.randrange(26) if mask >> i & 1 else 31 for i in range(w)]
            found.append(Scores(bank, addr, data, ve, mask, int(addr == 0)))
        self.loaded[bank] = positions
        return found

    def job(self, func: VecFunc) -> Job:
        """Return a pass; of a softmax bank it takes what is loaded."""
        c, g, rng, w = self.config, self.config.derived, self.rng, self.w
        longest = {
            VecFunc.ROPE: c.max_head_dim,
            VecFunc.SWIGLU: c.max_ffn,
            VecFunc.QUANT_ACT: c.max_ffn,
            VecFunc.AMAX: c.max_ffn,
        }.get(func, c.max_hidden) // w
        words = rng.randrange(1, longest + 1)
        job = Job(
            func, words * w, lane=rng.randrange(c.lanes), d=rng.randrange(g.y_words - words + 1),
            shift=rng.randrange(-3, 30), tag=rng.randrange(256), layer=rng.randrange(128),
            eidx=rng.randrange(g.ex_slots), map=rng.choice(list(Map)),
        )  # fmt: skip
        job.act = w * rng.randrange((g.act_depth - job.elements) // w + 1)
        match func:
            case VecFunc.EMBED | VecFunc.EMBED_ADD:
                job.shift = rng.randrange(-16, 1)
                job.stream = self.values(job.elements, 16)
            case VecFunc.PARAM:
                job.d = rng.randrange(g.p_words - words + 1)
                job.stream = self.values(job.elements, 16)
            case VecFunc.SQUARES:
                job.eps, job.eidx = rng.randrange(1 << 32) >> rng.randrange(32), rng.randrange(9)
            case VecFunc.ROPE:
                # In place, as the compiler does it, or somewhere that is read no more.
                job.target = rng.choice([job.d, *range(0, job.d - words + 1)])
                job.params = rng.randrange(g.p_words - words + 1)
            case VecFunc.REPLAY:
                y = self.values(job.elements)
                job.e = exponent(max(map(abs, y)), 16)
                job.stream = [quant(v, job.e, 16) for v in y]
            case VecFunc.SWIGLU:
                words = min(words, g.y_words // 2)
                job.elements = words * w
                job.d = rng.randrange(g.y_words // 2 - words + 1)
                job.up = g.y_words // 2 + rng.randrange(g.y_words // 2 - words + 1)
                job.gate_shift, job.silu_shift = rng.randrange(-3, 30), rng.randrange(10, 40)
            case VecFunc.SOFTMAX | VecFunc.QUANT_PROB:
                job.bank = next(bank for bank in self.loaded)
                job.elements = self.loaded[job.bank]
                job.act = w * rng.randrange((g.act_depth - c.max_seq) // w + 1)
        return job

    def batch(self, funcs: list[VecFunc]) -> Batch:
        """Return passes with traffic beside them: words of Y that no pass touches, scores of the next head."""
        c, w = self.config, self.w
        batch = Batch([])
        for func in funcs:
            if func in BANKED:
                bank = self.rng.randrange(2) if not self.loaded else next(iter(self.loaded))
                if any(job.func in BANKED for job in batch.jobs):
                    continue
                if bank not in self.loaded:
                    batch.scores = self.scores(bank, self.rng.randrange(1, c.max_seq + 1))
                batch.jobs += [self.job(VecFunc.SOFTMAX), self.job(VecFunc.QUANT_PROB)]
                del self.loaded[bank]
                batch.scores_beside = self.scores(1 - bank, self.rng.randrange(1, c.max_seq + 1))
            else:
                batch.jobs.append(self.job(func))
        touched = {
            (job.lane, first + i)
            for job in batch.jobs
            for first in Y_OPERANDS.get(job.func, lambda job: ())(job)
            for i in range(job.elements // w)
        }
        free = [(i, a) for i in range(c.lanes) for a in range(c.derived.y_words) if (i, a) not in touched]
        if free:
            batch.y_beside = [Word(*place, self.values(w)) for place in self.rng.choices(free, k=8 * len(funcs))]
        return batch


def one(value: int, count: int) -> list[int]:
    return [value] * count


def dump(config: AcceleratorConfig) -> list[Batch]:
    """Passes that show every word of Y and X in the trace: rotations by 0, sums with 0."""
    g, w = config.derived, config.vector_width
    jobs = [Job(VecFunc.PARAM, n * w, d=d, stream=one(1 << 14, n * w), shift=0)
            for d, n in chunks(g.p_words, config.max_hidden // w)]  # fmt: skip
    for job in jobs:
        job.stream[1::2] = one(0, job.elements // 2)
    for lane in range(config.lanes):
        jobs.append(Job(VecFunc.EMBED_ADD, config.max_hidden, lane=lane, stream=one(0, config.max_hidden)))
        jobs += [Job(VecFunc.ROPE, n * w, lane=lane, d=d, target=d) for d, n in chunks(g.y_words, g.p_words)]
    return [Batch(jobs)]


def chunks(total: int, largest: int) -> list[tuple[int, int]]:
    return [(start, min(largest, total - start)) for start in range(0, total, largest)]


def cycles(config: AcceleratorConfig, reference: Reference, jobs: list[Job]) -> int:
    """Cycles of a batch without stalls; the reference has run up to the jobs."""
    total = VectorUnit.START
    reference = deepcopy(reference)
    for job in jobs:
        reference.run([job])
        exps = {"exp_sum": reference.sum} if job.func is VecFunc.SOFTMAX else {}
        total += VectorUnit.cycles(config, job.func, job.elements, **exps)
    return total


def check(config: AcceleratorConfig, batches: list[Batch], stalls: Stalls | None = None, *,
          whole: bool = True) -> list[Observed]:  # fmt: skip
    """Run batches, compare everything with the reference, and the time where nothing stalls."""
    reference = Reference(config, places(config))
    batches = batches + dump(config) if whole else batches
    observed = bench(config).run(batches, stalls)
    stalls = stalls or Stalls()
    for batch, seen in zip(batches, observed, strict=True):
        for word in batch.y:
            reference.write_y(word.lane, word.addr, word.data)
        for word in batch.scores:
            reference.write_scores(word.bank, word.addr, word.data, word.ve)
        expected = cycles(config, reference, batch.jobs)
        assert seen.effects == reference.run(batch.jobs)
        assert seen.entries == reference.entries
        for word in batch.y_beside:
            reference.write_y(word.lane, word.addr, word.data)
        for word in batch.scores_beside:
            reference.write_scores(word.bank, word.addr, word.data, word.ve)
        waits = any(job.func in BANKED for job in batch.jobs) and batch.scores_beside
        if batch.jobs and not (stalls.command or stalls.beats or waits):
            assert seen.cycles == expected + seen.blocked
        assert not batch.jobs or seen.cycles >= expected
    return observed


# --- passes -------------------------------------------------------------------------------------------------


@configs
def test_every_pass_alone_takes_what_is_stated(config):
    maker = Maker(config, 1)
    batches = [Batch([], y=maker.y())]
    for func in [*VecFunc, *VecFunc]:
        if func in BANKED:
            # The second half of a pair needs the first.
            if func is VecFunc.SOFTMAX:
                first = maker.batch([func])
                first.scores_beside, maker.loaded = [], {}
                batches += [Batch(first.jobs[:1], scores=first.scores), Batch(first.jobs[1:])]
        else:
            batches.append(Batch([maker.job(func)]))
    check(config, batches)


@configs
def test_passes_follow_one_another_without_a_gap(config):
    maker = Maker(config, 2)
    batches = [Batch([], y=maker.y())]
    for _ in range(3):
        batch = maker.batch(maker.rng.sample(list(VecFunc), len(VecFunc)))
        # Words for Y cost nothing; scores are tried elsewhere.
        batch.scores += batch.scores_beside
        batch.scores_beside = []
        batches.append(batch)
    observed = check(config, batches, Stalls(2, traffic=0.8))
    assert sum(seen.held for seen in observed[1:-1]) > 0


def test_overhead_of_a_pass():
    """Look-up and settings 3, memory and operand 2, pipeline 15, residual 1, tree, finish 5."""
    assert [VectorUnit.overhead(config) for config in (NARROW, WIDE, SINGLE)] == [25, 26, 27]


@configs
@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    funcs=st.lists(st.lists(st.sampled_from(list(VecFunc)), min_size=1, max_size=6), min_size=2, max_size=3),
    pauses=st.tuples(*[st.sampled_from([0.0, 0.0, 0.3, 0.8])] * 4),
)
def test_random_passes_with_random_stalls(config, seed, funcs, pauses):
    maker = Maker(config, seed)
    batches = [Batch([], y=maker.y())] + [maker.batch(list(names)) for names in funcs]
    check(config, batches, Stalls(seed, *pauses))


@configs
def test_what_is_stored_is_replayed(config):
    """Bytes of a computed MLP output, laid out as docs/architecture.md says, add the same again."""
    maker = Maker(config, 3)
    hidden = config.max_hidden
    jobs = [Job(VecFunc.AMAX, hidden), Job(VecFunc.RESIDUAL_STORE, hidden)]
    y = maker.y()
    computed, *_ = check(config, [Batch(jobs, y=y)], Stalls(4, bytes=0.4), whole=False)
    header, *items = computed.effects.bytes
    raw = [b for item in items for b in item]
    stream = [int.from_bytes(raw[i : i + 2], "little", signed=True) for i in range(0, 2 * hidden, 2)]
    replay = Job(VecFunc.REPLAY, hidden, stream=stream, e=header[0])
    replayed, *_ = check(config, [Batch([replay])], whole=False)
    assert [word[-1] for word in replayed.effects.trace] == [word[-1] for word in computed.effects.trace]


# --- extremes -----------------------------------------------------------------------------------------------


def fill(config: AcceleratorConfig, values: list[int]) -> list[Word]:
    """Y of lane 0, with some values over and over."""
    w = config.vector_width
    return [Word(0, a, [values[(a * w + i) % len(values)] for i in range(w)]) for a in range(config.derived.y_words)]


def decoder_passes(config: AcceleratorConfig, value: int, **fields: int) -> list[Job]:
    """Every pass of a layer that reads X or Y, with parameters that are all alike."""
    hidden, w = config.max_hidden, config.vector_width
    half = config.derived.y_words // 2
    return [
        Job(VecFunc.PARAM, hidden, stream=one(value, hidden)),
        Job(VecFunc.EMBED, hidden, stream=one(value, hidden), shift=-16),
        Job(VecFunc.EMBED_ADD, hidden, stream=one(value, hidden), shift=-16),
        Job(VecFunc.AMAX, hidden),
        Job(VecFunc.QUANT_ACT, hidden),
        Job(VecFunc.QUANT_BYTES, hidden),
        Job(VecFunc.RESIDUAL_STORE, hidden),
        Job(VecFunc.RESIDUAL, hidden),
        Job(VecFunc.SQUARES, hidden, **fields),
        Job(VecFunc.NORM, hidden, d=half, shift=0),
        Job(VecFunc.ROPE, config.max_head_dim, d=half, target=half),
        Job(VecFunc.SWIGLU, half * w, up=half, gate_shift=0, silu_shift=0, shift=0),
        Job(VecFunc.QUANT_BYTES, hidden),
    ]


@configs
def test_zeros(config):
    check(config, [Batch(decoder_passes(config, 0))])


@configs
@pytest.mark.parametrize("pattern", [[HIGHEST], [LOWEST], [HIGHEST, LOWEST]], ids=["highest", "lowest", "both"])
def test_largest_magnitudes(config, pattern):
    value = 32767 if pattern[0] > 0 else -32768
    fields = {"eps": (1 << 32) - 1, "eidx": 8}
    seen = check(config, [Batch(decoder_passes(config, value, **fields), y=fill(config, pattern))])
    assert seen[0].effects.saturated > 0


@configs
def test_a_mantissa_may_be_one_beyond_32_bits(config):
    """-2^31 beside 2^31 - 1: e = 17, and the mantissa of the latter is 2^14."""
    hidden = config.max_hidden
    jobs = [
        Job(VecFunc.EMBED, hidden, stream=one(-1, hidden)),
        Job(VecFunc.AMAX, hidden),
        Job(VecFunc.RESIDUAL, hidden),
        Job(VecFunc.EMBED, hidden, stream=one(-1, hidden)),
        Job(VecFunc.REPLAY, hidden, stream=[1 << 14, -(1 << 14)] * (hidden // 2), e=17),
    ]
    seen, *_ = check(config, [Batch(jobs, y=fill(config, [HIGHEST, LOWEST]))])
    # X was -1: the one sum is exact, the other saturates.
    assert seen.effects.trace[-1][-1][:2] == (HIGHEST, LOWEST)


@configs
def test_exponents_change_at_powers_of_two(config):
    jobs, words = [], []
    sizes = [size for bits in (7, 8, 15, 16, 30, 31) for size in ((1 << bits) - 1, 1 << bits)]
    sizes = [size for size in sizes if size < 1 << 31]
    w = config.vector_width
    for addr, size in enumerate(sizes):
        words.append(Word(0, addr, [size, -size, *one(size // 3, w - 2)]))
        jobs += [Job(VecFunc.AMAX, w, d=addr), Job(VecFunc.QUANT_BYTES, w, d=addr),
                 Job(VecFunc.RESIDUAL_STORE, w, d=addr)]  # fmt: skip
    seen, *_ = check(config, [Batch(jobs, y=words)])
    headers = [item[0] for item in seen.effects.bytes if len(item) == 1]
    assert headers == [exponent(size, bits) for size in sizes for bits in (8, 16)]


def test_shifts_beyond_the_clamp():
    config = NARROW
    w, up = config.vector_width, config.derived.y_words // 2
    setup = [Job(VecFunc.PARAM, w, stream=[32767, -3] * (w // 2)), Job(VecFunc.EMBED, w, stream=[1234, -77] * (w // 2)),
             Job(VecFunc.SQUARES, w)]  # fmt: skip
    jobs = []
    for i, k in enumerate(SHIFTS):
        jobs += [Job(VecFunc.NORM, w, d=up, shift=k), Job(VecFunc.SWIGLU, w, d=i % 4, up=4 + i % 4, gate_shift=k),
                 Job(VecFunc.SWIGLU, w, d=i % 4, up=4 + i % 4, gate_shift=8, silu_shift=k),
                 Job(VecFunc.SWIGLU, w, d=i % 4, up=4 + i % 4, gate_shift=8, silu_shift=20, shift=k),
                 Job(VecFunc.EMBED_ADD, w, stream=[21, -9] * (w // 2), shift=k)]  # fmt: skip
    words = [Word(0, addr, [1 << 20, -(5 << 17)] * (w // 2)) for addr in range(config.derived.y_words)]
    check(config, [Batch(setup + jobs, y=words)])


@configs
def test_epsilon_is_scaled_with_the_residual(config):
    """E0 of 40 bits, moved right by up to 34."""
    hidden = config.max_hidden
    jobs = [Job(VecFunc.PARAM, hidden, stream=one(1 << 14, hidden))]
    for bits in (0, 15, 22, 30):
        # One element dominates, so that the exponent of X is that of the size.
        stream = [1 << min(14, bits), *one(0, hidden - 1)]
        jobs.append(Job(VecFunc.EMBED, hidden, stream=stream, shift=-max(0, bits - 14)))
        for eps, eidx in ((0, 0), (1, 8), ((1 << 32) - 1, 0), ((1 << 32) - 1, 8)):
            jobs += [Job(VecFunc.SQUARES, hidden, eps=eps, eidx=eidx), Job(VecFunc.NORM, hidden, shift=14)]
    check(config, [Batch(jobs)], whole=False)


# --- softmax ------------------------------------------------------------------------------------------------


def head(config: AcceleratorConfig, bank: int, scores: list[int], ve: list[int]) -> list[Scores]:
    """Words of a head as the matrix unit sends them."""
    w, found = config.vector_width, []
    for addr in range(-(-len(scores) // w)):
        part = slice(addr * w, addr * w + w)
        rest = w - len(scores[part])
        mask = (1 << (w - rest)) - 1
        found.append(Scores(bank, addr, scores[part] + one(HIGHEST >> 8, rest), ve[part] + one(31, rest), mask,
                            int(addr == 0)))  # fmt: skip
    return found


@configs
def test_softmax_of_every_length_and_of_extreme_scores(config):
    w, longest = config.vector_width, config.max_seq
    low, high = -(1 << 23), (1 << 23) - 1
    alternating = [high if t % 3 else low for t in range(longest)]
    heads = [
        ([5], [25]),
        ([low], [0]),
        ([high], [31]),
        ([low, *one(high, w - 1)], [25, *one(0, w - 1)]),
        (one(-7, w + 1), one(3, w + 1)),
        (one(0, longest), one(25, longest)),
        (alternating, [t % 26 for t in range(longest)]),
        ([-4096 * t for t in range(longest)], one(0, longest)),
        ([-128 * t for t in range(longest - 1)], [25 * (t & 1) for t in range(longest - 1)]),
    ]
    batches = []
    for number, (scores, ve) in enumerate(heads):
        jobs = [Job(VecFunc.SOFTMAX, len(scores), bank=number & 1),
                Job(VecFunc.QUANT_PROB, len(scores), bank=number & 1, lane=number % config.lanes,
                    act=number * w, eidx=number % config.derived.ex_slots)]  # fmt: skip
        batches.append(Batch(jobs, scores=head(config, number & 1, scores, ve)))
    observed = check(config, batches, whole=False)
    # A single position: weight 1, and the reciprocal of 2^15 does not fit.
    assert observed[0].effects.trace[0][-1] == (32768, *one(0, w - 1))
    assert observed[0].entries[0, 0] == (9 + 25 - 16, 65535)
    total = softmax(*heads[5])[1]
    assert total == longest << 15


@configs
def test_softmax_while_the_scores_of_the_next_head_arrive(config):
    maker = Maker(config, 5)
    batches = [maker.batch([VecFunc.SOFTMAX]) for _ in range(4)]
    for pause in (0.0, 0.6):
        check(config, deepcopy(batches), Stalls(6, traffic=pause), whole=False)


@configs
def test_scores_on_their_way_to_the_maxima_hold_softmax(config):
    """The look-up meets the last word, which holds the largest score, at the entrance of the tree."""
    length = 2 * config.vector_width
    scores = head(config, 0, [*one(-4096, length - 1), 123456], [*one(7, length - 1), 25])
    batch = Batch([Job(VecFunc.SOFTMAX, length)], scores_beside=scores)
    seen = bench(config).run([batch])[0]
    reference = Reference(config, places(config))
    for word in scores:
        reference.write_scores(word.bank, word.addr, word.data, word.ve)
    assert seen.cycles == cycles(config, reference, batch.jobs) + tree_latency(config.vector_width)
    assert seen.effects == reference.run(batch.jobs)


# --- the comparison bites -----------------------------------------------------------------------------------


def test_a_changed_operand_is_noticed():
    maker = Maker(WIDE, 7)
    batch = Batch([Job(VecFunc.PARAM, 8, stream=maker.values(8, 16)), Job(VecFunc.ROPE, 8)], y=maker.y())
    observed = bench(WIDE).run([batch])
    batch.jobs[0].stream[3] ^= 1 << 13
    reference = Reference(WIDE, places(WIDE))
    for word in batch.y:
        reference.write_y(word.lane, word.addr, word.data)
    assert observed[0].effects != reference.run(batch.jobs)
