"""Replay policies: what a user sets, and the integers that twin and hardware take (docs/numerics.md, section 11)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastcar_hw.config import ModelConfig

from .quantized import SCORE_FRACTION

__all__ = ["DEFINITIONS", "GATES", "GateError", "GateSettings"]

#: Kinds of gates and definitions of the score, by their names in docs/numerics.md; the index is the
#: hardware's code.
GATES = ("never", "always", "tas", "forced")
DEFINITIONS = ("paper", "reference-code")

_WEIGHT_SUM_MAX = 255
_WARMUP_MAX = 1 << 16


class GateError(ValueError):
    """A gate setting broke a rule; the message names field, value and rule."""


def _require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise GateError(f"{name} must be {rule}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """A replay policy.

    Parameters
    ----------
    kind
        ``never`` computes every MLP, ``always`` replays whatever is eligible, ``tas`` compares the temporal
        attention score with the threshold, ``forced`` takes recorded decisions.
    definition
        ``paper``: rotated query, replay when score >= threshold; ``reference-code``: query before the
        rotation, replay when score > threshold.
    threshold
        Natural-logarithm units (those of the attention logits), one for all layers or one a layer; the score
        is the mean over the heads, weighted with ``head_weights``.  ``inf`` never replays a layer, ``-inf``
        always does.
    head_weights
        0..255 a head, their sum 1..255; one each when missing.
    warmup_frames
        Frames after the prompt's last one that compute.

    Raises
    ------
    GateError
        When a field breaks its rule.
    """

    kind: str = "tas"
    definition: str = "paper"
    threshold: float | tuple[float, ...] = 0.0
    head_weights: tuple[int, ...] | None = None
    warmup_frames: int = 0

    def __post_init__(self) -> None:
        _require(self.kind in GATES, "gate kind", self.kind, f"one of {', '.join(GATES)}")
        _require(
            self.definition in DEFINITIONS,
            "gate definition",
            self.definition,
            f"one of {', '.join(DEFINITIONS)}",
        )
        if isinstance(self.threshold, tuple):
            for i, value in enumerate(self.threshold):
                _require(_is_number(value), f"threshold of layer {i}", value, "a number")
        else:
            _require(_is_number(self.threshold), "threshold", self.threshold, "a number, or a tuple of one a layer")
        if self.head_weights is not None:
            _require(
                isinstance(self.head_weights, tuple),
                "head_weights",
                self.head_weights,
                "a tuple of one a head",
            )
            for i, weight in enumerate(self.head_weights):
                _require(
                    type(weight) is int and 0 <= weight <= 255,
                    f"weight of head {i}",
                    weight,
                    "an integer in 0..255",
                )
            total = sum(self.head_weights)
            _require(1 <= total <= _WEIGHT_SUM_MAX, "sum of head_weights", total, f"in 1..{_WEIGHT_SUM_MAX}")
        ok = type(self.warmup_frames) is int and 0 <= self.warmup_frames <= _WARMUP_MAX
        _require(ok, "warmup_frames", self.warmup_frames, f"an integer in 0..{_WARMUP_MAX}")

    def integer_weights(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the weight of each head [hw]."""
        weights = (1,) * model.heads if self.head_weights is None else self.head_weights
        _require(len(weights) == model.heads, "number of head_weights", len(weights), f"heads={model.heads}")
        return weights

    def integer_thresholds(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the threshold of each layer in units of the summed score, signed 32 bits [theta]."""
        values = self.threshold if isinstance(self.threshold, tuple) else (self.threshold,) * model.layers
        _require(len(values) == model.layers, "number of thresholds", len(values), f"layers={model.layers}")
        unit = math.log2(math.e) * (1 << SCORE_FRACTION) * sum(self.integer_weights(model))
        low, high = -(1 << 31), (1 << 31) - 1
        # Clamped before rounding, so that infinities work.
        return tuple(math.floor(min(high, max(low, value * unit)) + 0.5) for value in values)

    def eligible(self, model: ModelConfig, position: int, prompt: int) -> bool:
        """Return whether a position may replay, ``prompt`` positions being given."""
        n = model.tokens_per_frame
        return position >= max(prompt, n) and position // n - prompt // n >= self.warmup_frames
