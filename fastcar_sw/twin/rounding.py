"""The one rounding rule, saturation and dynamic exponents (docs/numerics.md, section 1).

Integers live in int64 tensors.  That is wide enough: the widest value before a shift has 48 bits, a shift to
the left is at most 16 bits and only meets values of at most 46 bits, and the rounding constant has at most 47
bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "bit_length",
    "exponent",
    "magnitude",
    "quantize",
    "round_shift",
    "round_shift_saturate",
    "saturate",
]

#: Limits of every shift count that depends on data.
SHIFT_MIN, SHIFT_MAX = -16, 47


def saturate(x: Tensor, bits: int) -> Tensor:
    """Clamp to the signed range of ``bits`` bits (sat_n)."""
    return x.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def round_shift(x: Tensor, k: Tensor | int) -> Tensor:
    """Shift right by ``k`` after adding half; to the left where ``k`` is negative (shr).

    Parameters
    ----------
    x
        int64.
    k
        A number, or int64 that broadcasts to ``x``.
    """
    if isinstance(k, int):
        return (x + (1 << (k - 1))) >> k if k > 0 else x << -k
    right = k.clamp(min=0)
    half = (1 << right) >> 1
    if bool((k < 0).any()):
        x = x << (-k).clamp(min=0)
    return (x + half) >> right


def round_shift_saturate(x: Tensor, k: Tensor | int, bits: int) -> Tensor:
    """Shift with rounding, the count clamped to -16..47, then saturate (rsat_n)."""
    k = min(SHIFT_MAX, max(SHIFT_MIN, k)) if isinstance(k, int) else k.clamp(SHIFT_MIN, SHIFT_MAX)
    return saturate(round_shift(x, k), bits)


def bit_length(a: Tensor) -> Tensor:
    """Return the number of bits of non-negative int64 below 2^53.

    float64 holds them exactly, and frexp normalises to [0.5, 1): its exponent is the number of bits, 0 for 0.
    """
    return torch.frexp(a.double()).exponent.long()


def magnitude(y: Tensor) -> Tensor:
    """Return the largest magnitude along the last axis, kept as an axis of length 1."""
    return y.abs().amax(-1, keepdim=True)


def exponent(a: Tensor, bits: int) -> Tensor:
    """Return the dynamic exponent of a vector whose largest magnitude is ``a`` (e_n)."""
    return (bit_length(a) - (bits - 1)).clamp(min=0)


def quantize(y: Tensor, e: Tensor, bits: int) -> Tensor:
    """Return symmetric ``bits``-bit integers of ``y`` with the exponent ``e`` (quant_n)."""
    limit = (1 << (bits - 1)) - 1
    return round_shift(y, e).clamp(-limit, limit)
