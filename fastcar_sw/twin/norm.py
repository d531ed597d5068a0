"""RMSNorm and the residual stream (docs/numerics.md, sections 4, 8 and 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..quantized import QuantizedNorm
from .functions import Functions
from .rounding import exponent, magnitude, quantize, round_shift_saturate, saturate

__all__ = ["Norm", "add_mantissas", "mantissas"]


class Norm:
    """RMSNorm of the residual stream.

    Parameters
    ----------
    norm
        Gains and their shift.
    e0
        Epsilon [E0].
    functions
        The tables, which also name the device.
    device
        Where the tensors live.
    """

    def __init__(self, norm: QuantizedNorm, e0: int, functions: Functions, device: torch.device | str = "cpu") -> None:
        self._gain = torch.tensor(norm.gain.astype("int64"), device=device)
        self._shift = norm.shift
        self._e0 = torch.tensor(e0, device=device)
        self._functions = functions

    def __call__(self, x: Tensor) -> Tensor:
        """Return int64 (lanes, hidden), 32-bit values, of the residual stream ``x``."""
        e = exponent(magnitude(x), 16)
        xm = quantize(x, e, 16)
        v = (xm * xm).sum(-1, keepdim=True) + (self._e0 >> (2 * e))
        r, h = self._functions.rsqrt(v)
        u = round_shift_saturate(xm * r, h - 14, 32)
        return round_shift_saturate(u * self._gain, self._shift, 32)


def mantissas(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return 16-bit mantissas (lanes, hidden) and their exponents (lanes, 1) of a block's output."""
    e = exponent(magnitude(y), 16)
    return quantize(y, e, 16), e


def add_mantissas(x: Tensor, m: Tensor, e: Tensor) -> Tensor:
    """Return the residual stream after adding ``m << e``."""
    return saturate(x + (m << e), 32)
