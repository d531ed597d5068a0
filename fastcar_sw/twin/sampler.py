"""Choice of tokens (docs/numerics.md, section 12)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..sampling import SamplingRegisters, lane_seed, xorshift32
from .functions import Functions
from .rounding import round_shift

__all__ = ["Sampler"]

#: Differences of logits, in base-2 logarithms, saturate here.
_DISTANCE_MAX = (1 << 25) - 1


class Sampler:
    """The sampler of one run: its settings and the random state of each lane.

    Parameters
    ----------
    registers, lanes
        The settings.
    functions
        The tables.
    """

    def __init__(self, registers: SamplingRegisters, lanes: int, functions: Functions) -> None:
        self._registers = registers
        self._functions = functions
        self._states = [lane_seed(registers.seed, lane) for lane in range(lanes)]

    def __call__(self, logits: Tensor) -> Tensor:
        """Return one token a lane, int64, from int64 logits (lanes, vocab)."""
        topk, factor, shift, _ = self._registers
        vocab = logits.shape[-1]
        # Unique keys: larger logits first, then smaller indices.
        key = logits * vocab + torch.arange(vocab - 1, -1, -1, device=logits.device)
        if topk == 0:
            return key.argmax(-1)
        candidates = key.topk(topk, -1).indices
        best = logits.gather(-1, candidates)
        distance = round_shift((best[:, :1] - best) * factor, shift).clamp(max=_DISTANCE_MAX)
        sums = self._functions.exp2neg(distance).cumsum(-1)
        self._states = [xorshift32(state) for state in self._states]
        # 32 + 21 bits.
        point = (torch.tensor(self._states, device=logits.device)[:, None] * sums[:, -1:]) >> 32
        first = (sums > point).long().argmax(-1, keepdim=True)
        return candidates.gather(-1, first)[:, 0]
