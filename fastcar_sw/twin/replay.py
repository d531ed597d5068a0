"""The gate: which lanes compute their MLP, and which replay (docs/numerics.md, section 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_hw.config import ModelConfig

from ..gates import GateError, GateSettings

__all__ = ["Gate"]


class Gate:
    """The gate of one run.

    Parameters
    ----------
    settings
        The policy.
    config, lanes
        Shapes.
    prompt
        Given positions.
    forced
        bool (positions, layers, lanes), True = compute; for the kind ``forced``.
    device
        Where the scores live.
    """

    def __init__(
        self,
        settings: GateSettings,
        config: ModelConfig,
        lanes: int,
        prompt: int,
        forced: Tensor | None,
        device: torch.device | str = "cpu",
    ) -> None:
        if (settings.kind == "forced") != (forced is not None):
            need = "given" if forced is None else "missing"
            raise GateError(f"forced decisions must be {need} with the gate kind {settings.kind!r}")
        self._settings, self._config = settings, config
        self._lanes, self._prompt, self._forced = lanes, prompt, forced
        self._thresholds = settings.integer_thresholds(config)
        self._weights = torch.tensor(settings.integer_weights(config), device=device)

    def eligible(self, position: int) -> bool:
        """Return whether lanes may replay at a position."""
        return self._settings.eligible(self._config, position, self._prompt)

    def scores(self, position: int) -> bool:
        """Return whether the decision needs the temporal attention score."""
        return self._settings.kind == "tas" and self.eligible(position)

    @property
    def raw(self) -> bool:
        """Whether the score takes the query before its rotation."""
        return self._settings.definition == "reference-code"

    def total(self, scores: Tensor) -> Tensor:
        """Return the weighted sum, int64 (lanes,), of the scores (lanes, heads)."""
        return (scores * self._weights).sum(-1)

    def computes(self, position: int, layer: int, tas: Tensor | None) -> Tensor:
        """Return which lanes compute, bool (lanes,); ``tas`` only counts where `scores` holds."""
        everyone = torch.ones(self._lanes, dtype=torch.bool)
        if not self.eligible(position) or self._settings.kind == "never":
            return everyone
        if self._settings.kind == "always":
            return ~everyone
        if self._forced is not None:
            return self._forced[position, layer]
        assert tas is not None
        replays = tas > self._thresholds[layer] if self.raw else tas >= self._thresholds[layer]
        return ~replays.cpu()
