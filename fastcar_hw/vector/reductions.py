"""Reductions of a pass: largest magnitude, sum of squares, sum of softmax numerators."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from .decode import PassTraits
from .reduce import maximum, total, tree, tree_latency
from .stages import EXP, SQUARE, STAGES, WRITE
from .words import ValueWord

__all__ = ["Reductions"]


class Reductions(wiring.Component):
    """Trees over the elements of a word, and accumulators over the words of a pass.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width`` elements a word.

    Attributes
    ----------
    en : In; valid : In
        Enable and occupied stages of the pass.
    restart : In; clear : In; traits : In, `PassTraits`
        Strobes before a pass: the largest magnitude begins anew; the sum that this pass makes does.
    results : In, W x s32, at stage `WRITE`; squares : In, W x u31, at `SQUARE`; exps : In, W x u16, at `EXP`
        Elements.
    largest : Out, u32
        Largest magnitude of the results of this pass.
    square_sum : Out, u48; exp_sum : Out, u32
        Sums of the last pass that made one.
    settling : Out
        A result is on its way into ``largest``.  The sums settle before.

    Notes
    -----
    A word a cycle; a word counts `latency` enabled cycles after its stage.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        w = config.vector_width
        super().__init__(
            {
                "en": In(1),
                "valid": In(STAGES),
                "restart": In(1),
                "clear": In(1),
                "traits": In(PassTraits),
                "results": In(ValueWord(config)),
                "squares": In(data.ArrayLayout(unsigned(31), w)),
                "exps": In(data.ArrayLayout(unsigned(16), w)),
                "largest": Out(32),
                "square_sum": Out(48),
                "exp_sum": Out(32),
                "settling": Out(1),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Return the enabled cycles from a word to its accumulator."""
        return tree_latency(config.vector_width) + 1

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        w = self._config.vector_width
        magnitudes = [Mux(self.results[i][-1], -self.results[i], self.results[i])[:32] for i in range(w)]
        best, best_valid = self._tree(m, magnitudes, maximum, WRITE, "largest")
        squares, squares_valid = self._tree(m, [self.squares[i] for i in range(w)], total, SQUARE, "squares")
        exps, exps_valid = self._tree(m, [self.exps[i] for i in range(w)], total, EXP, "exps")
        m.d.comb += self.settling.eq(best_valid.any())
        with m.If(self.en):
            with m.If(best_valid[-1]):
                m.d.sync += self.largest.eq(maximum(self.largest, best))
            with m.If(squares_valid[-1]):
                m.d.sync += self.square_sum.eq(self.square_sum + squares)
            with m.If(exps_valid[-1]):
                m.d.sync += self.exp_sum.eq(self.exp_sum + exps)
        with m.If(self.restart):
            m.d.sync += self.largest.eq(0)
        with m.If(self.clear):
            with m.If(self.traits.sums_squares):
                m.d.sync += self.square_sum.eq(0)
            with m.If(self.traits.sums_exps):
                m.d.sync += self.exp_sum.eq(0)
        return m

    def _tree(
        self, m: Module, values: Sequence[Value], combine: Callable[[Value, Value], Value], stage: int, name: str
    ) -> tuple[Value, Signal]:
        """Return the root of a tree, and which of its levels hold a word."""
        levels = Signal(tree_latency(len(values)), name=f"{name}_valid")
        with m.If(self.en):
            m.d.sync += levels.eq((levels << 1) | self.valid[stage])
        return tree(m, values, combine, self.en, f"{name}_tree"), levels
