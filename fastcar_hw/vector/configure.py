"""Settings of the pipeline for every pass (docs/numerics.md: shifts, multipliers, limits)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..isa import Command, VecFunc
from ..numerics.rounding import RoundShift, clamp_shift
from .pipeline import First, PassSettings, Second

__all__ = ["PassConfiguration"]


def _bit_length(m: Module, magnitude: Signal, name: str) -> Signal:
    """Return the number of bits of a 32-bit magnitude, combinationally."""
    length = Signal(6, name=name)
    for i in range(32):
        with m.If(magnitude[i]):
            m.d.comb += length.eq(i + 1)
    return length


def _dynamic_exponent(length: Signal, bits: int) -> Value:
    """Return e_n for n = ``bits`` of a magnitude with so many bits (docs/numerics.md, section 1)."""
    return Mux(length > bits - 1, length - (bits - 1), 0)


class PassConfiguration(wiring.Component):
    """Registers that hold the exponents and the settings of a pass.

    Attributes
    ----------
    command : In, `isa.Command`
        The pass.
    largest, x_largest : In, u32
        A of the law; XMAX of the lane.
    look_up : In
        Strobe: the exponents of these are registered.
    header : In, u5
        Exponent that came with a replayed vector.
    r : In, u16; h : In, u5
        Reciprocal square root.
    configure : In
        Strobe, after ``look_up``: the settings are registered.
    e8, e16, x_e16 : Out, u5
        Exponents of A for 8 and 16 bits, of XMAX for 16 bits.
    settings : Out, `PassSettings`
        For the pipeline; they stay until the next pass.
    """

    command: In(Command)
    largest: In(32)
    x_largest: In(32)
    look_up: In(1)
    header: In(5)
    r: In(16)
    h: In(5)
    configure: In(1)
    e8: Out(5)
    e16: Out(5)
    x_e16: Out(5)
    settings: Out(PassSettings)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        length, x_length = Signal(6), Signal(6)
        with m.If(self.look_up):
            m.d.sync += [
                length.eq(_bit_length(m, self.largest, "bits")),
                x_length.eq(_bit_length(m, self.x_largest, "x_bits")),
            ]
        m.d.comb += [
            self.e8.eq(_dynamic_exponent(length, 8)),
            self.e16.eq(_dynamic_exponent(length, 16)),
            self.x_e16.eq(_dynamic_exponent(x_length, 16)),
        ]
        with m.If(self.configure):
            self._configure(m)
        return m

    def _configure(self, m: Module) -> None:
        """Set the pipeline; what is not named passes the operand through."""
        settings, cmd = self.settings, self.command
        shift = clamp_shift(cmd.shift)
        m.d.sync += [
            settings.first.eq(First.PASS),
            settings.second.eq(Second.PASS),
            settings.k0.eq(0),
            settings.k1.eq(0),
            settings.k2.eq(0),
            settings.limit0.eq(RoundShift.LIMIT_32),
            settings.limit1.eq(RoundShift.LIMIT_32),
            settings.scalar.eq(self.r),
        ]
        with m.Switch(cmd.func):
            with m.Case(VecFunc.EMBED.value, VecFunc.EMBED_ADD.value):
                m.d.sync += settings.k0.eq(shift)
            with m.Case(VecFunc.SQUARES.value):
                m.d.sync += [
                    settings.k0.eq(self.x_e16),
                    settings.limit0.eq(RoundShift.LIMIT_SYM16),
                    settings.first.eq(First.SQUARE),
                ]
            with m.Case(VecFunc.NORM.value):
                m.d.sync += [
                    settings.k0.eq(self.x_e16),
                    settings.limit0.eq(RoundShift.LIMIT_SYM16),
                    settings.first.eq(First.SCALAR),
                    settings.k1.eq(self.h - 14),
                    settings.second.eq(Second.PARAM),
                    settings.k2.eq(shift),
                ]
            with m.Case(VecFunc.ROPE.value):
                m.d.sync += [settings.first.eq(First.COSINE), settings.second.eq(Second.SINE), settings.k2.eq(14)]
            with m.Case(VecFunc.QUANT_ACT.value, VecFunc.QUANT_BYTES.value, VecFunc.QUANT_PROB.value):
                m.d.sync += settings.k2.eq(self.e8)
            with m.Case(VecFunc.RESIDUAL.value, VecFunc.RESIDUAL_STORE.value):
                m.d.sync += [settings.k0.eq(self.e16), settings.limit0.eq(RoundShift.LIMIT_SYM16)]
                self._shift_back(m, self.e16)
            with m.Case(VecFunc.REPLAY.value):
                self._shift_back(m, self.header)
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

    def _shift_back(self, m: Module, exponent: Signal) -> None:
        """Mantissas are shifted back in two steps: a shifter moves left by 16 at most."""
        half = exponent >> 1
        m.d.sync += [self.settings.k1.eq(-half), self.settings.k2.eq(half - exponent)]
