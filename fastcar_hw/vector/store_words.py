"""Words for the store unit: headers, 8-bit results, 16-bit mantissas."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..memory.words import StoreWord
from .decode import PassTraits
from .stages import MANTISSA, STAGES, WRITE

__all__ = ["StoreWords"]


class StoreWords(wiring.Component):
    """Send what a pass stores, and hold its stages while the store unit cannot take it.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    traits : In, `PassTraits`; valid : In
        The pass, and its occupied stages.
    header : In; exponent : In, u5
        Send a header, as long as ``header``; no stage is occupied.
    quantized : In, W x s8, at stage `WRITE`; mantissa : In, W x s16, at stage `MANTISSA`
        Elements.
    o : Out, stream of `StoreWord`
        Bytes.
    en : Out
        The stages may move.

    Notes
    -----
    Combinational, a word a cycle.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        w = config.vector_width
        super().__init__(
            {
                "traits": In(PassTraits),
                "valid": In(STAGES),
                "header": In(1),
                "exponent": In(5),
                "quantized": In(data.ArrayLayout(signed(8), w)),
                "mantissa": In(data.ArrayLayout(signed(16), w)),
                "o": Out(stream.Signature(StoreWord(config))),
                "en": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        item = self.o.payload
        results, mantissas = Signal(), Signal()
        m.d.comb += [
            results.eq(self.valid[WRITE] & self.traits.sends_bytes),
            # Mantissas leave where they exist: the results of such a pass are sums.
            mantissas.eq(self.valid[MANTISSA] & self.traits.sends_mantissas),
            self.o.valid.eq(self.header | results | mantissas),
            item.count.eq(Mux(self.header, 1, Mux(results, w, 2 * w))),
            self.en.eq(~(results | mantissas) | self.o.ready),
        ]
        with m.If(self.header):
            m.d.comb += item.data[0].eq(self.exponent)
        with m.Elif(results):
            m.d.comb += [item.data[i].eq(self.quantized[i]) for i in range(w)]
        with m.Else():
            for i in range(w):
                m.d.comb += [
                    item.data[2 * i].eq(self.mantissa[i][:8]),
                    item.data[2 * i + 1].eq(self.mantissa[i][8:]),
                ]
        return m
