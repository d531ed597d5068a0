"""The arithmetic pipeline of the vector unit: one word in, one word out, every cycle."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..numerics.exp2neg import Exp2Neg
from ..numerics.rounding import RoundShift
from ..numerics.sigmoid import Sigmoid

__all__ = ["First", "PassSettings", "Second", "VectorPipeline"]


class First(enum.Enum, shape=3):
    """Operands of the first multiplier."""

    PASS = 0  #: a' * 1 (a' is the operand after the first shifter)
    SQUARE = 1  #: a' * a'
    SCALAR = 2  #: a' * scalar
    COSINE = 3  #: a' * cos of the element's pair
    SIGMOID = 4  #: a * sigmoid(a')
    EXP = 5  #: softmax weight * 1


class Second(enum.Enum, shape=2):
    """Operands of the second multiplier."""

    PASS = 0  #: b * 1 (b is what the second shifter gave)
    PARAM = 1  #: b * parameter
    OTHER = 2  #: other operand * b
    SINE = 3  #: partner element * sin of the pair, added to the first product


class PassSettings(data.Struct):
    """What stays the same during a pass."""

    first: First
    second: Second
    k0: signed(7)
    k1: signed(7)
    k2: signed(7)
    limit0: unsigned(2)
    limit1: unsigned(2)
    scalar: unsigned(16)


class VectorPipeline(wiring.Component):
    """Three shifters, two multipliers and two table functions an element.

    ``a -> shift k0 -> x -> shift k1 -> x -> shift k2 -> r``, with the functions beside the first shifter.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    en : In
        Everything moves only in cycles with ``en``.
    settings : In, `PassSettings`
        Constant while words are inside.
    a : In, W x s32, at stage 0
        Operand.
    reference : In, s24; ve : In, W x u5; ve_max : In, u5; mask : In, W bits, at stage 0
        Softmax: largest score, exponents of V, which elements count.
    params : In, W x s16, at stage `PARAM_STAGE`
        Gains, or cos and sin at the even and odd elements.
    other : In, W x s32, at stage `OTHER_STAGE`
        The up-projection for SwiGLU.
    exp : Out, W x u16, at stage `EXP_STAGE`
        Softmax numerators.
    mantissa : Out, W x s16, at stage `PARAM_STAGE`
        What the first shifter gave.
    square : Out, W x u31, at stage `SQUARE_STAGE`
        First products.
    r : Out, W x s32, at stage `LATENCY`; saturated : Out, W bits
        Results; which of them the last shifter clamped.

    Notes
    -----
    One word a cycle, `LATENCY` enabled cycles from ``a`` to ``r``.  Two multipliers of 32 x 17 an element, between
    registers: on an FPGA each is two DSP blocks and an adder, which leave no time for the choice of operands.
    """

    EXP_STAGE = 1 + Exp2Neg.LATENCY
    PARAM_STAGE = EXP_STAGE + 1
    SQUARE_STAGE = PARAM_STAGE + 2
    OTHER_STAGE = SQUARE_STAGE + RoundShift.LATENCY
    LATENCY = OTHER_STAGE + 3 + RoundShift.LATENCY
    assert PARAM_STAGE == RoundShift.LATENCY + Sigmoid.LATENCY

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        w = config.vector_width
        super().__init__(
            {
                "en": In(1),
                "settings": In(PassSettings),
                "a": In(data.ArrayLayout(signed(32), w)),
                "reference": In(signed(24)),
                "ve": In(data.ArrayLayout(unsigned(5), w)),
                "ve_max": In(5),
                "mask": In(w),
                "params": In(data.ArrayLayout(signed(16), w)),
                "other": In(data.ArrayLayout(signed(32), w)),
                "exp": Out(data.ArrayLayout(unsigned(16), w)),
                "mantissa": Out(data.ArrayLayout(signed(16), w)),
                "square": Out(data.ArrayLayout(unsigned(31), w)),
                "r": Out(data.ArrayLayout(signed(32), w)),
                "saturated": Out(w),
            }
        )

    def _delay(self, m: Module, value: Value, cycles: int, name: str) -> Value:
        for i in range(cycles):
            register = Signal(value.shape(), name=f"{name}_d{i}")
            with m.If(self.en):
                m.d.sync += register.eq(value)
            value = register
        return value

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        s = self.settings
        first_shift = RoundShift.LATENCY

        shifted, original, products, seconds, clamps = [], [], [], [], []
        for i in range(w):
            a = self.a[i]
            pre = RoundShift(32)
            m.submodules[f"pre_{i}"] = pre
            m.d.comb += [pre.en.eq(self.en), pre.x.eq(a), pre.k.eq(s.k0), pre.limit.eq(s.limit0)]
            sigmoid = Sigmoid()
            m.submodules[f"sigmoid_{i}"] = sigmoid
            m.d.comb += [sigmoid.en.eq(self.en), sigmoid.z.eq(pre.o[:16].as_signed())]
            weight = self._softmax(m, i)
            moved = self._delay(m, pre.o, self.PARAM_STAGE - first_shift, f"moved_{i}")
            plain = self._delay(m, a, self.PARAM_STAGE, f"plain_{i}")
            m.d.comb += self.mantissa[i].eq(moved)
            shifted.append(moved)
            original.append((plain, sigmoid.o, weight))

        one = Const(1, signed(17))
        for i in range(w):
            plain, sigmoid, weight = original[i]
            x, y = Signal(signed(32), name=f"x1_{i}"), Signal(signed(17), name=f"y1_{i}")
            product = Signal(signed(49), name=f"product1_{i}")
            with m.If(self.en):
                m.d.sync += [x.eq(shifted[i]), y.eq(one), product.eq(x * y)]
                with m.Switch(s.first):
                    with m.Case(First.SQUARE):
                        m.d.sync += y.eq(shifted[i])
                    with m.Case(First.SCALAR):
                        m.d.sync += y.eq(Cat(s.scalar, Const(0, 1)).as_signed())
                    with m.Case(First.COSINE):
                        m.d.sync += y.eq(self.params[i & ~1])
                    with m.Case(First.SIGMOID):
                        m.d.sync += [x.eq(plain), y.eq(Cat(sigmoid, Const(0, 1)).as_signed())]
                    with m.Case(First.EXP):
                        m.d.sync += x.eq(weight)
            products.append(product)
            m.d.comb += self.square[i].eq(product[:31])
            middle = RoundShift(49)
            m.submodules[f"middle_{i}"] = middle
            m.d.comb += [middle.en.eq(self.en), middle.x.eq(product), middle.k.eq(s.k1), middle.limit.eq(s.limit1)]
            seconds.append(middle.o)

        # For rotations the first shifter passes the products by: the rounding comes after the sum.
        for i in range(w):
            late = self.OTHER_STAGE - self.PARAM_STAGE
            parameter = self._delay(m, self.params[i], late, f"param_{i}")
            sine = self._delay(m, self.params[i | 1], late, f"sine_{i}")
            partner = self._delay(m, shifted[i ^ 1], late, f"partner_{i}")
            cosine = self._delay(m, products[i], self.OTHER_STAGE - self.SQUARE_STAGE + 2, f"cosine_{i}")
            x, y = Signal(signed(32), name=f"x2_{i}"), Signal(signed(17), name=f"y2_{i}")
            product = Signal(signed(49), name=f"product2_{i}")
            result = Signal(signed(50), name=f"sum_{i}")
            with m.If(self.en):
                m.d.sync += [x.eq(seconds[i]), y.eq(one), product.eq(x * y)]
                with m.Switch(s.second):
                    with m.Case(Second.PARAM):
                        m.d.sync += y.eq(parameter)
                    with m.Case(Second.OTHER):
                        m.d.sync += [x.eq(self.other[i]), y.eq(seconds[i])]
                    with m.Case(Second.SINE):
                        m.d.sync += [x.eq(partner), y.eq(sine)]
                with m.If(s.second == Second.SINE):
                    # Even elements: y c - partner s; odd ones: y c + partner s.
                    m.d.sync += result.eq(cosine + product if i & 1 else cosine - product)
                with m.Else():
                    m.d.sync += result.eq(product)
            post = RoundShift(50)
            m.submodules[f"post_{i}"] = post
            m.d.comb += [post.en.eq(self.en), post.x.eq(result), post.k.eq(s.k2), post.limit.eq(RoundShift.LIMIT_32)]
            m.d.comb += self.r[i].eq(post.o)
            clamps.append(post.saturated)
        m.d.comb += self.saturated.eq(Cat(clamps))
        return m

    def _softmax(self, m: Module, i: int) -> Value:
        """Weight of element i at `PARAM_STAGE`: 2^-(max - score), moved to the exponent of the largest V."""
        exp = Exp2Neg()
        m.submodules[f"exp_{i}"] = exp
        distance = Signal(25, name=f"distance_{i}")
        live = Signal(name=f"live_{i}")
        with m.If(self.en):
            m.d.sync += [distance.eq(self.reference - self.a[i][:24].as_signed()), live.eq(self.mask[i])]
        lag = self._delay(m, self.ve_max - self.ve[i], self.EXP_STAGE, f"lag_{i}")[:5]
        alive = self._delay(m, live, Exp2Neg.LATENCY, f"alive_{i}")
        value = Signal(16, name=f"value_{i}")
        weight = Signal(16, name=f"weight_{i}")
        m.d.comb += [
            exp.en.eq(self.en),
            exp.d.eq(distance),
            value.eq(Mux(alive, exp.o, 0)),
            self.exp[i].eq(value),
        ]
        with m.If(self.en):
            m.d.sync += weight.eq((((value << 1) >> lag) + 1) >> 1)
        return weight
