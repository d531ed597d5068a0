"""Configurations, random passes with traffic beside them, and the comparison with the reference."""

import random
from copy import deepcopy

import pytest
from vector_bench import Batch, Observed, Scores, Stalls, Word, bench, places
from vector_reference import BANKED, Job, Reference, exponent, quant

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Map, VecFunc
from fastcar_hw.vector import VectorUnit

#: Two words a beat; more lanes than cores.
WIDE = AcceleratorConfig(
    name="wide", cores=2, rows=2, cols=16, lanes=3, vector_width=4, weight_fifo_depth=64, burst_beats=16,
    max_hidden=32, max_ffn=48, max_layers=1, max_heads=2, max_head_dim=16, max_seq=48, trace=True,
)  # fmt: skip
#: Shortest words, and passes that are longer than the pipeline; a single lane with long words.
NARROW = WIDE.replace(name="narrow", cols=4, rows=1, lanes=2, vector_width=2, max_hidden=48, max_head_dim=8, max_seq=40)
SINGLE = WIDE.replace(name="single", cores=1, rows=1, lanes=1, vector_width=8)
CONFIGS = [WIDE, NARROW, SINGLE]
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)

#: First words in Y that a pass reads or writes.
Y_OPERANDS = {
    VecFunc.ROPE: lambda job: (job.d, job.target),
    VecFunc.SWIGLU: lambda job: (job.d, job.up),
} | dict.fromkeys(
    (VecFunc.NORM, VecFunc.AMAX, VecFunc.QUANT_ACT, VecFunc.QUANT_BYTES, VecFunc.RESIDUAL, VecFunc.RESIDUAL_STORE),
    lambda job: (job.d,),
)


class Maker:
    """Random passes, and the traffic that may run beside them."""

    def __init__(self, config: AcceleratorConfig, seed: int) -> None:
        self.config, self.w = config, config.vector_width
        self.rng = random.Random(seed)
        self.loaded: dict[int, int] = {}  # positions that wait in a score bank
        self.y_words = config.derived.y_words - 1  # the last word of every lane is left to the traffic

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
        ffn = (VecFunc.SWIGLU, VecFunc.QUANT_ACT, VecFunc.AMAX)
        longest = (c.max_head_dim if func is VecFunc.ROPE else c.max_ffn if func in ffn else c.max_hidden) // w
        words = rng.randrange(1, longest + 1)
        job = Job(
            func, words * w, lane=rng.randrange(c.lanes), d=rng.randrange(self.y_words - words + 1),
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
                half = self.y_words // 2
                words = min(words, half)
                job.elements = words * w
                job.d, job.up = rng.randrange(half - words + 1), half + rng.randrange(half - words + 1)
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
