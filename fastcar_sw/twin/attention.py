"""Attention over the integer KV cache (docs/numerics.md, sections 7 and 8), all lanes and heads at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_hw.config import ModelConfig

from ..compiler.ops import OpTag
from ..quantized import ROPE_FRACTION, QuantizedLayer
from .functions import Functions, reciprocal
from .linear import activate, integer_matmul
from .rounding import exponent, magnitude, quantize, round_shift, round_shift_saturate
from .trace import Recorder

__all__ = ["Attention", "HeadVectors", "KVCache", "rotate"]


class HeadVectors:
    """Quantized vectors of many heads.

    Attributes
    ----------
    values : Tensor
        float32 (lanes, kv_heads, group, head_dim), integers in -127..127.
    exponent : Tensor
        int64 (lanes, kv_heads, group, 1).
    """

    def __init__(self, y: Tensor) -> None:
        act = activate(y)
        self.values, self.exponent = act.values, act.exponent


class KVCache:
    """Keys and values of one layer.

    Parameters
    ----------
    config, lanes, device
        Shapes and place.

    Attributes
    ----------
    keys, values : Tensor
        float32 (lanes, kv_heads, max_seq, head_dim), integers in -127..127.
    key_exponents, value_exponents : Tensor
        int64 (lanes, kv_heads, 1, max_seq): ke and ve.
    """

    def __init__(self, config: ModelConfig, lanes: int, device: torch.device | str = "cpu") -> None:
        shape = (lanes, config.kv_heads, config.max_seq, config.head_dim)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        self.key_exponents = torch.zeros((lanes, config.kv_heads, 1, config.max_seq), dtype=torch.int64, device=device)
        self.value_exponents = self.key_exponents.clone()

    def write(self, position: int, key: HeadVectors, value: HeadVectors) -> None:
        """Store a token's vectors."""
        self.keys[:, :, position] = key.values[:, :, 0]
        self.values[:, :, position] = value.values[:, :, 0]
        self.key_exponents[..., position] = key.exponent[..., 0]
        self.value_exponents[..., position] = value.exponent[..., 0]


def rotate(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of the last axis; cos and sin have 14 fraction bits."""
    even, odd = y[..., 0::2], y[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return round_shift_saturate(pairs.flatten(-2), ROPE_FRACTION, 32)


class Attention:
    """Everything between the projections of one layer.

    Parameters
    ----------
    config, layer
        Shapes and shifts.
    rope
        int64 (max_seq, head_dim), cos and sin interleaved.
    functions
        The tables.
    """

    def __init__(self, config: ModelConfig, layer: QuantizedLayer, rope: Tensor, functions: Functions) -> None:
        self._config = config
        self._score_shift = layer.score_shift
        self._context_shift = layer.context_shift
        self._cos, self._sin = rope[:, 0::2], rope[:, 1::2]
        self._functions = functions

    def _score(self, query: HeadVectors, keys: Tensor, key_exponents: Tensor) -> Tensor:
        """Return scores int64 (lanes, kv_heads, group, T)."""
        acc = integer_matmul(query.values, keys.transpose(-1, -2))
        return round_shift_saturate(acc, self._score_shift - query.exponent - key_exponents, 24)

    def aligned_scores(self, query: HeadVectors, cache: KVCache, position: int) -> Tensor:
        """Return the scores of the key at ``position``, int64 (lanes, heads) (section 11)."""
        at = slice(position, position + 1)
        return self._score(query, cache.keys[:, :, at], cache.key_exponents[..., at]).flatten(1)

    def __call__(
        self, qkv: Tensor, position: int, cache: KVCache, trace: Recorder, raw: bool
    ) -> tuple[Tensor, HeadVectors]:
        """Attend from one position.

        Parameters
        ----------
        qkv
            int64 (lanes, q_dim + 2 kv_dim): queries, keys, values.
        position
            Where.
        cache
            Of this layer; the position's keys and values are added.
        trace
            Takes every intermediate result.
        raw
            Whether the returned query is the one before the rotation.

        Returns
        -------
        context
            int64 (lanes, q_dim), 32-bit values.
        query
            What the temporal attention score uses.
        """
        c = self._config
        lanes = qkv.shape[0]
        parts = qkv.split((c.q_dim, c.kv_dim, c.kv_dim), -1)
        group = c.heads // c.kv_heads
        q = parts[0].view(lanes, c.kv_heads, group, c.head_dim)
        k, v = (part.view(lanes, c.kv_heads, 1, c.head_dim) for part in parts[1:])
        cos, sin = self._cos[position], self._sin[position]
        rotated_q, rotated_k = rotate(q, cos, sin), rotate(k, cos, sin)
        query, key, value = HeadVectors(rotated_q), HeadVectors(rotated_k), HeadVectors(v)
        cache.write(position, key, value)
        chosen = HeadVectors(q) if raw else query
        if raw:
            trace.add(OpTag.QUERY_RAW, chosen.values)
        trace.add(OpTag.ROPE_Q, rotated_q)
        trace.add(OpTag.ROPE_K, rotated_k)
        trace.add(OpTag.QUERY, query.values)
        trace.add_with_exponent(OpTag.KEY, key.exponent, key.values)
        trace.add_with_exponent(OpTag.VALUE, value.exponent, value.values)

        upto = position + 1
        ve = cache.value_exponents[..., :upto]
        score = self._score(query, cache.keys[:, :, :upto], cache.key_exponents[..., :upto])
        numerator = self._functions.exp2neg(score.amax(-1, keepdim=True) - score)
        rc, b = reciprocal(numerator.sum(-1, keepdim=True))
        vm = ve.amax(-1, keepdim=True)
        weight = round_shift(numerator, vm - ve)
        ep = exponent(magnitude(weight), 8)
        # Weights are not negative, so the symmetric clamp is min(127, ...).
        p = quantize(weight, ep, 8)
        acc = integer_matmul(p.float(), cache.values[:, :, :upto])
        context = round_shift_saturate(acc * rc, self._context_shift - (ep + vm - b), 32).reshape(lanes, c.q_dim)
        trace.add(OpTag.SCORE, score)
        trace.add(OpTag.WEIGHT, weight)
        trace.add(OpTag.PROB, p)
        trace.add(OpTag.ATTN_OUT, context)
        return context, chosen
