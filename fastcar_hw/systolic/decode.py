"""Decoder of the matrix unit: what a command means for the array."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Command, Map, MatMode

__all__ = ["Decoder", "MatrixTask"]


class MatrixTask(data.StructLayout):
    """A decoded command.

    Fields of `isa.Command`, and: ``tiles``, ``steps`` (K - 1), ``params`` (tiles begin with two parameter
    beats), ``start_pass`` and ``last_pass``, ``start`` (activation address of the first pass), ``lane_row``
    (the row of ``lane`` in its pass), ``counts`` (lanes of each core from the first pass on; 0 or 1 for
    `Map.LANE`).
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        g = config.derived
        passes = range(g.passes)
        super().__init__(
            {
                "mode": MatMode,
                "map": Map,
                "lane": 5,
                "shift": signed(7),
                "eidx": 8,
                "bank": 1,
                "d": 16,
                "element": 16,
                "tag": 8,
                "layer": 7,
                "tiles": 16,
                "steps": 16,
                "params": 1,
                "start_pass": passes,
                "last_pass": passes,
                "start": range(g.act_depth * g.passes),
                "lane_row": range(config.rows),
                "counts": data.ArrayLayout(range(config.lanes + 1), config.cores),
            }
        )


class Decoder(wiring.Component):
    """Resolve a command into a `MatrixTask`, one register stage.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    i : In, stream of `isa.Command`
        Commands.  Those with no tiles (b = 0, except `MatMode.TAS`) are dropped.  K must not be 0.
    static_count, mapped_count : In
        Lanes on each core; sampled when the command is taken.
    o : Out, stream of `MatrixTask`
        Tasks, `LATENCY` cycle later; one a cycle.
    """

    LATENCY = 1

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        counts = data.ArrayLayout(range(config.lanes + 1), config.cores)
        super().__init__(
            {
                "i": In(stream.Signature(Command)),
                "static_count": In(counts),
                "mapped_count": In(counts),
                "o": Out(stream.Signature(MatrixTask(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        command = self.i.payload
        is_tas = command.func == MatMode.TAS.value
        only_lane = command.map == Map.LANE

        task = Signal(MatrixTask(c))
        for name in ("map", "lane", "shift", "eidx", "bank", "d", "tag", "layer"):
            m.d.comb += task[name].eq(command[name])
        m.d.comb += [
            task.mode.as_value().eq(command.func),
            task.element.eq(command.b),
            task.tiles.eq(Mux(is_tas, 1, command.b)),
            task.steps.eq(command.a[:16] - 1),
            task.params.eq(command.func != MatMode.PV.value),
        ]
        with m.If(only_lane), m.Switch(command.lane):
            # A single lane needs only the pass that it sits in.
            for lane in range(c.lanes):
                core, index = lane % c.cores, lane // c.cores
                number, row = index // c.rows, index % c.rows
                with m.Case(lane):
                    m.d.comb += [
                        task.lane_row.eq(row),
                        task.start_pass.eq(number),
                        task.last_pass.eq(number),
                        task.start.eq(command.a[16:] + number * g.act_depth),
                        task.counts[core].eq(1),
                    ]
        with m.Else():
            m.d.comb += [
                task.start.eq(command.a[16:]),
                task.counts.eq(Mux(command.map == Map.MAPPED, self.mapped_count, self.static_count)),
            ]
            # The fullest core decides how often a tile is needed.
            for number in range(1, g.passes):
                for core in range(c.cores):
                    with m.If(task.counts[core] > number * c.rows):
                        m.d.comb += task.last_pass.eq(number)

        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        with m.If(self.i.ready):
            m.d.sync += [
                self.o.valid.eq(self.i.valid & (is_tas | (command.b != 0))),
                self.o.payload.eq(task),
            ]
        return m
