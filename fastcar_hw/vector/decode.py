"""What every pass reads and writes: the table that the other blocks decode a command with."""

from amaranth.hdl import Const, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..isa import VecFunc

__all__ = ["PASSES", "PassDecoder", "PassTraits"]


class PassTraits(data.Struct):
    """Properties of a pass, a bit each."""

    streams: 1  #: the operand comes from memory
    reads_x: 1  #: the operand is X (Y, where no other source is named)
    reads_scores: 1  #: the operand is the softmax bank
    reads_other: 1  #: a second operand from Y: two reads a word
    rotates: 1  #: parameters from word ``a[16:]``, results to word ``a[:16]`` of Y
    adds_x: 1  #: the result is added to X
    writes_x: 1
    writes_y: 1
    writes_params: 1
    writes_scores: 1
    writes_act: 1
    quantizes: 1  #: 8-bit results; clamping them is no saturation
    keeps_largest: 1  #: the largest magnitude becomes A of the law
    mapped: 1  #: the place of the activation depends on ``map``
    skips_header: 1  #: a beat with the exponent comes first
    sends_bytes: 1  #: header and 8-bit results to the store unit
    sends_mantissas: 1  #: header and 16-bit mantissas to the store unit
    sums_squares: 1  #: ends with the reciprocal square root
    sums_exps: 1  #: ends with the division


#: The passes.
PASSES: dict[VecFunc, tuple[str, ...]] = {
    VecFunc.EMBED: ("streams", "writes_x"),
    VecFunc.EMBED_ADD: ("streams", "adds_x", "writes_x"),
    VecFunc.PARAM: ("streams", "writes_params"),
    VecFunc.SQUARES: ("reads_x", "sums_squares"),
    VecFunc.NORM: ("reads_x", "writes_y", "keeps_largest"),
    VecFunc.AMAX: ("keeps_largest",),
    VecFunc.ROPE: ("rotates", "writes_y", "keeps_largest"),
    VecFunc.QUANT_ACT: ("quantizes", "writes_act", "mapped"),
    VecFunc.QUANT_BYTES: ("quantizes", "sends_bytes"),
    VecFunc.RESIDUAL: ("adds_x", "writes_x"),
    VecFunc.RESIDUAL_STORE: ("adds_x", "writes_x", "sends_mantissas"),
    VecFunc.REPLAY: ("streams", "skips_header", "adds_x", "writes_x"),
    VecFunc.SOFTMAX: ("reads_scores", "writes_scores", "keeps_largest", "sums_exps"),
    VecFunc.QUANT_PROB: ("reads_scores", "quantizes", "writes_act"),
    VecFunc.SWIGLU: ("reads_other", "writes_y", "keeps_largest"),
}


class PassDecoder(wiring.Component):
    """Look up the traits of a pass.

    Attributes
    ----------
    func : In, `isa.VecFunc`; o : Out, `PassTraits`
        Combinational.
    """

    func: In(5)
    o: Out(PassTraits)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        for trait in PassTraits.as_shape().members:
            matches = Const(0, 1)
            for func, traits in PASSES.items():
                if trait in traits:
                    matches = matches | (self.func == func.value)
            m.d.comb += self.o[trait].eq(matches)
        return m
