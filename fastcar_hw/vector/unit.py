"""The vector unit: command queue, pass control, and the way of a word through memories and pipeline."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..config import AcceleratorConfig
from ..isa import Command, VecFunc
from ..memory.beat_fifo import beat_layout
from ..memory.words import StoreWord
from ..systolic.words import ScoreWord, TraceWord, YWord
from .control import PassControl
from .decode import PassDecoder, PassTraits
from .fetch import OperandFetch
from .gearbox import Gearbox
from .memories import VectorMemories
from .pipeline import VectorPipeline
from .reductions import Reductions
from .scalars import LaneScalars
from .scores import ScoreMemory
from .stages import WRITE
from .store_words import StoreWords
from .trace import PassTrace
from .writeback import WriteBack

__all__ = ["VectorUnit"]


class VectorUnit(wiring.Component):
    """Norms, rotations, softmax, SwiGLU, quantization, residual stream: passes over the vectors of a lane.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    command : In, stream of `isa.Command`; busy : Out
        Passes (`isa.VecFunc`).
    beats : In, stream of beats
        Embeddings, gains, rotary factors, replay slots.
    y_write, s_write : In, streams
        Results of the matrix unit; they wait while a pass writes.
    ex_lane, ex_index : In; ex_exponent, ex_scale : Out
        Exponent file for the matrix unit (combinational).
    act_en, act_core, act_index, act_addr, act_data : Out
        Quantized activations.
    place_lane, place_mapped : Out; place_core, place_index : In
        Where a lane sits (combinational).
    bytes : Out, stream of `StoreWord`
        Data for the store unit.
    saturated : Out
        Strobe: a word with a clamped element was written.
    stalled : Out
        The pass at work waits for the store unit.
    trace : Out, `TraceWord`
        Only with ``config.trace``: kinds 0 = X, 1 = Y, 2 = softmax weights, 3 = activations, 4 = bytes to store.

    Notes
    -----
    Passes follow one another every `cycles`: one a word and `overhead`.  From the cycle in which an idle unit takes a
    command until ``busy`` falls there are `START` more.  A cycle in which ``bytes`` or a missing beat is waited for
    costs a cycle; what the matrix unit writes costs nothing, but softmax passes begin only when no score is on its way
    to the maxima.
    """

    #: Cycles that a command spends in an empty queue.
    START = 2
    #: Commands that it holds, the one at work included.
    QUEUE = 4
    #: Words that it holds for the store unit.  They may leave after ``busy`` has fallen: the store unit is busy then.
    OUTBOX = 4

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g, w = config.derived, config.vector_width
        ports = {
            "command": In(stream.Signature(Command)),
            "busy": Out(1),
            "beats": In(stream.Signature(beat_layout(config))),
            "y_write": In(stream.Signature(YWord(config))),
            "s_write": In(stream.Signature(ScoreWord(config))),
            "ex_lane": In(5),
            "ex_index": In(8),
            "ex_exponent": Out(signed(8)),
            "ex_scale": Out(16),
            "act_en": Out(1),
            "act_core": Out(g.core_bits),
            "act_index": Out(g.slot_bits),
            "act_addr": Out(range(g.act_depth)),
            "act_data": Out(data.ArrayLayout(signed(8), w)),
            "place_lane": Out(5),
            "place_mapped": Out(1),
            "place_core": In(g.core_bits),
            "place_index": In(g.slot_bits),
            "bytes": Out(stream.Signature(StoreWord(config))),
            "saturated": Out(1),
            "stalled": Out(1),
        }
        if config.trace:
            ports["trace"] = Out(TraceWord(config))
        super().__init__(ports)

    @staticmethod
    def overhead(config: AcceleratorConfig) -> int:
        """Cycles of a pass beside its words: look-up, settings, pipeline, reduction, finish."""
        return PassControl.CYCLES + WRITE + Reductions.latency(config)

    @classmethod
    def cycles(cls, config: AcceleratorConfig, func: VecFunc, elements: int, exp_sum: int = 1 << 15) -> int:
        """Return the cycles of a pass when nothing stalls.

        Parameters
        ----------
        config
            The accelerator.
        func, elements
            The pass.
        exp_sum
            Sum of the softmax numerators, on which the time of the exact division depends.
        """
        words = -(-elements // config.vector_width)
        extra = {
            VecFunc.SWIGLU: words - 1,  # two operands a word
            VecFunc.SQUARES: PassControl.ROOT,
            VecFunc.SOFTMAX: PassControl.DIVISION - exp_sum.bit_length(),
        }
        return words + cls.overhead(config) + extra.get(func, 0)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        m.submodules.queue = queue = fifo.SyncFIFO(width=Command.as_shape().size, depth=self.QUEUE - 1)
        m.submodules.decoder = decoder = PassDecoder()
        m.submodules.control = control = PassControl()
        m.submodules.gearbox = gearbox = Gearbox(c)
        m.submodules.memories = memories = VectorMemories(c)
        m.submodules.scores = scores = ScoreMemory(c)
        m.submodules.scalars = scalars = LaneScalars(c)
        m.submodules.fetch = fetch = OperandFetch(c)
        m.submodules.pipeline = pipeline = VectorPipeline(c)
        m.submodules.writeback = writeback = WriteBack(c)
        m.submodules.reductions = reductions = Reductions(c)
        m.submodules.store_words = store_words = StoreWords(c)

        # The command of the pass at work, and what it means, are registers: they steer everything here.
        following = data.View(Command.as_shape(), queue.r_data)
        cmd, traits, pending = Signal(Command), Signal(PassTraits), Signal()
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
            queue.r_en.eq(control.finish | ~pending),
            self.busy.eq(queue.level.any() | pending),
            decoder.func.eq(following.func),
            control.pending.eq(pending),
        ]
        with m.If(queue.r_en):
            m.d.sync += [cmd.eq(following), traits.eq(decoder.o), pending.eq(queue.r_rdy)]
        en = store_words.en
        for block in (control, fetch, writeback):
            m.d.comb += block.command.eq(cmd)
        for block in (control, fetch, writeback, reductions, store_words):
            m.d.comb += block.traits.eq(traits)
        for block in (fetch, writeback, reductions):
            m.d.comb += block.restart.eq(control.restart)
        for block in (memories, fetch, pipeline, writeback, reductions):
            m.d.comb += block.en.eq(en)
        for block in (reductions, store_words):
            m.d.comb += block.valid.eq(fetch.valid)

        self._connect_fetch(m, control, gearbox, memories, scores, fetch, cmd)
        self._connect_pipeline(m, control, memories, scores, fetch, pipeline)
        self._connect_results(m, memories, scores, fetch, pipeline, writeback, cmd)
        self._connect_store(m, control, pipeline, writeback, store_words)
        self._connect_scalars(m, control, scores, scalars, pipeline, writeback, reductions, cmd)
        m.d.comb += control.done.eq(fetch.done & ~reductions.settling)

        if c.trace:
            m.submodules.trace = trace = PassTrace(c)
            m.d.comb += [
                trace.command.eq(cmd),
                trace.traits.eq(traits),
                trace.strobe.eq(writeback.valid & en),
                trace.index.eq(writeback.index),
                trace.result.eq(writeback.result),
                trace.quantized.eq(writeback.quantized),
                trace.sent.eq(store_words.o.valid & store_words.o.ready),
                trace.item.eq(store_words.o.payload),
                self.trace.eq(trace.o),
            ]
        return m

    def _connect_fetch(self, m, control, gearbox, memories, scores, fetch, cmd) -> None:
        """Connect memories and stream to the fetch."""
        connect(m, flipped(self.beats), gearbox.beats)
        connect(m, gearbox.o, fetch.stream)
        m.d.comb += [
            gearbox.skip.eq(control.skip),
            gearbox.drop.eq(control.drop),
            control.skipped.eq(self.beats.valid),
            control.skip_header.eq(self.beats.payload[0]),
            fetch.run.eq(control.run),
            memories.lane.eq(cmd.lane),
            memories.x_addr.eq(fetch.x_addr),
            memories.y_addr.eq(fetch.y_addr),
            memories.p_addr.eq(fetch.p_addr),
            fetch.x.eq(memories.x),
            fetch.y.eq(memories.y),
            scores.read_en.eq(memories.en),
            scores.read_bank.eq(cmd.bank),
            scores.read_addr.eq(fetch.s_addr),
            fetch.scores.eq(scores.score),
            fetch.ve.eq(scores.ve),
        ]

    def _connect_pipeline(self, m, control, memories, scores, fetch, pipeline) -> None:
        """Connect fetch and memories to the pipeline."""
        m.d.comb += [
            pipeline.settings.eq(control.settings),
            pipeline.a.eq(fetch.a),
            pipeline.ve.eq(fetch.a_ve),
            pipeline.mask.eq(fetch.a_mask),
            pipeline.reference.eq(scores.largest),
            pipeline.ve_max.eq(scores.ve_largest),
            pipeline.params.eq(memories.p),
            pipeline.other.eq(memories.other),
        ]

    def _connect_results(self, m, memories, scores, fetch, pipeline, writeback, cmd) -> None:
        """Connect the pipeline to the write-back, and that to memories and activations."""
        connect(m, flipped(self.y_write), memories.results)
        connect(m, flipped(self.s_write), scores.i)
        m.d.comb += [
            writeback.valid.eq(fetch.valid[WRITE]),
            writeback.r.eq(pipeline.r),
            writeback.clamped.eq(pipeline.saturated),
            writeback.x.eq(memories.residual),
            memories.x_write.eq(writeback.x_write),
            memories.y_write.eq(writeback.y_write),
            memories.p_write.eq(writeback.p_write),
            memories.addr.eq(writeback.addr),
            memories.word.eq(writeback.result),
            scores.write_en.eq(writeback.s_write),
            scores.write_bank.eq(cmd.bank),
            scores.write_addr.eq(writeback.addr),
            self.act_data.eq(writeback.quantized),
            self.saturated.eq(writeback.saturated),
        ]
        m.d.comb += [scores.write_data[i].eq(writeback.result[i]) for i in range(self._config.vector_width)]
        for name in ("act_en", "act_core", "act_index", "act_addr", "place_lane", "place_mapped"):
            m.d.comb += getattr(self, name).eq(getattr(writeback, name))
        m.d.comb += [writeback.place_core.eq(self.place_core), writeback.place_index.eq(self.place_index)]

    def _connect_store(self, m, control, pipeline, writeback, store_words) -> None:
        """Connect what the store unit gets, through a queue: whether that has room is known early enough for ``en``."""
        m.submodules.outbox = outbox = fifo.SyncFIFOBuffered(width=StoreWord(self._config).size, depth=self.OUTBOX)
        m.d.comb += [
            outbox.w_data.eq(store_words.o.payload),
            outbox.w_en.eq(store_words.o.valid),
            store_words.o.ready.eq(outbox.w_rdy),
            self.stalled.eq(store_words.o.valid & ~outbox.w_rdy),
            self.bytes.payload.as_value().eq(outbox.r_data),
            self.bytes.valid.eq(outbox.r_rdy),
            outbox.r_en.eq(self.bytes.ready),
            store_words.header.eq(control.send_header),
            store_words.exponent.eq(control.header),
            control.header_sent.eq(store_words.o.ready),
            store_words.quantized.eq(writeback.quantized),
            store_words.mantissa.eq(pipeline.mantissa),
        ]

    def _connect_scalars(self, m, control, scores, scalars, pipeline, writeback, reductions, cmd) -> None:
        """Connect reductions, control and exponent file."""
        m.d.comb += [
            scores.bank.eq(cmd.bank),
            reductions.clear.eq(control.clear),
            reductions.results.eq(writeback.result),
            reductions.squares.eq(pipeline.square),
            reductions.exps.eq(pipeline.exp),
            control.settling.eq(scores.settling),
            control.largest.eq(reductions.largest),
            control.square_sum.eq(reductions.square_sum),
            control.exp_sum.eq(reductions.exp_sum),
            control.ve_largest.eq(scores.ve_largest),
            control.x_largest.eq(scalars.x_largest),
            scalars.lane.eq(cmd.lane),
            scalars.x_write.eq(control.x_write),
            scalars.magnitude.eq(reductions.largest),
            scalars.entry_write.eq(control.entry_write),
            scalars.index.eq(cmd.eidx),
            scalars.entry.eq(control.entry),
            scalars.ex_lane.eq(self.ex_lane),
            scalars.ex_index.eq(self.ex_index),
            self.ex_exponent.eq(scalars.ex_exponent),
            self.ex_scale.eq(scalars.ex_scale),
        ]
