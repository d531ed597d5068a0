"""ROM tables of the integer law: the one piece that hardware and twin share (docs/numerics.md, section 9)."""

from functools import cache
from math import exp, floor, sqrt

__all__ = ["exp2neg_table", "rsqrt_table", "sigmoid_table"]


def _round(x: float) -> int:
    """Round halves up, the one rounding rule."""
    return floor(x + 0.5)


@cache
def exp2neg_table() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return 64 bases (16 bits, 32768 = 1) and slopes (9 bits) of 2^-x on [0, 1)."""
    base = tuple(_round(2**15 * 2 ** (-j / 64)) for j in range(65))
    return base[:64], tuple(base[j] - base[j + 1] for j in range(64))


@cache
def sigmoid_table() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return 256 bases (16 bits, 32768 = 1) and slopes (10 bits) of the logistic function on [0, 16)."""
    base = tuple(_round(2**15 / (1 + exp(-j / 16))) for j in range(257))
    return base[:256], tuple(base[j + 1] - base[j] for j in range(256))


@cache
def rsqrt_table() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return 192 bases (16 bits) and slopes (9 bits) of 1/sqrt(x) on [1, 4), 65536 = 1."""
    exact = tuple(_round(2**16 / sqrt(1 + j / 64)) for j in range(193))
    base = tuple(min(65535, x) for x in exact)
    return base[:192], tuple(base[j] - exact[j + 1] for j in range(192))
