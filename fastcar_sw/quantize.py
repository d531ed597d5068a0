"""Post-training quantization: float weights and a few clips of tokens become a `QuantizedModel`.

Weights get a symmetric int8 grid an output channel.  Fraction bits come from the largest magnitudes that the
calibration clips show, with `HEADROOM` bits to spare: 32-bit vectors feed 8-bit or 16-bit mantissas with a
dynamic exponent, so spare bits at the top cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fastcar_hw.config import ModelConfig

from .model import ModelError
from .quantize_ranges import (
    FloatWeights,
    calibrate,
    check_tokens,
    query_factor,
    random_model,
    random_tokens,
    rope_angles,
)
from .quantized import (
    GATE_FRACTION,
    LINEARS,
    NORMS,
    ROPE_FRACTION,
    SCORE_FRACTION,
    QuantizedLayer,
    QuantizedLinear,
    QuantizedModel,
    QuantizedNorm,
)

__all__ = ["HEADROOM", "calibrate", "quantize", "random_model", "random_tokens"]

#: Spare bits above the largest calibrated magnitude of a 32-bit vector, and of the 16-bit output of SiLU.
HEADROOM = 4
SILU_HEADROOM = 2
#: Shift after the gain of a norm: with 30 + 15 bits in, the result stays below 2^30 whatever the input is.
_NORM_SHIFT = 15
#: Fraction bits of a norm's output, beyond those of its gains: xhat / sqrt(hidden) has 30.
_NORM_FRACTION = 30 - _NORM_SHIFT
#: Queries and keys: the score shift is legal for every pair of these.
_QK_FRACTIONS = (11, 29)
#: Legal shifts of matrix products.
_SHIFT_MIN, _SHIFT_MAX = 9, 47
#: What feeds each matrix, and what comes out (`residual` and `logits` are of the model, all others of the
#: layer).
_ENDS = {
    "query": ("norm", "query"), "key": ("norm", "key"), "value": ("norm", "value"), "output": ("value", "residual"),
    "gate": ("mlp_norm", "gate"), "up": ("mlp_norm", "up"), "down": ("hidden", "residual"),
}  # fmt: skip


def _fraction(peak: float, bits: int, low: int, high: int) -> int:
    """Return the fraction bits with which ``peak`` is below 2^bits, but at least ``low`` and at most ``high``."""
    if peak == 0.0:
        return high
    return max(low, min(high, bits - math.frexp(peak)[1]))


def _round(x: np.ndarray) -> np.ndarray:
    return np.floor(x + 0.5)


def _int16(x: np.ndarray, fraction: int) -> np.ndarray:
    return np.clip(_round(np.ldexp(x, fraction)), -32767, 32767).astype(np.int16)


def _int16_fraction(x: np.ndarray, high: int) -> int:
    """Return the most fraction bits, at most ``high``, with which all of ``x`` fit in int16."""
    peak = float(np.abs(x).max())
    fraction = _fraction(peak, 15, -64, high)
    # A magnitude just below a power of two rounds up to it.
    return fraction - 1 if math.floor(math.ldexp(peak, fraction) + 0.5) > 32767 else fraction


def _scale_fraction(peak: float) -> int:
    """Return the fraction bits with which the scale of a channel whose largest weight is ``peak`` fits 16 bits."""
    return math.floor(math.log2(65535 * 127 / peak)) if peak else 16


def _matrix(weight: np.ndarray, fraction: int, shift: int, name: str) -> QuantizedLinear:
    """Quantize float weights (out, in), with scales of ``fraction`` fraction bits.

    The grid of a channel is the *rounded* scale, so the rounding of scales costs nothing.
    """
    rows = np.abs(weight).max(1)
    scale = np.clip(np.ceil(np.ldexp(rows / 127, fraction) - 1e-6), 1, 65535)
    integers = np.clip(_round(np.ldexp(weight, fraction) / scale[:, None]), -127, 127)
    if not _SHIFT_MIN <= shift <= _SHIFT_MAX:
        raise ModelError(
            f"shift of {name} must be in {_SHIFT_MIN}..{_SHIFT_MAX}, not {shift}: its weights (up to {rows.max():.3g}) "
            "do not fit the range of its inputs and results in the calibration clips"
        )
    return QuantizedLinear(weight=integers.astype(np.int8), scale=scale.astype(np.uint16), shift=shift)


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Move the rows of each head from the half-split rotary convention to neighbouring pairs."""
    head_dim = rows.shape[0] // heads
    halves = rows.reshape(heads, 2, head_dim // 2, -1)
    return halves.transpose(0, 2, 1, 3).reshape(rows.shape)


class _Quantizer:
    """Chooses fraction bits for one model."""

    def __init__(
        self,
        config: ModelConfig,
        weights: FloatWeights,
        peaks: Mapping[tuple[str, int], float],
        uniform: bool,
    ) -> None:
        self._config, self._weights, self._peaks, self._uniform = config, weights, peaks, uniform
        self._root = math.sqrt(config.hidden)
        factor = {"query": query_factor(config)}
        self._weight_peaks = {
            (name, i): float(np.abs(weights.layer(i, name)).max()) * factor.get(name, 1.0)
            for name in LINEARS
            for i in range(config.layers)
        }
        tables = [t for t in (weights.embedding, weights.positions) if t is not None]
        eps = config.norm_eps * config.hidden
        # Epsilon is at most 2^40 - 1, which bounds the fraction bits of the residual stream.
        high = math.floor((39.9 - math.log2(eps)) / 2)
        peak = max(peaks["residual", 0], *(float(np.abs(t).max()) for t in tables))
        self.residual = _fraction(peak, 31 - HEADROOM, -8, high)
        e0 = math.floor(math.ldexp(eps, 2 * self.residual) + 0.5)
        self.eps_shift = max(0, e0.bit_length() - 32)
        self.eps = e0 >> self.eps_shift

    def _layers(self, layer: int) -> range:
        """Return the layers that share their shifts with one."""
        return range(self._config.layers) if self._uniform else range(layer, layer + 1)

    def _peak(self, name: str, layer: int) -> float:
        return max(self._peaks[name, i] for i in self._layers(layer))

    def _weight(self, layer: int, name: str) -> np.ndarray:
        """Return a matrix as the hardware has it: rotary pairs side by side, the scale of scores in the queries."""
        c, weight = self._config, self._weights.layer(layer, name)
        if name == "query":
            return _interleave(weight * query_factor(c), c.heads)
        return _interleave(weight, c.kv_heads) if name == "key" else weight

    def norm(self, gain: np.ndarray, fraction: int) -> QuantizedNorm:
        """Quantize gains; ``fraction`` is that of the norm's output."""
        return QuantizedNorm(gain=_int16(gain * self._root, fraction - _NORM_FRACTION), shift=_NORM_SHIFT)

    def norm_fraction(self, gain: np.ndarray) -> int:
        """Return the fraction bits of a norm's output."""
        return _NORM_FRACTION + _int16_fraction(gain * self._root, 30)

    def table(self, x: np.ndarray) -> tuple[np.ndarray, int]:
        """Quantize an embedding table; return it and its shift, -16..0."""
        fraction = max(self.residual - 16, _int16_fraction(x, self.residual))
        return _int16(x, fraction), fraction - self.residual

    def _fractions(self, layer: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return the fraction bits of a layer's tensors, and of the scales of its matrices."""
        scales = {
            name: _scale_fraction(max(self._weight_peaks[name, i] for i in self._layers(layer))) for name in LINEARS
        }
        bits = 31 - HEADROOM
        f = {
            name: min(self.norm_fraction(self._weights.layer(i, norm)) for i in self._layers(layer))
            for name, norm in (("norm", "attn_norm"), ("mlp_norm", "mlp_norm"))
        }

        def result(name: str, low: int, high: int) -> int:
            """Return the fraction bits of a product, near enough to its input's for a legal shift."""
            exact = scales[name] + f[_ENDS[name][0]]
            return _fraction(self._peak(name, layer), bits, max(low, exact - _SHIFT_MAX), min(high, exact - _SHIFT_MIN))

        def operand(name: str) -> tuple[int, int]:
            """Return the lowest and highest fraction bits of a matrix's input, whose result is the residual."""
            exact = self.residual - scales[name]
            return exact + _SHIFT_MIN, exact + _SHIFT_MAX

        for name in ("query", "key"):
            f[name] = result(name, *_QK_FRACTIONS)
        f["value"] = f["context"] = result("value", *operand("output"))
        f["gate"] = result("gate", GATE_FRACTION, GATE_FRACTION + 40)
        f["up"] = result("up", -64, 64)
        f["silu"] = _fraction(self._peak("silu", layer), 15 - SILU_HEADROOM, f["gate"] + 15 - 47, f["gate"] + 15)
        low, high = operand("down")
        exact = f["silu"] + f["up"]
        f["hidden"] = _fraction(self._peak("hidden", layer), bits, max(low, exact - 47), min(high, exact))
        f["residual"] = self.residual
        return f, scales

    def layer(self, i: int) -> QuantizedLayer:
        """Quantize a layer."""
        f, scales = self._fractions(i)
        parts: dict[str, Any] = {
            name: self.norm(self._weights.layer(i, name), f[key])
            for name, key in zip(NORMS, ("norm", "mlp_norm"), strict=True)
        }
        for name in LINEARS:
            source, target = _ENDS[name]
            shift = scales[name] + f[source] - f[target]
            parts[name] = _matrix(self._weight(i, name), scales[name], shift, f"layers.{i}.{name}")
        return QuantizedLayer(
            **parts,
            score_shift=f["query"] + f["key"] - SCORE_FRACTION,
            # rc has 15 fraction bits more than the sum; values and context have the same fraction bits.
            context_shift=15,
            gate_shift=f["gate"] - GATE_FRACTION,
            silu_shift=f["gate"] + 15 - f["silu"],
            product_shift=f["silu"] + f["up"] - f["hidden"],
            fractions=f,
        )

    def head(self) -> tuple[QuantizedNorm, QuantizedLinear, int]:
        """Quantize final norm and output matrix; return them and the fraction bits of the logits."""
        w = self._weights
        scale = _scale_fraction(float(np.abs(w.head).max()))
        source = self.norm_fraction(w.final_norm)
        exact = scale + source
        logits = _fraction(
            self._peaks["logits", 0], 31 - HEADROOM, max(-16, exact - _SHIFT_MAX), min(24, exact - _SHIFT_MIN)
        )
        return self.norm(w.final_norm, source), _matrix(w.head, scale, exact - logits, "head"), logits


def quantize(
    config: ModelConfig,
    state: Mapping[str, torch.Tensor | np.ndarray],
    calibration: torch.Tensor | None = None,
    *,
    uniform: bool = True,
    source: str = "",
) -> QuantizedModel:
    """Quantize a float model.

    Parameters
    ----------
    config
        Its shapes.
    state
        Float tensors by Hugging Face style key, rotary pairs half-split.
    calibration
        int64 (clips, positions) of typical tokens; without, a few random clips.
    uniform
        Give all layers the same shifts, so that the program can loop over the layers.  It costs spare bits of
        32-bit vectors only, unless the ranges of the layers differ by more than a factor of about 100.
    source
        Text kept in the file, such as the hash of the float model.

    Raises
    ------
    ModelError
        When a tensor is missing, has the wrong shape or is not finite, or when the ranges admit no legal
        shifts.
    """
    weights = FloatWeights(config, state)
    if calibration is None:
        calibration = random_tokens(config, seed=0)
    check_tokens(config, calibration)
    peaks, _ = calibrate(config, state, calibration)
    q = _Quantizer(config, weights, peaks, uniform)
    embedding, embedding_shift = q.table(weights.embedding)
    positions, position_shift = (None, 0) if weights.positions is None else q.table(weights.positions)
    final_norm, head, logit_fraction = q.head()
    angles = rope_angles(config, config.max_seq)
    rope = np.stack((np.cos(angles), np.sin(angles)), -1).reshape(config.max_seq, config.head_dim)
    return QuantizedModel(
        config=config,
        embedding=embedding,
        embedding_shift=embedding_shift,
        positions=positions,
        position_shift=position_shift,
        rope=_int16(rope, ROPE_FRACTION),
        layers=tuple(q.layer(i) for i in range(config.layers)),
        final_norm=final_norm,
        head=head,
        eps=q.eps,
        eps_shift=q.eps_shift,
        residual_fraction=q.residual,
        logit_fraction=logit_fraction,
        source=source,
    )
