"""The vector unit: memories, pass control, and the pipeline between them."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from ..config import AcceleratorConfig
from ..isa import Command, Map, VecFunc
from ..memory.beat_fifo import beat_layout
from ..memory.words import StoreWord
from ..numerics.divider import Reciprocal
from ..numerics.rounding import RoundShift, clamp_shift, saturate
from ..numerics.rsqrt import ReciprocalSqrt
from ..systolic.words import ScoreWord, TraceWord, YWord
from .gearbox import Gearbox
from .pipeline import First, PassSettings, Second, VectorPipeline
from .reduce import maximum, total, tree, tree_latency
from .scores import ScoreMemory

__all__ = ["VectorUnit"]

#: Stages from the issue of a read to the pipeline: memory, operand register.
_FETCH = 2
#: Stage at which the pipeline's results are registered with the residual added.
_WRITE = _FETCH + VectorPipeline.LATENCY + 1


def _in(func: object, *names: VecFunc) -> Signal:
    """1 when the function of the present pass is one of some."""
    match = Const(0, 1)
    for name in names:
        match = match | (func == name.value)
    return match


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
        }
        if config.trace:
            ports["trace"] = Out(TraceWord(config))
        super().__init__(ports)

    @staticmethod
    def overhead(config: AcceleratorConfig) -> int:
        """Cycles of a pass beside its words: look-up, settings, pipeline, reduction, finish."""
        return _WRITE + tree_latency(config.vector_width) + 6

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
            Sum of the softmax numerators: the exact division takes 52 cycles less one for each of its bits
            (16 to 31).
        """
        words = -(-elements // config.vector_width)
        extra = {
            VecFunc.SWIGLU: words - 1,  # two operands a word
            VecFunc.SQUARES: ReciprocalSqrt.LATENCY + 1,
            VecFunc.SOFTMAX: 52 - exp_sum.bit_length(),
        }
        return words + cls.overhead(config) + extra.get(func, 0)

    def elaborate(self, platform: object) -> Module:  # noqa: PLR0915 - one datapath, read from top to bottom
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        w = c.vector_width
        word_bits = w.bit_length() - 1

        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=Command.as_shape().size, depth=4)
        cmd = data.View(Command.as_shape(), queue.r_data)
        func = cmd.func
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
            self.busy.eq(queue.level.any()),
        ]

        word32 = data.ArrayLayout(signed(32), w)
        m.submodules.x_memory = x_memory = memory.Memory(shape=word32, depth=c.lanes * g.x_words, init=[])
        m.submodules.y_memory = y_memory = memory.Memory(shape=word32, depth=c.lanes * g.y_words, init=[])
        m.submodules.p_memory = p_memory = memory.Memory(
            shape=data.ArrayLayout(signed(16), w), depth=g.p_words, init=[]
        )
        m.submodules.scores = scores = ScoreMemory(c)
        m.submodules.gearbox = gearbox = Gearbox(c)
        m.submodules.pipeline = pipe = VectorPipeline(c)
        m.submodules.rsqrt = rsqrt = ReciprocalSqrt()
        m.submodules.reciprocal = reciprocal = Reciprocal()
        connect(m, wiring.flipped(self.s_write), scores.i)
        connect(m, wiring.flipped(self.beats), gearbox.beats)
        x_write, x_read = x_memory.write_port(), x_memory.read_port()
        y_write, y_read = y_memory.write_port(), y_memory.read_port()
        p_write, p_read = p_memory.write_port(), p_memory.read_port()

        # Per-lane scalars: exponents of quantized vectors, largest magnitude of the residual stream.
        entry = data.StructLayout({"exponent": signed(8), "scale": unsigned(16)})
        m.submodules.exponents = exponents = memory.Memory(shape=entry, depth=c.lanes * g.ex_slots, init=[])
        ex_write, ex_read = exponents.write_port(), exponents.read_port(domain="comb")
        m.submodules.magnitudes = magnitudes = memory.Memory(shape=32, depth=max(2, c.lanes), init=[])
        xmax_write, xmax_read = magnitudes.write_port(), magnitudes.read_port(domain="comb")
        m.d.comb += [
            ex_read.addr.eq(self.ex_lane * g.ex_slots + self.ex_index),
            self.ex_exponent.eq(ex_read.data.exponent),
            self.ex_scale.eq(ex_read.data.scale),
            xmax_read.addr.eq(cmd.lane),
            xmax_write.addr.eq(cmd.lane),
            ex_write.addr.eq(cmd.lane * g.ex_slots + cmd.eidx),
        ]

        # State of the pass.
        en = Signal()
        issue = Signal()
        phase = Signal()
        words = Signal(17)
        issued = Signal(16)
        written = Signal(16)
        late_x, late_y = Signal(16), Signal(16)
        x_base, y_base = Signal(range(c.lanes * g.x_words)), Signal(range(c.lanes * g.y_words))
        largest = Signal(32)  # A of the law
        square_sum = Signal(48)
        exp_sum = Signal(32)
        v = Signal(_WRITE + 1)  # valid bit of each stage; bit 0 (the issue itself) stays 0
        settings = Signal(PassSettings)

        uses_stream = _in(func, VecFunc.EMBED, VecFunc.EMBED_ADD, VecFunc.PARAM, VecFunc.REPLAY)
        reads_x = _in(func, VecFunc.SQUARES, VecFunc.NORM)
        adds_x = _in(func, VecFunc.EMBED_ADD, VecFunc.RESIDUAL, VecFunc.RESIDUAL_STORE, VecFunc.REPLAY)
        writes_x = adds_x | _in(func, VecFunc.EMBED)
        writes_y = _in(func, VecFunc.NORM, VecFunc.ROPE, VecFunc.SWIGLU)
        is_quant = _in(func, VecFunc.QUANT_ACT, VecFunc.QUANT_BYTES, VecFunc.QUANT_PROB)
        to_act = _in(func, VecFunc.QUANT_ACT, VecFunc.QUANT_PROB)
        from_scores = _in(func, VecFunc.SOFTMAX, VecFunc.QUANT_PROB)
        is_swiglu = _in(func, VecFunc.SWIGLU)
        keeps_a = writes_y | _in(func, VecFunc.AMAX, VecFunc.SOFTMAX)

        # Exponents of the present pass.
        bits_a, bits_x = Signal(6), Signal(6)
        for source, bits in ((largest, bits_a), (xmax_read.data, bits_x)):
            for i in range(32):
                with m.If(source[i]):
                    m.d.comb += bits.eq(i + 1)
        e8, e16, ex16 = Signal(5), Signal(5), Signal(5)
        e_header = Signal(5)

        # Stage 0: reads are issued; the stream is taken.
        m.d.comb += [
            pipe.en.eq(en),
            pipe.settings.eq(settings),
            y_read.en.eq(en),
            x_read.en.eq(en),
            p_read.en.eq(en),
            scores.read_en.eq(en),
            scores.read_bank.eq(cmd.bank),
            scores.read_addr.eq(issued),
            scores.bank.eq(cmd.bank),
            pipe.reference.eq(scores.largest),
            pipe.ve_max.eq(scores.ve_largest),
        ]
        y_source = Mux(_in(func, VecFunc.SWIGLU) & v[self._other_issue()], cmd.a[:16] + late_y, cmd.d + issued)
        m.d.comb += [
            y_read.addr.eq(y_base + y_source),
            x_read.addr.eq(x_base + Mux(reads_x, issued, late_x)),
            p_read.addr.eq(Mux(_in(func, VecFunc.ROPE), cmd.a[16:], 0) + self._p_counter(m, v, en)),
        ]
        m.d.comb += gearbox.o.ready.eq(issue & uses_stream)
        streamed = Signal(data.ArrayLayout(signed(16), w))
        with m.If(en):
            m.d.sync += [v[1:].eq(Cat(issue, v[1:])), streamed.eq(gearbox.o.payload)]

        # Stage 1: the operand is chosen.  Stage 2: it enters the pipeline.
        a = Signal(word32)
        ve = Signal(data.ArrayLayout(unsigned(5), w))
        mask = Signal(w)
        element = Signal(17)
        with m.If(en):
            m.d.sync += ve.eq(scores.ve)
            with m.If(v[1]):
                m.d.sync += element.eq(element + w)
            for i in range(w):
                m.d.sync += mask[i].eq(element + i < cmd.b)
                with m.If(uses_stream):
                    m.d.sync += a[i].eq(streamed[i])
                with m.Elif(reads_x):
                    m.d.sync += a[i].eq(x_read.data[i])
                with m.Elif(from_scores):
                    m.d.sync += a[i].eq(scores.score[i])
                with m.Else():
                    m.d.sync += a[i].eq(y_read.data[i])
        m.d.comb += [pipe.a.eq(a), pipe.ve.eq(ve), pipe.mask.eq(mask), pipe.params.eq(p_read.data),
                     pipe.other.eq(y_read.data)]  # fmt: skip

        # Last stage: residual, clamp of quantized values, write.
        result = Signal(word32)
        quantized = Signal(data.ArrayLayout(signed(8), w))
        clamped = Signal()
        overflow = []
        for i in range(w):
            exact = Signal(signed(33), name=f"exact_{i}")
            # A mantissa of 2^14 with the exponent 17 is 2^31, one more than the last shifter can say.
            m.d.comb += exact.eq(pipe.r[i] + Mux(adds_x, x_read.data[i], 0) + (adds_x & pipe.saturated[i]))
            overflow.append(exact[-1] != exact[-2])
            with m.If(en):
                m.d.sync += result[i].eq(saturate(exact, 32))
            m.d.comb += quantized[i].eq(Mux(result[i] > 127, 127, Mux(result[i] < -127, -127, result[i])))
        with m.If(en):
            m.d.sync += clamped.eq(~is_quant & (Cat(overflow).any() | (~adds_x & pipe.saturated.any())))
        out = v[_WRITE]
        m.d.comb += self.saturated.eq(out & en & clamped)
        with m.If(en & v[_WRITE - 2]):
            m.d.sync += late_x.eq(late_x + 1)
        with m.If(en & v[self._other_issue()]):
            m.d.sync += late_y.eq(late_y + 1)
        with m.If(en & out):
            m.d.sync += written.eq(written + 1)

        y_own = out & writes_y
        y_target = Mux(_in(func, VecFunc.ROPE), cmd.a[:16], cmd.d) + written
        m.d.comb += [
            x_write.en.eq(out & writes_x & en),
            x_write.addr.eq(x_base + written),
            x_write.data.eq(result),
            self.y_write.ready.eq(~y_own),
            y_write.en.eq(y_own | self.y_write.valid),
            y_write.addr.eq(
                Mux(y_own, y_base + y_target, self.y_write.payload.lane * g.y_words + self.y_write.payload.addr)
            ),
            y_write.data.eq(Mux(y_own, result.as_value(), self.y_write.payload.data.as_value())),
            p_write.en.eq(out & _in(func, VecFunc.PARAM) & en),
            p_write.addr.eq(cmd.d + written),
            scores.write_en.eq(out & _in(func, VecFunc.SOFTMAX)),
            scores.write_bank.eq(cmd.bank),
            scores.write_addr.eq(written),
            self.act_en.eq(out & to_act & en),
            self.act_addr.eq(cmd.a[:16] + (written << word_bits)),
            self.act_data.eq(quantized),
            self.place_lane.eq(cmd.lane),
            self.place_mapped.eq(_in(func, VecFunc.QUANT_ACT) & (cmd.map == Map.MAPPED)),
            self.act_core.eq(self.place_core),
            self.act_index.eq(self.place_index),
        ]
        for i in range(w):
            m.d.comb += [scores.write_data[i].eq(result[i]), p_write.data[i].eq(result[i])]

        # Bytes for the store unit leave at the last stage, mantissas where they exist.
        out_bytes = out & _in(func, VecFunc.QUANT_BYTES)
        out_mantissas = v[_FETCH + VectorPipeline.PARAM_STAGE] & _in(func, VecFunc.RESIDUAL_STORE)
        sends_header = _in(func, VecFunc.QUANT_BYTES, VecFunc.RESIDUAL_STORE)
        header = Signal()
        item = self.bytes.payload
        m.d.comb += [
            self.bytes.valid.eq(header | out_bytes | out_mantissas),
            item.count.eq(Mux(header, 1, Mux(out_bytes, w, 2 * w))),
            en.eq(~(out_bytes | out_mantissas) | self.bytes.ready),
        ]
        with m.If(header):
            m.d.comb += item.data[0].eq(Mux(_in(func, VecFunc.QUANT_BYTES), e8, e16))
        with m.Elif(out_bytes):
            for i in range(w):
                m.d.comb += item.data[i].eq(quantized[i])
        with m.Else():
            for i in range(w):
                m.d.comb += [item.data[2 * i].eq(pipe.mantissa[i][:8]), item.data[2 * i + 1].eq(pipe.mantissa[i][8:])]

        # Reductions trail the pipeline.
        levels = tree_latency(w)
        magnitude = [Mux(result[i][-1], -result[i], result[i])[:32] for i in range(w)]
        best = tree(m, magnitude, maximum, en, "amax")
        squares = tree(m, [pipe.square[i] for i in range(w)], total, en, "squares")
        exps = tree(m, [pipe.exp[i] for i in range(w)], total, en, "exps")
        trailing = {}
        for name, stage in (
            ("amax", _WRITE),
            ("squares", _FETCH + VectorPipeline.SQUARE_STAGE),
            ("exps", _FETCH + VectorPipeline.EXP_STAGE),
        ):
            shift = Signal(levels, name=f"{name}_valid")
            with m.If(en):
                m.d.sync += shift.eq((shift << 1) | v[stage])
            trailing[name] = shift
        amax = Signal(32)
        with m.If(en):
            with m.If(trailing["amax"][-1]):
                m.d.sync += amax.eq(maximum(amax, best))
            with m.If(trailing["squares"][-1]):
                m.d.sync += square_sum.eq(square_sum + squares)
            with m.If(trailing["exps"][-1]):
                m.d.sync += exp_sum.eq(exp_sum + exps)
        flowing = v.any() | trailing["amax"].any()

        epsilon = Signal(40)
        m.d.comb += epsilon.eq(cmd.a << cmd.eidx[:4])
        total_squares = Signal(48)
        m.d.comb += [
            rsqrt.v.eq(total_squares),
            reciprocal.x.eq(exp_sum),
        ]
        ex_entry = ex_write.data
        m.d.comb += [ex_entry.exponent.eq(e8), xmax_write.data.eq(amax)]
        with m.If(_in(func, VecFunc.QUANT_PROB)):
            m.d.comb += [
                ex_entry.exponent.eq(e8 + scores.ve_largest - reciprocal.bits),
                ex_entry.scale.eq(reciprocal.o),
            ]

        with m.FSM():
            with m.State("ACCEPT"):
                # The operands of a pass are looked up while nothing moves.
                m.d.sync += [
                    words.eq((cmd.b + (w - 1)) >> word_bits),
                    x_base.eq(cmd.lane * g.x_words),
                    y_base.eq(cmd.lane * g.y_words),
                    issued.eq(0), written.eq(0), late_x.eq(0), late_y.eq(0), element.eq(0), phase.eq(0),
                    amax.eq(0),
                    e8.eq(Mux(bits_a > 7, bits_a - 7, 0)),
                    e16.eq(Mux(bits_a > 15, bits_a - 15, 0)),
                    ex16.eq(Mux(bits_x > 15, bits_x - 15, 0)),
                ]  # fmt: skip
                with m.If(queue.r_rdy & ~(scores.settling & from_scores)):
                    m.next = "SET"
            with m.State("SET"):
                with m.If(_in(func, VecFunc.SQUARES)):
                    m.d.sync += square_sum.eq(0)
                with m.If(_in(func, VecFunc.SOFTMAX)):
                    m.d.sync += exp_sum.eq(0)
                m.d.sync += e_header.eq(gearbox.beats.payload[0][:5])
                with m.If(sends_header):
                    m.d.comb += header.eq(1)
                with m.If(_in(func, VecFunc.REPLAY)):
                    m.d.comb += gearbox.skip.eq(1)
                with m.If((~sends_header | self.bytes.ready) & (~_in(func, VecFunc.REPLAY) | gearbox.beats.valid)):
                    m.next = "CONFIGURE"
            with m.State("CONFIGURE"):
                self._configure(m, func, cmd, settings, e8, e16, ex16, e_header, rsqrt)
                m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += issue.eq((issued != words) & ~phase & (~uses_stream | gearbox.o.valid))
                with m.If(en):
                    m.d.sync += phase.eq(is_swiglu & issue)
                    with m.If(issue):
                        m.d.sync += issued.eq(issued + 1)
                with m.If((issued == words) & ~flowing):
                    m.next = "REDUCE"
            with m.State("REDUCE"):
                m.d.comb += gearbox.drop.eq(uses_stream)
                m.d.sync += total_squares.eq(square_sum + (epsilon >> (ex16 << 1)))
                m.next = "FINISH"
                with m.If(_in(func, VecFunc.SQUARES)):
                    m.next = "ROOT"
                with m.If(_in(func, VecFunc.SOFTMAX)):
                    m.d.comb += reciprocal.start.eq(1)
                    m.next = "DIVIDE"
            with m.State("ROOT"):
                m.d.comb += rsqrt.start.eq(1)
                m.next = "ROOT_WAIT"
            with m.State("ROOT_WAIT"):
                with m.If(rsqrt.done):
                    m.next = "FINISH"
            with m.State("DIVIDE"):
                with m.If(reciprocal.done):
                    m.next = "FINISH"
            with m.State("FINISH"):
                with m.If(keeps_a):
                    m.d.sync += largest.eq(amax)
                m.d.comb += [
                    xmax_write.en.eq(writes_x),
                    ex_write.en.eq(to_act),
                    queue.r_en.eq(1),
                ]
                m.next = "ACCEPT"
        if c.trace:
            self._trace(m, cmd, out & en, written, result, quantized, writes_x, writes_y, to_act)
        return m

    @staticmethod
    def _other_issue() -> int:
        """Stage at which SwiGLU reads its second operand: odd, so that it falls between two first ones."""
        stage = _FETCH + VectorPipeline.OTHER_STAGE - 1
        assert stage % 2 == 1
        return stage

    def _p_counter(self, m: Module, v: Signal, en: Signal) -> Signal:
        """Word of P for the element that will need it in the next cycle; starts anew when the pipeline is empty."""
        counter = Signal(16, name="p_word")
        stage = _FETCH + VectorPipeline.PARAM_STAGE - 1
        with m.If(~v.any()):
            m.d.sync += counter.eq(0)
        with m.Elif(en & v[stage]):
            m.d.sync += counter.eq(counter + 1)
        return counter

    def _configure(self, m, func, cmd, settings, e8, e16, ex16, e_header, rsqrt) -> None:
        """Set the pipeline for a pass; what is not named passes the operand through."""
        shift = clamp_shift(cmd.shift)
        m.d.sync += [
            settings.first.eq(First.PASS),
            settings.second.eq(Second.PASS),
            settings.k0.eq(0),
            settings.k1.eq(0),
            settings.k2.eq(0),
            settings.limit0.eq(RoundShift.LIMIT_32),
            settings.limit1.eq(RoundShift.LIMIT_32),
            settings.scalar.eq(rsqrt.r),
        ]
        with m.Switch(func):
            with m.Case(VecFunc.EMBED.value, VecFunc.EMBED_ADD.value):
                m.d.sync += settings.k0.eq(shift)
            with m.Case(VecFunc.SQUARES.value):
                m.d.sync += [settings.k0.eq(ex16), settings.limit0.eq(RoundShift.LIMIT_SYM16),
                             settings.first.eq(First.SQUARE)]  # fmt: skip
            with m.Case(VecFunc.NORM.value):
                m.d.sync += [
                    settings.k0.eq(ex16),
                    settings.limit0.eq(RoundShift.LIMIT_SYM16),
                    settings.first.eq(First.SCALAR),
                    settings.k1.eq(rsqrt.h - 14),
                    settings.second.eq(Second.PARAM),
                    settings.k2.eq(shift),
                ]
            with m.Case(VecFunc.ROPE.value):
                m.d.sync += [settings.first.eq(First.COSINE), settings.second.eq(Second.SINE), settings.k2.eq(14)]
            with m.Case(VecFunc.QUANT_ACT.value, VecFunc.QUANT_BYTES.value, VecFunc.QUANT_PROB.value):
                m.d.sync += settings.k2.eq(e8)
            with m.Case(VecFunc.RESIDUAL.value, VecFunc.RESIDUAL_STORE.value):
                # The mantissas are shifted back in two steps: a shifter moves left by 16 at most.
                m.d.sync += [
                    settings.k0.eq(e16),
                    settings.limit0.eq(RoundShift.LIMIT_SYM16),
                    settings.k1.eq(-(e16 >> 1)),
                    settings.k2.eq((e16 >> 1) - e16),
                ]
            with m.Case(VecFunc.REPLAY.value):
                m.d.sync += [settings.k1.eq(-(e_header >> 1)), settings.k2.eq((e_header >> 1) - e_header)]
            with m.Case(VecFunc.SOFTMAX.value):
                m.d.sync += settings.first.eq(First.EXP)
            with m.Case(VecFunc.SWIGLU.value):
                m.d.sync += [
                    settings.k0.eq(clamp_shift(cmd.a[16:23].as_signed())),
                    settings.limit0.eq(RoundShift.LIMIT_16),
                    settings.first.eq(First.SIGMOID),
                    settings.k1.eq(clamp_shift(cmd.a[24:31].as_signed())),
                    settings.limit1.eq(RoundShift.LIMIT_16),
                    settings.second.eq(Second.OTHER),
                    settings.k2.eq(shift),
                ]

    def _trace(self, m, cmd, strobe, written, result, quantized, writes_x, writes_y, to_act) -> None:
        """Copy every write to the trace port (simulation only)."""
        trace = self.trace
        w = self._config.vector_width
        item = self.bytes.payload
        sent = self.bytes.valid & self.bytes.ready
        m.d.comb += [
            trace.tag.eq(cmd.tag),
            trace.layer.eq(cmd.layer),
            trace.lane.eq(cmd.lane),
            trace.addr.eq(written),
            trace.count.eq(w),
            trace.data.eq(result),
        ]
        with m.If(_in(cmd.func, VecFunc.QUANT_BYTES)):
            m.d.comb += [trace.valid.eq(sent), trace.kind.eq(4), trace.count.eq(item.count)]
            with m.If(item.count == 1):
                m.d.comb += trace.data[0].eq(item.data[0])
            with m.Else():
                for i in range(w):
                    m.d.comb += trace.data[i].eq(quantized[i])
        with m.Elif(writes_x):
            m.d.comb += [trace.valid.eq(strobe), trace.kind.eq(0)]
        with m.Elif(writes_y):
            m.d.comb += [trace.valid.eq(strobe), trace.kind.eq(1)]
        with m.Elif(_in(cmd.func, VecFunc.SOFTMAX)):
            m.d.comb += [trace.valid.eq(strobe), trace.kind.eq(2)]
        with m.Elif(to_act):
            m.d.comb += [trace.valid.eq(strobe), trace.kind.eq(3)]
            for i in range(w):
                m.d.comb += trace.data[i].eq(quantized[i])
