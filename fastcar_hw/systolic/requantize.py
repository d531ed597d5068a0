"""Requantizer: scales, shifts and saturates the words that leave the cores."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import MatMode
from ..numerics.rounding import RoundShift
from .drain import Drain
from .feeder import DrainJob
from .places import PlacesSignature
from .scaled_shift import ScaledShift

__all__ = ["Requantizer", "ResultInfo", "ResultWord"]


class ResultInfo(data.StructLayout):
    """What the consumer of a word must know; ``mask`` = elements that count, ``first`` of a command."""

    def __init__(self, config: AcceleratorConfig) -> None:
        width = config.vector_width
        super().__init__(
            {
                "mode": MatMode,
                "lane": unsigned(5),
                "addr": unsigned(16),
                "ve": data.ArrayLayout(unsigned(5), width),
                "mask": unsigned(width),
                "first": unsigned(1),
                "bank": unsigned(1),
                "head": unsigned(8),
                "element": range(width),
                "tag": unsigned(8),
                "layer": unsigned(7),
            }
        )


class ResultWord(data.StructLayout):
    """A word of results; scores use the low 24 bits of an element, sign-extended."""

    def __init__(self, config: AcceleratorConfig) -> None:
        words = data.ArrayLayout(signed(32), config.vector_width)
        super().__init__({"info": ResultInfo(config), "data": words})


class Requantizer(wiring.Component):
    """Drain the cores and compute ``rsat(acc * scale, shift - exponent)``, ``vector_width`` elements a cycle.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    job, job_valid : In; free : Out; shift : Out; places, ex_lane, ex_index, ex_exponent, ex_scale
        See `Drain`.
    results : In
        Bottom result registers of the cores.
    o : Out, stream of `ResultWord`
        Results.
    busy : Out
        Something is waiting, or in the pipeline.
    saturated : Out
        Strobe: a word that was transferred contains clamped elements (of those in ``mask``).

    Notes
    -----
    The first word of a pass comes `latency` cycles after its last beat was taken, then one a cycle.  While
    the consumer is not ready everything stands still, without a combinational path from ``o.ready`` to the
    pipeline.
    """

    #: Cycles from a word's selection to the output.
    PIPELINE = ScaledShift.LATENCY

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        row = data.ArrayLayout(signed(config.derived.acc_width), config.cols)
        super().__init__(
            {
                "job": In(DrainJob(config)),
                "job_valid": In(1),
                "free": Out(1),
                "results": In(data.ArrayLayout(row, config.cores)),
                "shift": Out(config.cores),
                "places": Out(PlacesSignature(config)),
                "ex_lane": Out(5),
                "ex_index": Out(8),
                "ex_exponent": In(signed(8)),
                "ex_scale": In(16),
                "o": Out(stream.Signature(ResultWord(config))),
                "busy": Out(1),
                "saturated": Out(1),
            }
        )

    @classmethod
    def latency(cls, config: AcceleratorConfig, idle: int = 0) -> int:
        """Return the cycles from the last beat of a pass to its first word; ``idle`` as in `Drain.wait`."""
        return Drain.wait(config, idle) + cls.PIPELINE

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config

        m.submodules.drain = drain = Drain(c)
        wiring.connect(m, drain.places, wiring.flipped(self.places))
        en = Signal()
        m.d.comb += [
            drain.job.eq(self.job),
            drain.job_valid.eq(self.job_valid),
            drain.ex_exponent.eq(self.ex_exponent),
            drain.ex_scale.eq(self.ex_scale),
            drain.advance.eq(en),
            self.free.eq(drain.free),
            self.shift.eq(drain.shift),
            self.ex_lane.eq(drain.ex_lane),
            self.ex_index.eq(drain.ex_index),
        ]
        info = self._describe(m, drain)
        elements = self._elements(m, drain, en, info)

        # What describes the word runs beside the arithmetic.
        stages = [Signal(ResultInfo(c), name=f"info_{i}", reset_less=True) for i in range(self.PIPELINE)]
        valid = Signal(self.PIPELINE)
        with m.If(en):
            m.d.sync += valid.eq(Cat(drain.valid, valid))
            m.d.sync += [b.eq(a) for a, b in zip([info, *stages], stages, strict=False)]

        # A spare register takes the word that was on its way when the consumer stopped: `en` is a register
        # then.
        result, spare = Signal(ResultWord(c)), Signal(ResultWord(c), reset_less=True)
        full, clamped, spare_clamped = Signal(), Signal(), Signal()
        m.d.comb += [
            result.info.eq(stages[-1]),
            [result.data[i].eq(element.o) for i, element in enumerate(elements)],
            clamped.eq((Cat(element.saturated for element in elements) & result.info.mask).any()),
            en.eq(~full),
            self.o.valid.eq(full | valid[-1]),
            self.o.payload.eq(Mux(full, spare, result)),
            self.saturated.eq(self.o.valid & self.o.ready & Mux(full, spare_clamped, clamped)),
            self.busy.eq(~drain.free | valid.any() | full),
        ]
        with m.If(~full):
            m.d.sync += [spare.eq(result), spare_clamped.eq(clamped), full.eq(valid[-1] & ~self.o.ready)]
        with m.Elif(self.o.ready):
            m.d.sync += full.eq(0)
        return m

    def _describe(self, m: Module, drain: Drain) -> data.View:
        """Return the description of the word that is about to leave, all but ``ve``."""
        c = self._config
        width, words = c.vector_width, c.cols // c.vector_width
        word_bits = width.bit_length() - 1
        job, task = drain.present, drain.present.task
        is_score, is_tas = task.mode == MatMode.SCORE, task.mode == MatMode.TAS
        info = Signal(ResultInfo(c))
        number = Signal(16)  # of the word in the command
        exists = Signal(width)
        m.d.comb += [
            number.eq(Cat(drain.word, job.tile) if words > 1 else job.tile),
            info.mode.eq(task.mode),
            info.lane.eq(drain.slot.lane),
            info.addr.eq(Mux(is_score, 0, task.d) + number),
            info.first.eq((job.tile == 0) & (drain.word == 0)),
            info.bank.eq(task.bank),
            info.head.eq(task.d),
            info.element.eq(task.element),
            info.tag.eq(task.tag),
            info.layer.eq(task.layer),
        ]
        # Positions below d exist: compare the word numbers once, and the elements with the rest.
        whole, rest = task.d >> word_bits, task.d[:word_bits]
        for i in range(width):
            m.d.comb += exists[i].eq((number < whole) | ((number == whole) & (i < rest)))
        with m.If(is_score):
            m.d.comb += info.mask.eq(exists)
        with m.Elif(is_tas):
            m.d.comb += info.mask.eq(1 << task.element[:word_bits])
        with m.Else():
            m.d.comb += info.mask.eq(-1)
        return info

    def _elements(self, m: Module, drain: Drain, en: Value, info: data.View) -> list[ScaledShift]:
        """Select the operands of a word: accumulators, scales, exponents of the columns."""
        c, g = self._config, self._config.derived
        width, words = c.vector_width, c.cols // c.vector_width
        task, params = drain.present.task, drain.present.params
        is_attention = (task.mode == MatMode.SCORE) | (task.mode == MatMode.TAS)
        bottom = Signal(data.ArrayLayout(signed(g.acc_width), c.cols))
        m.d.comb += bottom.eq(self.results[drain.slot.core])
        elements = []
        for i in range(width):
            element = ScaledShift(g.acc_width)
            m.submodules[f"element_{i}"] = element
            scale, exponent = Signal(16, name=f"scale_{i}"), Signal(5, name=f"exponent_{i}")
            with m.Switch(drain.word):
                for number in range(words):
                    column = number * width + i
                    with m.Case(number):
                        m.d.comb += [
                            element.acc.eq(bottom[column]),
                            scale.eq(params.word_select(column, 16)),
                            exponent.eq(params[g.data_width :].word_select(column, 8)),
                            info.ve[i].eq(params.word_select(column, 8)),
                        ]
            m.d.comb += [
                element.en.eq(en),
                element.scale.eq(scale),
                element.k.eq(drain.slot.shift),
                element.limit.eq(RoundShift.LIMIT_32),
            ]
            with m.If(is_attention):
                # Keys carry exponents instead of scales.
                m.d.comb += [
                    element.scale.eq(1),
                    element.k.eq(drain.slot.shift - exponent),
                    element.limit.eq(RoundShift.LIMIT_24),
                ]
            with m.Elif(task.mode == MatMode.PV):
                m.d.comb += element.scale.eq(drain.slot.scale)
            elements.append(element)
        return elements
