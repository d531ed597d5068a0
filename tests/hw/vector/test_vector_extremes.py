"""Vector unit at the limits: zeros, largest magnitudes, saturation, exponents, shifts, softmax of every length."""

from copy import deepcopy

import pytest
from vector_bench import Batch, Scores, Stalls, Word, bench, places
from vector_passes import NARROW, Maker, check, configs, cycles, one
from vector_reference import Job, Reference, exponent, softmax

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import VecFunc
from fastcar_hw.vector.reduce import tree_latency

#: Counts that the clamp of the law leaves alone, at both of its ends, and beyond.
SHIFTS = (-64, -17, -16, -15, -1, 0, 1, 31, 46, 47, 48, 63)
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


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
