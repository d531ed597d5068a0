"""Proofs about the scheduler, for all time: nothing lost, nothing twice, balanced, in bounded time."""

import inspect
import types

import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs import scheduler as scheduler_module
from fastcar_hw.drs.scheduler import Scheduler

SHAPES = [(1, 1, 1), (3, 2, 1), (4, 2, 2), (5, 3, 1), (8, 4, 2)]


def configuration(lanes, cores, rows):
    return AcceleratorConfig(name="formal", lanes=lanes, cores=cores, rows=rows)


def constant(m, first, value):
    """Hold a free input for ever: the proof is for every value of it."""
    before = Signal.like(value, name=f"before_{value.name}")
    m.d.sync += before.eq(value)
    m.d.comb += Assume(first | (value == before))


class SchedulerProof(wiring.Component):
    """A scheduler among free inputs, with what must hold of it.

    ``lane`` and (``core``, ``index``) are arbitrary but fixed, so what holds for them holds for all.
    """

    def __init__(self, config, kind=Scheduler):
        self._config, self._kind = config, kind
        g = config.derived
        super().__init__(
            {
                "lanes": In(range(config.lanes + 1)),
                "static_map": In(1),
                "begin": In(1),
                "decide": In(1),
                "decide_lane": In(5),
                "decide_compute": In(1),
                "start": In(1),
                "lane": In(5),
                "core": In(g.core_bits),
                "index": In(g.slot_bits),
            }
        )

    def elaborate(self, platform):
        del platform
        m = Module()
        c = self._config
        m.submodules.dut = dut = self._kind(c)
        first = Signal(init=1)
        m.d.sync += first.eq(0)

        # What the surroundings promise.
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(self.begin + self.decide + self.start + dut.busy <= 1),
            Assume(self.lanes <= c.lanes),
            Assume(self.lane < self.lanes),
            Assume(self.core < c.cores),
        ]
        for value in (self.lanes, self.static_map, self.lane, self.core, self.index):
            constant(m, first, value)
        m.d.comb += [
            dut.lanes.eq(self.lanes),
            dut.static_map.eq(self.static_map),
            dut.begin.eq(self.begin),
            dut.decide.eq(self.decide),
            dut.decide_lane.eq(self.decide_lane),
            dut.decide_compute.eq(self.decide_compute),
            dut.start.eq(self.start),
            dut.place_lane.eq(self.lane),
            dut.place_mapped.eq(1),
            dut.places.core.eq(self.core),
            dut.places.index.eq(self.index),
            dut.places.mapped.eq(1),
        ]

        # The decisions that the map was made from, and the time that it took.
        decided = Signal(c.lanes)
        scheduled = Signal()
        age = Signal(range(2 * c.lanes + 3))
        bit = Signal(init=1)
        with m.If(self.start):
            m.d.sync += [decided.eq(dut.compute), scheduled.eq(1), age.eq(0)]
        with m.Elif(dut.busy & (age != 2 * c.lanes + 2)):
            m.d.sync += age.eq(age + 1)
        with m.If(self.begin):
            m.d.sync += bit.eq(1)
        with m.Elif(self.decide & (self.decide_lane == self.lane)):
            m.d.sync += bit.eq(self.decide_compute)

        # Index register.
        active = Cat(self.lanes > lane for lane in range(c.lanes))
        m.d.comb += [
            Assert(dut.compute.bit_select(self.lane, 1) == bit),
            Assert(dut.any_compute == (dut.compute & active).any()),
        ]
        # Bounded time: busy in at most `lanes` cycles, so usable `lanes + 1` after the start.
        with m.If(dut.busy):
            m.d.comb += [Assert(scheduled), Assert(age < self.lanes)]
        with m.If(scheduled & ~dut.busy):
            self._check_map(m, dut, decided & active)
        return m

    def _check_map(self, m, dut, computing):
        c = self._config
        counts = [dut.places.mapped_count[core] for core in range(c.cores)]
        total = sum((computing[lane] for lane in range(1, c.lanes)), computing[0])
        here, there = dut.places.lane, (dut.place_core, dut.place_index)
        matches = (there[0] == self.core) & (there[1] == self.index)
        # Every computing lane has a place that exists (none lost) ...
        with m.If(computing.bit_select(self.lane, 1)):
            m.d.comb += Assert(there[0] < c.cores)
            for core, count in enumerate(counts):
                with m.If(there[0] == core):
                    m.d.comb += Assert(there[1] < count)
            # ... where the inverse table finds it again (no place has two lanes).
            with m.If(matches):
                m.d.comb += Assert(here == self.lane)
            with m.If(self.static_map):
                m.d.comb += Assert(there[0] == self.lane % c.cores)
        # Every place that exists holds a computing lane (replayed ones are dropped), and only one place does.
        for core, count in enumerate(counts):
            with m.If((self.core == core) & (self.index < count)):
                m.d.comb += [Assert(here < self.lanes), Assert(computing.bit_select(here, 1))]
                with m.If(here == self.lane):
                    m.d.comb += Assert(matches)
        m.d.comb += Assert(sum(counts[1:], counts[0]) == total)
        for one in range(c.cores):
            m.d.comb += Assert(counts[one] <= c.derived.slots)
            for other in range(c.cores):
                with m.If(~self.static_map):
                    # Loads differ by at most one lane.
                    m.d.comb += Assert(counts[one] <= counts[other] + 1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_scheduler(prove, shape):
    """k-induction with k > lanes + 2 needs no invariant: a run of the scheduler is never longer."""
    config = configuration(*shape)
    passed, log = prove(SchedulerProof(config), depth=config.lanes + 3)
    assert passed, log


#: Broken schedulers: text that is replaced, and by what.
MUTATIONS = {
    "replayed lane dispatched": ("self.busy & self.compute.bit_select(lane, 1)", "self.busy"),
    "last lane lost": ("lane + 1 < self.lanes", "lane + 2 < self.lanes"),
    "unbalanced": ("after(turn)", "turn"),
    "counts kept": ("counts.eq(Const(0, counts.shape().size)),", ""),
    "two lanes in a place": ("index.eq(counts[core])", "index.eq(0)"),
    "wrong inverse": ("inverse_write.data.eq(lane)", "inverse_write.data.eq(turn)"),
    "static map ignored": ("Mux(self.static_map, home, turn)", "turn"),
    "slow": ("self.busy.eq(lane + 1 < self.lanes)", "self.busy.eq(lane < self.lanes)"),
    "begin forgets": ("m.d.sync += self.compute.eq(-1)", "m.d.sync += self.compute.eq(1)"),
}


def mutant(old, new):
    """Return the scheduler with a piece of its source replaced."""
    source = inspect.getsource(scheduler_module)
    assert source.count(old) == 1, f"{old!r} is not in the scheduler once"
    module = types.ModuleType("mutant")
    module.__package__ = scheduler_module.__package__
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)  # noqa: S102
    return module.Scheduler


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_scheduler_fails(prove, name):
    """The proof bites: every broken scheduler has a counterexample."""
    config = configuration(3, 2, 1)
    passed, log = prove(SchedulerProof(config, mutant(*MUTATIONS[name])), depth=12, mode="bmc")
    assert not passed, log
    assert "Assert failed" in log
