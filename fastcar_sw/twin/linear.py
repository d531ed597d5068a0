"""Exact integer matrix products and activations (docs/numerics.md, sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..quantized import QuantizedLinear
from .rounding import exponent, magnitude, quantize, round_shift_saturate

__all__ = ["CHUNK", "Activation", "Linear", "LinearFactory", "activate", "integer_matmul"]

#: Longest product whose float32 sum is exact.  Every operand is an integer in -127..127, so every partial
#: sum, in whatever order it is built, is an integer of magnitude <= 127 * 127 * 1024 = 16,516,096 < 2^24, and
#: float32 holds all of those.  Fused multiply-adds are exact for the same reason, and so are TF32 and
#: bfloat16 inputs (8 bits are enough for the operands; sums are kept in float32).
CHUNK = 1024
assert 127 * 127 * CHUNK < 1 << 24


@dataclass(frozen=True, eq=False)
class Activation:
    """An int8 vector a lane.

    Attributes
    ----------
    values : Tensor
        float32 (lanes, K), integers in -127..127.
    exponent : Tensor
        int64 (lanes, 1): EX.
    """

    values: Tensor
    exponent: Tensor


def activate(y: Tensor) -> Activation:
    """Quantize int64 vectors along the last axis (section 5)."""
    e = exponent(magnitude(y), 8)
    return Activation(quantize(y, e, 8).float(), e)


def integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply (…, m, K) by (…, K, n), float32 integers in -127..127, into exact int64."""
    k = a.shape[-1]
    if k <= CHUNK:
        return torch.matmul(a, b).long()
    parts = [torch.matmul(a[..., i : i + CHUNK], b[..., i : i + CHUNK, :]).long() for i in range(0, k, CHUNK)]
    return torch.stack(parts).sum(0)


class Linear:
    """Matrices that share their input, as one product.

    Parameters
    ----------
    parts
        The matrices; their output channels are concatenated.
    device
        Where the tensors live.

    Notes
    -----
    The weights stay int8 in the model; here they are float32, since converting them on every call costs ten
    times the product itself.
    """

    def __init__(self, parts: Sequence[QuantizedLinear], device: torch.device | str = "cpu") -> None:
        weight = torch.cat([torch.tensor(p.weight, dtype=torch.float32) for p in parts])
        self._chunks = [chunk.contiguous().to(device) for chunk in weight.split(CHUNK, 1)]
        self._scale = torch.cat([torch.tensor(p.scale.astype("int64")) for p in parts]).to(device)
        shifts = {p.shift for p in parts}
        #: One number where all parts agree, else one an output channel.
        self._shift: Tensor | int = (
            shifts.pop()
            if len(shifts) == 1
            else torch.cat([torch.full((len(p.scale),), p.shift) for p in parts]).to(device)
        )

    def __call__(self, act: Activation) -> Tensor:
        """Return int64 (lanes, out), 32-bit values."""
        if len(self._chunks) == 1:
            acc = linear(act.values, self._chunks[0]).long()
        else:
            inputs = act.values.split(CHUNK, -1)
            parts = [linear(x, w).long() for x, w in zip(inputs, self._chunks, strict=True)]
            acc = torch.stack(parts).sum(0)
        return round_shift_saturate(acc * self._scale, self._shift - act.exponent, 32)


#: Makes what multiplies matrices that share their input: `Linear`, or something outside of the twin.
LinearFactory = Callable[[Sequence[QuantizedLinear], torch.device | str], Callable[[Activation], Tensor]]
