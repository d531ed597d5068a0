"""Drain: which results leave the cores when, and for which lane."""

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Map, MatMode
from .core import SystolicCore
from .feeder import DrainJob
from .places import PlacesSignature

__all__ = ["Drain", "Slot", "SlotWalker"]


class Slot(data.StructLayout):
    """A row with results: core, lane, shift count (without the columns' part), scale; ``last`` of a job."""

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(
            {
                "core": range(config.cores),
                "lane": unsigned(5),
                "shift": signed(9),
                "scale": unsigned(16),
                "last": 1,
            }
        )


class SlotWalker(wiring.Component):
    """Walk over the rows in use, core by core and bottom row first, and look up what belongs to their lanes.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    job : In; start : In
        Strobe: walk over a job, after the last slot of the one before was taken.  ``job`` must stay until
        then.
    places : PlacesSignature
        Look-up of lanes.
    ex_lane, ex_index : Out; ex_exponent, ex_scale : In
        Exponent file.  The answer is used in the second cycle of the address: it may be combinational or one
        cycle late.
    o : Out, stream of `Slot`
        The slots.

    Notes
    -----
    The first slot comes `LATENCY` cycles after ``start``; then one in two cycles.
    """

    LATENCY = 5

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "job": In(DrainJob(config)),
                "start": In(1),
                "places": Out(PlacesSignature(config)),
                "ex_lane": Out(5),
                "ex_index": Out(8),
                "ex_exponent": In(signed(8)),
                "ex_scale": In(16),
                "o": Out(stream.Signature(Slot(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        task = self.job.task
        only_lane = task.map == Map.LANE

        # Step 1: a place.  Cores with rows in use wait in `pending`.
        valid1 = Signal()
        core, row = Signal(range(c.cores)), Signal(range(c.rows))
        pending = Signal(c.cores)
        lowest = Signal(range(c.cores))
        for number in reversed(range(c.cores)):
            with m.If(pending[number]):
                m.d.comb += lowest.eq(number)
        last1 = Signal()
        m.d.comb += [
            last1.eq(~pending.any() & (only_lane | (row == 0))),
            self.places.core.eq(core),
            self.places.index.eq(self.job.number_of_pass * c.rows + row),
            self.places.mapped.eq(task.map == Map.MAPPED),
        ]
        # Step 2: its lane, which addresses the exponent file.  Step 3: the slot.
        valid2, settled2, last2 = Signal(), Signal(), Signal()
        core2 = Signal.like(core)
        move1, move2 = Signal(), Signal()
        m.d.comb += [
            move2.eq(valid2 & settled2 & (self.o.ready | ~self.o.valid)),
            move1.eq(valid1 & (move2 | ~valid2)),
        ]
        with m.If(move1 | ~valid1):
            with m.If(valid1 & ~only_lane & (row != 0)):
                m.d.sync += row.eq(row - 1)
            with m.Else():
                m.d.sync += [
                    valid1.eq(pending.any()),
                    core.eq(lowest),
                    row.eq(Mux(only_lane, task.lane_row, self.job.active[lowest] - 1)),
                ]
                for number in range(c.cores):
                    with m.If(lowest == number):
                        m.d.sync += pending[number].eq(0)
        with m.If(move1):
            m.d.sync += [
                self.ex_lane.eq(Mux(only_lane, task.lane, self.places.lane)),
                core2.eq(core),
                last2.eq(last1),
            ]
        m.d.comb += self.ex_index.eq(task.eidx)
        m.d.sync += settled2.eq(valid2 & ~move2)
        with m.If(move1 | move2):
            m.d.sync += [valid2.eq(move1)]
        slot = self.o.payload
        with m.If(move2):
            m.d.sync += [
                slot.core.eq(core2),
                slot.lane.eq(self.ex_lane),
                slot.shift.eq(task.shift - self.ex_exponent),
                slot.scale.eq(self.ex_scale),
                slot.last.eq(last2),
            ]
        with m.If(move2 | self.o.ready):
            m.d.sync += self.o.valid.eq(move2)
        with m.If(self.start):
            for number in range(c.cores):
                m.d.sync += pending[number].eq(self.job.active[number] != 0)
        return m


class Drain(wiring.Component):
    """Take results out of the cores, word by word.

    Parameters
    ----------
    config
        The accelerator; a row of results is ``cols / vector_width`` words.

    Attributes
    ----------
    job, job_valid : In
        From the feeder, with the last beat of a pass; only when ``free``.
    free : Out
        No results are waiting or about to be captured: another pass may end.
    places, ex_lane, ex_index, ex_exponent, ex_scale
        See `SlotWalker`.
    shift : Out
        Shift strobes of the cores.
    advance : In
        A word may leave in this cycle.
    present : Out, `DrainJob`; slot : Out, `Slot`; word : Out; valid : Out
        Word ``word`` of the bottom row of ``slot.core`` leaves (in cycles with ``advance``).

    Notes
    -----
    A word a cycle.  Idle rows below those in use are shifted out of all cores at once.  See `cycles`.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        words = config.cols // config.vector_width
        super().__init__(
            {
                "job": In(DrainJob(config)),
                "job_valid": In(1),
                "free": Out(1),
                "places": Out(PlacesSignature(config)),
                "ex_lane": Out(5),
                "ex_index": Out(8),
                "ex_exponent": In(signed(8)),
                "ex_scale": In(16),
                "shift": Out(config.cores),
                "advance": In(1),
                "present": Out(DrainJob(config)),
                "slot": Out(Slot(config)),
                "word": Out(range(words)),
                "valid": Out(1),
            }
        )

    @staticmethod
    def wait(config: AcceleratorConfig, idle: int = 0) -> int:
        """Return the cycles from the last beat of a pass to its first word.

        Parameters
        ----------
        config
            The accelerator.
        idle
            Idle rows below those in use, of the core with the most of them (only cores with rows in use
            count).
        """
        return max(1 + SystolicCore.latency(config), 1 + SlotWalker.LATENCY) + idle

    @classmethod
    def cycles(cls, config: AcceleratorConfig, *, slots: int, idle: int = 0) -> int:
        """Return the least distance of the last beats of two passes.

        Parameters
        ----------
        config
            The accelerator.
        slots, idle
            Rows in use of all cores in the first pass; see `wait`.  Nothing is drained when there are none.
        """
        return cls.wait(config, idle) + slots * (config.cols // config.vector_width) if slots else 1

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        word_bits = c.vector_width.bit_length() - 1
        words = c.cols // c.vector_width

        m.submodules.walker = walker = SlotWalker(c)
        wiring.connect(m, walker.places, wiring.flipped(self.places))
        job = self.present
        task = job.task
        is_tas = task.mode == MatMode.TAS
        only_lane = task.map == Map.LANE
        m.d.comb += [
            self.ex_lane.eq(walker.ex_lane),
            self.ex_index.eq(walker.ex_index),
            walker.ex_exponent.eq(self.ex_exponent),
            walker.ex_scale.eq(self.ex_scale),
            walker.job.eq(job),
            self.slot.eq(walker.o.payload),
        ]

        # Rows in use must come down to the bottom first, in all cores side by side.
        idle = Signal(data.ArrayLayout(range(c.rows), c.cores))
        lowering = Signal(c.cores)
        m.d.comb += [lowering[core].eq(idle[core] != 0) for core in range(c.cores)]

        left = Signal(range(SystolicCore.latency(c)))
        count = Signal.like(self.word)
        m.d.sync += walker.start.eq(self.job_valid)
        m.d.comb += [
            # Of a TAS tile only the word with the aligned token leaves.
            self.word.eq(Mux(is_tas, task.element >> word_bits, count)),
            walker.o.ready.eq(self.valid & self.advance & (is_tas | (count == words - 1))),
        ]
        with m.FSM() as fsm:
            m.d.comb += self.free.eq(fsm.ongoing("FREE"))
            with m.State("FREE"):
                m.d.sync += [job.eq(self.job), left.eq(SystolicCore.latency(c) - 1), count.eq(0)]
                with m.If(self.job_valid & self.job.active.as_value().any()):
                    m.next = "CAPTURE"
            with m.State("CAPTURE"):
                for core in range(c.cores):
                    used = Mux(only_lane, task.lane_row + 1, job.active[core])
                    m.d.sync += idle[core].eq(Mux(job.active[core] != 0, c.rows - used, 0))
                m.d.sync += left.eq(left - 1)
                with m.If(left == 0):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += self.valid.eq(walker.o.valid & ~lowering.any())
                with m.If(lowering.any()):
                    m.d.comb += self.shift.eq(lowering)
                    m.d.sync += [idle[core].eq(idle[core] - lowering[core]) for core in range(c.cores)]
                with m.If(self.valid & self.advance):
                    m.d.sync += count.eq(count + 1)
                with m.If(walker.o.ready):
                    m.d.sync += count.eq(0)
                    m.d.comb += self.shift.eq(1 << self.slot.core)
                    with m.If(self.slot.last):
                        m.next = "FREE"
        return m
