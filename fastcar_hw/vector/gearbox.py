"""Gearbox: beats of memory to words of 16-bit elements."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..memory.beat_fifo import beat_layout

__all__ = ["Gearbox"]


class Gearbox(wiring.Component):
    """Hand out a beat word by word.

    Parameters
    ----------
    config
        The accelerator; a beat holds ``derived.words_per_beat`` words.

    Attributes
    ----------
    beats : In, stream
        Beats; one is taken with its last word.
    o : Out, stream of ``vector_width`` x signed 16
        Words.
    drop : In
        Drop what is left of the present beat, if a part of it was used.
    skip : In
        Drop the present beat whole; the caller has looked at it.

    Notes
    -----
    No latency, one word a cycle.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "beats": In(stream.Signature(beat_layout(config))),
                "o": Out(stream.Signature(data.ArrayLayout(signed(16), config.vector_width))),
                "drop": In(1),
                "skip": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        words = self._config.derived.words_per_beat
        word_bits = 16 * self._config.vector_width
        number = Signal(range(words))
        last = number == words - 1
        partial = number != 0
        m.d.comb += [
            self.o.valid.eq(self.beats.valid & ~self.skip & ~self.drop),
            self.o.payload.as_value().eq(self.beats.payload.as_value().word_select(number, word_bits)),
            self.beats.ready.eq((self.o.ready & last & ~self.drop) | self.skip | (self.drop & partial)),
        ]
        with m.If(self.o.valid & self.o.ready & ~last):
            m.d.sync += number.eq(number + 1)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += number.eq(0)
        return m
