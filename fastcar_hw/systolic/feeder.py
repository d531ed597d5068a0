"""Feeder: turns tasks into beats and control for the cores."""

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..memory.beat_fifo import BeatPort
from .decode import MatrixTask
from .row import BeatControl

__all__ = ["DrainJob", "Feeder"]


class DrainJob(data.StructLayout):
    """What the requantizer must know about results that are about to be captured.

    ``active``: rows in use on each core, from row 0 (`Map.LANE`: one, at ``task.lane_row``).  ``params``: the
    two parameter beats, the first one in the low half.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(
            {
                "task": MatrixTask(config),
                "tile": unsigned(16),
                "number_of_pass": range(config.derived.passes),
                "active": data.ArrayLayout(range(config.rows + 1), config.cores),
                "params": unsigned(2 * config.derived.data_width),
            }
        )


class Feeder(wiring.Component):
    """Stream tiles through the cores, pass by pass.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    task : In, stream of `MatrixTask`
        Decoded commands.
    beats : In, `BeatPort`
        Parameter and weight beats.
    control, weights : Out
        The beat for row 0 of every core.
    job, job_valid : Out
        Strobe in the cycle that takes the last beat of a pass, one cycle before it is at ``control``.
    drain_free : In
        Another pass may end.  Its last beat waits for this.
    busy : Out
        A task is in work.
    active_rows : Out
        Rows in use, of all cores, by the beat at ``control``.
    starved, held : Out
        1 while a beat is needed but none is there; while the last beat of a pass waits for the drain.

    Notes
    -----
    A beat a cycle, without a gap between passes of a tile (beside the rewind), tiles or tasks: see `cycles`.
    """

    #: Cycles from the last beat of a pass to the first of the next one: the FIFO starts again.
    REWIND = 3

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "task": In(stream.Signature(MatrixTask(config))),
                "beats": In(BeatPort(config)),
                "control": Out(BeatControl(config)),
                "weights": Out(data.ArrayLayout(signed(8), config.cols)),
                "job": Out(DrainJob(config)),
                "job_valid": Out(1),
                "drain_free": In(1),
                "busy": Out(1),
                "active_rows": Out(range(config.cores * config.rows + 1)),
                "starved": Out(1),
                "held": Out(1),
            }
        )

    @classmethod
    def cycles(cls, *, steps: int, tiles: int = 1, passes: int = 1, params: bool = True) -> int:
        """Return the cycles that a task takes when neither memory nor drain hold it.

        Parameters
        ----------
        steps, tiles, passes
            K; tiles of the command; traversals of each tile.
        params
            Whether the tiles begin with parameter beats (all modes but PV).
        """
        return tiles * (2 * params + passes * steps + (passes - 1) * cls.REWIND)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        beats = self.beats.stream
        following = self.task.payload

        task = Signal(MatrixTask(c))
        tile, tiles_left = Signal(16), Signal(16)
        number_of_pass = Signal(range(g.passes))
        remaining = Signal(task.counts.shape())  # lanes of each core in this pass and later ones
        addr = Signal(self.control.addr.shape())
        steps_left = Signal(16)
        first, last = Signal(), Signal()
        params = Signal(2 * g.data_width, reset_less=True)
        second_param = Signal()
        send = Signal()

        active = Signal(data.ArrayLayout(range(c.rows + 1), c.cores))
        for core in range(c.cores):
            m.d.comb += active[core].eq(Mux(remaining[core] > c.rows, c.rows, remaining[core]))
        m.d.comb += [
            self.job.task.eq(task),
            self.job.tile.eq(tile),
            self.job.number_of_pass.eq(number_of_pass),
            self.job.active.eq(active),
            self.job.params.eq(params),
        ]
        # Registers before the broadcast to all cores.
        m.d.sync += [
            self.control.valid.eq(send),
            self.control.first.eq(first),
            self.control.last.eq(last),
            self.control.addr.eq(addr),
            self.active_rows.eq(sum((active[core] for core in range(c.cores)), Const(0, 1))),
        ]
        weights = Signal(self.weights.shape(), reset_less=True)
        m.d.sync += weights.eq(beats.payload)
        m.d.comb += self.weights.eq(weights)

        def begin_pass(steps: Value, start: Value) -> None:
            m.d.sync += [addr.eq(start), steps_left.eq(steps), first.eq(1), last.eq(steps == 0)]

        def begin_tile(origin: data.View) -> None:
            begin_pass(origin.steps, origin.start)
            m.d.sync += [
                remaining.eq(origin.counts),
                number_of_pass.eq(origin.start_pass),
                second_param.eq(0),
            ]
            with m.If(origin.params):
                m.next = "PARAMS"
            with m.Else():
                m.next = "FEED"

        def next_task() -> None:
            m.d.comb += self.task.ready.eq(1)
            m.next = "IDLE"
            with m.If(self.task.valid):
                m.d.sync += [task.eq(following), tile.eq(0), tiles_left.eq(following.tiles - 1)]
                begin_tile(following)

        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                next_task()
            with m.State("PARAMS"):
                m.d.comb += [beats.ready.eq(1), self.starved.eq(~beats.valid)]
                with m.If(beats.valid):
                    m.d.sync += [
                        params[: g.data_width].eq(params[g.data_width :]),
                        params[g.data_width :].eq(beats.payload.as_value()),
                        second_param.eq(1),
                    ]
                    with m.If(second_param):
                        # A rewind goes back to the weights, not to the parameters.
                        m.d.comb += self.beats.commit.eq(1)
                        m.next = "FEED"
            with m.State("FEED"):
                hold = last & ~self.drain_free
                m.d.comb += [
                    beats.ready.eq(~hold),
                    send.eq(beats.valid & ~hold),
                    self.starved.eq(~beats.valid & ~hold),
                    self.held.eq(hold),
                ]
                with m.If(send):
                    m.d.sync += [
                        addr.eq(addr + 1),
                        steps_left.eq(steps_left - 1),
                        first.eq(0),
                        last.eq(steps_left == 1),
                    ]
                    with m.If(last):
                        m.d.comb += self.job_valid.eq(1)
                        with m.If(number_of_pass != task.last_pass):
                            m.next = "REWIND"
                        with m.Else():
                            m.d.comb += self.beats.commit.eq(1)
                            m.d.sync += [tile.eq(tile + 1), tiles_left.eq(tiles_left - 1)]
                            with m.If(tiles_left != 0):
                                begin_tile(task)
                            with m.Else():
                                next_task()
            with m.State("REWIND"):
                m.d.comb += self.beats.rewind.eq(1)
                m.d.sync += number_of_pass.eq(number_of_pass + 1)
                # Only the maps of several lanes have several passes, and those start at pass 0.
                with m.Switch(number_of_pass):
                    for number in range(g.passes - 1):
                        with m.Case(number):
                            begin_pass(task.steps, task.start + (number + 1) * g.act_depth)
                for core in range(c.cores):
                    m.d.sync += remaining[core].eq(Mux(remaining[core] > c.rows, remaining[core] - c.rows, 0))
                m.next = "FEED"
        return m
