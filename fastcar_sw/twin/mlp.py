"""SwiGLU MLP and the replay cache (docs/numerics.md, section 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_hw.config import ModelConfig

from ..compiler.ops import OpTag
from ..quantized import QuantizedLayer
from .functions import Functions
from .linear import Linear, LinearFactory, activate
from .norm import Norm, add_mantissas, mantissas
from .rounding import round_shift_saturate
from .trace import Recorder

__all__ = ["MLP", "ReplayCache"]


class ReplayCache:
    """What the last computed MLP of each (lane, position in the frame) added; one layer.

    Parameters
    ----------
    config, lanes, device
        Shapes and place.
    """

    def __init__(self, config: ModelConfig, lanes: int, device: torch.device | str = "cpu") -> None:
        slots = config.tokens_per_frame
        self._mantissas = torch.zeros((slots, lanes, config.hidden), dtype=torch.int16, device=device)
        self._exponents = torch.zeros((slots, lanes, 1), dtype=torch.int64, device=device)

    def write(self, slot: int, lanes: Tensor, m: Tensor, e: Tensor) -> None:
        """Store the mantissas and exponents of some lanes."""
        self._mantissas[slot, lanes] = m.short()
        self._exponents[slot, lanes] = e

    def read(self, slot: int, lanes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mantissas and exponents of some lanes."""
        return self._mantissas[slot, lanes].long(), self._exponents[slot, lanes]


class MLP:
    """The MLP of one layer, from the residual stream to what it adds.

    Parameters
    ----------
    layer
        Weights and shifts.
    norm
        The norm in front.
    functions
        The tables.
    device
        Where the tensors live.
    linear
        Makes the products.
    """

    def __init__(self, layer: QuantizedLayer, norm: Norm, functions: Functions, device: torch.device | str = "cpu",
                 linear: LinearFactory = Linear) -> None:  # fmt: skip
        self._norm = norm
        self._gate_up = linear((layer.gate, layer.up), device)
        self._down = linear((layer.down,), device)
        self._shifts = (layer.gate_shift, layer.silu_shift, layer.product_shift)
        self._functions = functions

    def __call__(self, x: Tensor, trace: Recorder, lanes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute some lanes.

        Parameters
        ----------
        x
            int64 (computing lanes, hidden), residual stream.
        trace
            Takes every intermediate result.
        lanes
            int64: which lanes the rows are.

        Returns
        -------
        x
            The residual stream after the MLP.
        m, e
            What was added: mantissas (computing lanes, hidden) and exponents (computing lanes, 1).
        """
        y = self._norm(x)
        act = activate(y)
        gate, up = self._gate_up(act).chunk(2, -1)
        hidden = self._swiglu(gate, up)
        hidden_act = activate(hidden)
        down = self._down(hidden_act)
        m, e = mantissas(down)
        x = add_mantissas(x, m, e)
        for tag, value in (
            (OpTag.MLP_NORM, y), (OpTag.MLP_ACT, act.values), (OpTag.GATE, gate), (OpTag.UP, up),
            (OpTag.SWIGLU, hidden), (OpTag.HIDDEN_ACT, hidden_act.values), (OpTag.DOWN, down), (OpTag.MLP_RES,
            x),
        ):  # fmt: skip
            trace.add(tag, value, lanes)
        trace.add_with_exponent(OpTag.SLOT, e, m, lanes)
        return x, m, e

    def _swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        s1, s2, s3 = self._shifts
        z = round_shift_saturate(gate, s1, 16)
        silu = round_shift_saturate(gate * self._functions.sigmoid(z), s2, 16)
        return round_shift_saturate(silu * up, s3, 32)
