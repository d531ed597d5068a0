"""Table functions (docs/numerics.md, section 9): the tables are the hardware's, the arithmetic is written anew."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_hw.numerics.tables import exp2neg_table, rsqrt_table, sigmoid_table

from .rounding import bit_length, round_shift

__all__ = ["ONE", "Functions", "reciprocal"]

#: 1 in the outputs of `Functions.exp2neg` and `Functions.sigmoid` (15 fraction bits).
ONE = 1 << 15


class Functions:
    """The tables as tensors on one device.

    Parameters
    ----------
    device
        Where the tensors live.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        def table(columns: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tensor, Tensor]:
            base, slope = (torch.tensor(column, dtype=torch.int64, device=device) for column in columns)
            return base, slope

        self._exp2neg = table(exp2neg_table())
        self._sigmoid = table(sigmoid_table())
        self._rsqrt = table(rsqrt_table())

    def exp2neg(self, d: Tensor) -> Tensor:
        """Return 2^-d, 15 fraction bits, of ``d`` >= 0 with 12 fraction bits."""
        base, slope = self._exp2neg
        index = (d >> 6) & 63
        t = base[index] - round_shift(slope[index] * (d & 63), 6)
        # From 17 on the rounded shift gives 0 by itself, since t <= 2^15.
        return round_shift(t, (d >> 12).clamp(max=17))

    def sigmoid(self, z: Tensor) -> Tensor:
        """Return the logistic function, 15 fraction bits, of int16 ``z`` with 11 fraction bits."""
        base, slope = self._sigmoid
        a = z.abs().clamp(max=32767)
        index = a >> 7
        t = base[index] + round_shift(slope[index] * (a & 127), 7)
        return torch.where(z < 0, ONE - t, t)

    def rsqrt(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(R, h)`` with 1/sqrt(v) = R * 2^(-16 - h), for 0 <= v < 2^48."""
        base, slope = self._rsqrt
        zero = v == 0
        h = ((bit_length(v) - 1) >> 1).clamp(min=0)
        # 14 fraction bits of v / 4^h in [1, 4); 48 + 14 bits fit.
        fine = torch.where(zero, 0, ((v << 14) >> (2 * h)) - (1 << 14))
        index = fine >> 8
        r = base[index] - round_shift(slope[index] * (fine & 255), 8)
        return torch.where(zero, 65535, r), h


def reciprocal(total: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(rc, b)``: 1/total = rc * 2^(-15 - b), b the bits of ``total`` >= 1 (section 8)."""
    b = bit_length(total)
    rc = ((1 << (b + 15)) // total).clamp(max=65535)
    return rc, b
