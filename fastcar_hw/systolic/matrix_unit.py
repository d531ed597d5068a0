"""The matrix unit: command queue, feeder, cores, requantizer, and distribution of the results."""

from amaranth.hdl import Module, signed
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..config import AcceleratorConfig
from ..isa import Command, MatMode
from ..memory.beat_fifo import BeatPort
from .core import SystolicCore
from .decode import Decoder
from .drain import Drain
from .feeder import Feeder
from .places import PlacesSignature
from .requantize import Requantizer
from .words import LogitWord, ScoreWord, TasScore, TraceKind, TraceWord, YWord

__all__ = ["LogitWord", "MatrixUnit", "ScoreWord", "TasScore", "TraceKind", "TraceWord", "YWord"]


class MatrixUnit(wiring.Component):
    """All matrix products of the decoder on the systolic cores.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    command : In, stream of `isa.Command`; busy : Out
        Operations (`isa.MatMode`) with K >= 1.  ``busy`` from the cycle after a command was taken until every
        result has been taken by its consumer.
    beats : In, `BeatPort`
        Weights, keys, values.
    y_write, s_write, tas, logits : Out, streams of `YWord`, `ScoreWord`, `TasScore`, `LogitWord`
        Results, by mode.
    ex_lane, ex_index : Out; ex_exponent, ex_scale : In
        Exponent file.  The answer may be combinational or one cycle late; entries stay until ``busy`` falls.
    act_en, act_core, act_index, act_addr, act_data : In
        Writes of ``vector_width`` bytes into the activation memories (``act_addr``: byte of the slot, a
        multiple of ``vector_width``).  A command that is taken in the same or a later cycle sees them.
    places : PlacesSignature
        From the scheduler.  `Map.MAPPED` must stay until ``busy`` falls.
    macs : Out
        Useful multiply-accumulates of this cycle: rows in use times columns.
    starved, held : Out
        1 while a beat is needed but none is there; while the last beat of a pass waits for the drain.
    saturated : Out
        Strobe: a word with a clamped element was transferred.
    trace : Out, `TraceWord`
        Only with ``config.trace``: each word in the cycle of its transfer.  For `TraceKind.TAS` ``addr`` is
        the head, and the score is in element 0.

    Notes
    -----
    The first beat is taken `START` cycles after the command was accepted.  A command takes `cycles` of the
    feeder, the next one follows without a gap, and the first word of a pass comes `latency` cycles after its
    last beat was taken.  The last beat of a pass waits until the pass before has left the cores: no cycle is
    lost when passes end at least `least_distance` apart.
    """

    #: Cycles from the acceptance of a command, with the unit idle, to the first beat: queue, decoder, feeder.
    START = 1 + Decoder.LATENCY + 1
    #: Cycles lost between two passes of a tile.
    REWIND = Feeder.REWIND

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g = config.derived
        ports = {
            "command": In(stream.Signature(Command)),
            "busy": Out(1),
            "beats": In(BeatPort(config)),
            "y_write": Out(stream.Signature(YWord(config))),
            "s_write": Out(stream.Signature(ScoreWord(config))),
            "tas": Out(stream.Signature(TasScore)),
            "logits": Out(stream.Signature(LogitWord(config))),
            "ex_lane": Out(5),
            "ex_index": Out(8),
            "ex_exponent": In(signed(8)),
            "ex_scale": In(16),
            "act_en": In(1),
            "act_core": In(g.core_bits),
            "act_index": In(g.slot_bits),
            "act_addr": In(range(g.act_depth)),
            "act_data": In(data.ArrayLayout(signed(8), config.vector_width)),
            "places": Out(PlacesSignature(config)),
            "macs": Out(range(config.cores * config.rows * config.cols + 1)),
            "starved": Out(1),
            "held": Out(1),
            "saturated": Out(1),
        }
        if config.trace:
            ports["trace"] = Out(TraceWord(config))
        super().__init__(ports)

    @staticmethod
    def cycles(*, steps: int, tiles: int = 1, passes: int = 1, params: bool = True) -> int:
        """Return the cycles of a command from its first beat to the next command's; see `Feeder.cycles`."""
        return Feeder.cycles(steps=steps, tiles=tiles, passes=passes, params=params)

    @staticmethod
    def latency(config: AcceleratorConfig, idle: int = 0) -> int:
        """Return the cycles from the last beat of a pass to its first word; ``idle`` as in `Drain.wait`."""
        return Requantizer.latency(config, idle)

    @staticmethod
    def least_distance(config: AcceleratorConfig, slots: int, idle: int = 0) -> int:
        """Return the distance of the ends of two passes from which the drain of the first costs nothing."""
        return Drain.cycles(config, slots=slots, idle=idle)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config

        m.submodules.queue = queue = fifo.SyncFIFO(width=Command.as_shape().size, depth=2)
        m.submodules.decoder = decoder = Decoder(c)
        m.submodules.feeder = feeder = Feeder(c)
        m.submodules.requantizer = requantizer = Requantizer(c)
        connect(m, decoder.o, feeder.task)
        connect(m, flipped(self.beats), feeder.beats)
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
            decoder.i.payload.eq(queue.r_data),
            decoder.i.valid.eq(queue.r_rdy),
            queue.r_en.eq(decoder.i.ready),
            decoder.static_count.eq(self.places.static_count),
            decoder.mapped_count.eq(self.places.mapped_count),
            requantizer.job.eq(feeder.job),
            requantizer.job_valid.eq(feeder.job_valid),
            feeder.drain_free.eq(requantizer.free),
        ]
        for number in range(c.cores):
            m.submodules[f"core_{number}"] = core = SystolicCore(c)
            m.d.comb += [
                core.control.eq(feeder.control),
                core.weights.eq(feeder.weights),
                core.act_en.eq(self.act_en & (self.act_core == number)),
                core.act_index.eq(self.act_index),
                core.act_addr.eq(self.act_addr),
                core.act_data.eq(self.act_data),
                core.shift.eq(requantizer.shift[number]),
                requantizer.results[number].eq(core.result),
            ]
        connect(m, requantizer.places, flipped(self.places))
        m.d.comb += [
            self.ex_lane.eq(requantizer.ex_lane),
            self.ex_index.eq(requantizer.ex_index),
            requantizer.ex_exponent.eq(self.ex_exponent),
            requantizer.ex_scale.eq(self.ex_scale),
            self.busy.eq(queue.r_rdy | decoder.o.valid | feeder.busy | requantizer.busy),
            self.starved.eq(feeder.starved),
            self.held.eq(feeder.held),
            self.saturated.eq(requantizer.saturated),
        ]
        with m.If(feeder.control.valid):
            m.d.comb += self.macs.eq(feeder.active_rows * c.cols)
        self._distribute(m, requantizer)
        return m

    def _distribute(self, m: Module, requantizer: Requantizer) -> None:
        """Hand each result word to the consumer that its mode names, and copy it to the trace."""
        c = self._config
        words = requantizer.o
        word, info = words.payload.data, words.payload.info
        y, s, tas, logits = self.y_write, self.s_write, self.tas, self.logits
        for port, names in (
            (y, ("lane", "addr", "tag", "layer")),
            (s, ("bank", "addr", "ve", "mask", "first", "tag", "layer", "lane")),
            (tas, ("lane", "head")),
            (logits, ("lane", "addr", "tag", "layer")),
        ):
            m.d.comb += [port.payload[name].eq(info[name]) for name in names]
        m.d.comb += [
            y.payload.data.eq(word),
            [s.payload.data[i].eq(word[i]) for i in range(c.vector_width)],
            tas.payload.score.eq(word[info.element]),
            logits.payload.data.eq(word),
        ]

        if c.trace:
            trace = self.trace
            m.d.comb += [
                trace.valid.eq(words.valid & words.ready),
                trace.tag.eq(info.tag),
                trace.layer.eq(info.layer),
                trace.lane.eq(info.lane),
                trace.addr.eq(info.addr),
                trace.count.eq(c.vector_width),
                trace.data.eq(word),
            ]
        for mode, port, kind in (
            (MatMode.LINEAR, y, TraceKind.Y),
            (MatMode.PV, y, TraceKind.Y),
            (MatMode.SCORE, s, TraceKind.SCORE),
            (MatMode.TAS, tas, TraceKind.TAS),
            (MatMode.LOGITS, logits, TraceKind.LOGITS),
        ):
            with m.If(info.mode == mode):
                m.d.comb += [port.valid.eq(words.valid), words.ready.eq(port.ready)]
                if c.trace:
                    m.d.comb += self.trace.kind.eq(kind)
                    if mode is MatMode.TAS:
                        m.d.comb += [
                            self.trace.addr.eq(info.head),
                            self.trace.count.eq(1),
                            self.trace.data[0].eq(tas.payload.score),
                        ]
