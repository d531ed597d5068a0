"""Reduction trees over the elements of a word."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Mux, Signal, Value

__all__ = ["maximum", "total", "tree", "tree_latency"]


def tree_latency(elements: int) -> int:
    """Return the number of register levels of `tree`."""
    return max(1, (elements - 1).bit_length())


def maximum(a: Value, b: Value) -> Value:
    """Return the larger of two values of one shape."""
    return Mux(a > b, a, b)


def total(a: Value, b: Value) -> Value:
    """Return the sum, one bit wider."""
    return a + b


def tree(
    m: Module, values: Sequence[Value], combine: Callable[[Value, Value], Value], en: Value, name: str
) -> Value:
    """Reduce values pairwise with a register after each level.

    Parameters
    ----------
    m
        Module that the registers go to.
    values
        Inputs, one a lane of the word.
    combine
        `maximum` or `total`.
    en
        Registers move only in cycles with this.
    name
        Prefix of the signal names.

    Returns
    -------
    The result, `tree_latency` enabled cycles later.
    """
    level = list(values)
    for depth in range(tree_latency(len(values))):
        following = []
        for i in range(0, len(level), 2):
            value = combine(level[i], level[i + 1]) if i + 1 < len(level) else level[i]
            register = Signal(Value.cast(value).shape(), name=f"{name}_{depth}_{i // 2}")
            with m.If(en):
                m.d.sync += register.eq(value)
            following.append(register)
        level = following
    return level[0]
