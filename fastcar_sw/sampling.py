"""Sampling policies: what a user sets, and the integers that twin and hardware take (docs/numerics.md, section 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from .quantized import SCORE_FRACTION

__all__ = ["TOPK_MAX", "SamplingError", "SamplingRegisters", "SamplingSettings", "lane_seed", "xorshift32"]

#: Longest candidate list of any hardware configuration.
TOPK_MAX = 64
_WORD = (1 << 32) - 1
_GOLDEN = 0x9E3779B9


class SamplingError(ValueError):
    """A sampling setting broke a rule; the message names field, value and rule."""


class SamplingRegisters(NamedTuple):
    """Integers of the sampler.

    Attributes
    ----------
    topk
        Candidates, 0 = greedy.
    inv_temperature, temp_shift
        Factor (16 bits) and shift that turn a difference of logits into a base-2 logarithm with 12 fraction
        bits.
    seed
        32 bits.
    """

    topk: int
    inv_temperature: int
    temp_shift: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How tokens are chosen.

    Parameters
    ----------
    topk
        Candidates; 0 takes the largest logit, without randomness.
    temperature
        Divides the logits; 0.001 to 1000.
    seed
        32 bits; every lane has its own sequence.

    Raises
    ------
    SamplingError
        When a field breaks its rule.
    """

    topk: int = 0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.topk) is not int or not 0 <= self.topk <= TOPK_MAX:
            raise SamplingError(f"topk must be an integer in 0..{TOPK_MAX}, not {self.topk!r}")
        number = isinstance(self.temperature, (int, float)) and not isinstance(self.temperature, bool)
        if not number or not 1e-3 <= self.temperature <= 1e3:
            raise SamplingError(f"temperature must be a number in 0.001..1000, not {self.temperature!r}")
        if type(self.seed) is not int or not 0 <= self.seed <= _WORD:
            raise SamplingError(f"seed must be an integer in 0..{_WORD}, not {self.seed!r}")

    def registers(self, logit_fraction: int) -> SamplingRegisters:
        """Return the integers for logits with ``logit_fraction`` fraction bits [FL]."""
        factor = math.log2(math.e) / self.temperature * 2.0 ** (SCORE_FRACTION - logit_fraction)
        # As many of the 16 bits as possible; factor = m * 2^e with m in [0.5, 1).
        shift = min(63, max(0, 16 - math.frexp(factor)[1]))
        value = math.floor(math.ldexp(factor, shift) + 0.5)
        if value > _WORD >> 16 and shift > 0:
            shift -= 1
            value = math.floor(math.ldexp(factor, shift) + 0.5)
        return SamplingRegisters(self.topk, min(value, 65535), shift, self.seed)


def lane_seed(seed: int, lane: int) -> int:
    """Return the first random state of a lane, never 0."""
    return (seed ^ (_GOLDEN * (lane + 1) & _WORD)) or 1


def xorshift32(state: int) -> int:
    """Return the random state after ``state``."""
    state ^= state << 13 & _WORD
    state ^= state >> 17
    return state ^ (state << 5 & _WORD)
