"""Vector unit against the integer law: every pass, stalls, traffic beside the passes, cycle counts."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vector_bench import Batch, Stalls, bench, places
from vector_passes import NARROW, SINGLE, WIDE, Maker, check, configs
from vector_reference import BANKED, STREAMING, Job, Reference, X

from fastcar_hw.isa import VecFunc
from fastcar_hw.vector import VectorUnit

# Seeds do not shrink to anything simpler, and a shrinking failure would run the simulator for minutes.
quick = settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


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
    for _ in range(2):
        batch = maker.batch(maker.rng.sample(list(VecFunc), len(VecFunc)))
        # Words for Y cost nothing; scores are tried elsewhere.
        batch.scores += batch.scores_beside
        batch.scores_beside = []
        batches.append(batch)
    observed = check(config, batches, Stalls(2, traffic=0.8))
    assert sum(seen.held for seen in observed[1:-1]) > 0


def test_overhead_of_a_pass():
    """Look-up and settings 3, memory and operand 2, pipeline 17, residual 1, tree, end 3."""
    assert [VectorUnit.overhead(config) for config in (NARROW, WIDE, SINGLE)] == [27, 28, 29]


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
def test_streams_and_their_headers_are_waited_for(config):
    maker = Maker(config, 8)
    jobs = [maker.job(func) for func in (*STREAMING, *STREAMING[::-1]) for _ in range(2)]
    check(config, [Batch(jobs)], Stalls(9, beats=0.9))


@configs
def test_what_is_stored_is_replayed(config):
    """Bytes of a computed MLP output, laid out as docs/architecture.md says, add the same again."""
    maker = Maker(config, 3)
    hidden = config.max_hidden
    jobs = [Job(VecFunc.AMAX, hidden), Job(VecFunc.QUANT_BYTES, hidden), Job(VecFunc.RESIDUAL_STORE, hidden)]
    y = maker.y()
    computed, *_ = check(config, [Batch(jobs, y=y)], Stalls(4, bytes=0.4), whole=False)
    header, *items = computed.effects.bytes[-1 - hidden // config.vector_width :]
    raw = [b for item in items for b in item]
    stream = [int.from_bytes(raw[i : i + 2], "little", signed=True) for i in range(0, 2 * hidden, 2)]
    replay = Job(VecFunc.REPLAY, hidden, stream=stream, e=header[0])
    replayed, *_ = check(config, [Batch([replay])], whole=False)
    sums = [word[-1] for word in computed.effects.trace if word[3] == X]
    assert [word[-1] for word in replayed.effects.trace] == sums


def test_a_changed_operand_is_noticed():
    maker = Maker(WIDE, 7)
    batch = Batch([Job(VecFunc.PARAM, 8, stream=maker.values(8, 16)), Job(VecFunc.ROPE, 8)], y=maker.y())
    observed = bench(WIDE).run([batch])
    batch.jobs[0].stream[3] ^= 1 << 13
    reference = Reference(WIDE, places(WIDE))
    for word in batch.y:
        reference.write_y(word.lane, word.addr, word.data)
    assert observed[0].effects != reference.run(batch.jobs)
