"""Post-training quantization: float weights and a few clips of tokens become a `QuantizedModel`.

Weights get a symmetric int8 grid an output channel.  Fraction bits come from the largest magnitudes that the
calibration clips show, with `HEADROOM` bits to spare: 32-bit vectors feed 8-bit or 16-bit mantissas with a dynamic
exponent, so spare bits at the top cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from fastcar_hw.config import ModelConfig

from .model import ModelError
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
#: Fraction bits of xhat / sqrt(hidden) inside a norm.
_XHAT_FRACTION = 30
#: Queries and keys: the score shift stays inside the clamp for every pair of these.
_QK_FRACTIONS = (11, 29)

_KEYS = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
}  # fmt: skip


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the float model by its key."""
    c = config
    layer = {
        "query": (c.q_dim, c.hidden), "key": (c.kv_dim, c.hidden), "value": (c.kv_dim, c.hidden),
        "output": (c.hidden, c.q_dim), "gate": (c.ffn, c.hidden), "up": (c.ffn, c.hidden), "down": (c.hidden, c.ffn),
        "attn_norm": (c.hidden,), "mlp_norm": (c.hidden,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab, c.hidden)}
    if c.frame_embedding:
        shapes["model.frame_embed.weight"] = (c.tokens_per_frame, c.hidden)
    for i in range(c.layers):
        shapes |= {f"model.layers.{i}.{_KEYS[name]}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (c.hidden,), "lm_head.weight": (c.vocab, c.hidden)}


class _Weights:
    """Checked float weights, float64, by the names that `QuantizedModel` uses."""

    def __init__(self, config: ModelConfig, state: Mapping[str, torch.Tensor | np.ndarray]) -> None:
        self._arrays = {}
        for key, shape in expected_shapes(config).items():
            if key not in state:
                raise ModelError(f"model lacks the tensor {key!r}")
            value = torch.as_tensor(state[key]).detach().to("cpu", torch.float64).numpy()
            if value.shape != shape:
                raise ModelError(f"tensor {key!r} must have the shape {shape}, not {value.shape}")
            if not np.isfinite(value).all():
                raise ModelError(f"tensor {key!r} must be finite, but contains NaN or infinity")
            self._arrays[key] = value
        self.embedding = self._arrays["model.embed_tokens.weight"]
        self.positions = self._arrays.get("model.frame_embed.weight")
        self.final_norm = self._arrays["model.norm.weight"]
        self.head = self._arrays["lm_head.weight"]

    def layer(self, i: int, name: str) -> np.ndarray:
        return self._arrays[f"model.layers.{i}.{_KEYS[name]}.weight"]


def rope_angles(config: ModelConfig, positions: int) -> np.ndarray:
    """Return the rotary angles, float64 (positions, head_dim / 2), in radians."""
    rate = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    return np.arange(positions)[:, None] * rate


@torch.no_grad()
def calibrate(
    config: ModelConfig, state: Mapping[str, torch.Tensor | np.ndarray], tokens: torch.Tensor
) -> tuple[dict[tuple[str, int], float], torch.Tensor]:
    """Run the float model and note the largest magnitude of every tensor.

    Parameters
    ----------
    config, state
        The float model.
    tokens
        int64 (clips, positions).

    Returns
    -------
    peaks
        Largest magnitude by (tensor, layer); ``residual`` and ``logits`` have layer 0.
    logits
        float32 (clips, positions, vocab).
    """
    c = config
    w = _Weights(c, state)
    peaks: dict[tuple[str, int], float] = {}

    def note(name: str, layer: int, x: torch.Tensor) -> torch.Tensor:
        peaks[name, layer] = max(peaks.get((name, layer), 0.0), float(x.abs().max()))
        return x

    def f32(x: np.ndarray) -> torch.Tensor:
        return torch.tensor(x, dtype=torch.float32)

    def norm(x: torch.Tensor, gain: np.ndarray) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.norm_eps) * f32(gain)

    clips, length = tokens.shape
    angles = rope_angles(c, length)
    cos, sin = f32(np.cos(angles)), f32(np.sin(angles))

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def heads(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(clips, length, count, c.head_dim).transpose(1, 2)

    x = f32(w.embedding)[tokens]
    if w.positions is not None:
        note("residual", 0, x)
        x = x + f32(w.positions)[torch.arange(length) % c.tokens_per_frame]
    note("residual", 0, x)
    mask = torch.full((length, length), -math.inf).triu(1)
    for i in range(c.layers):
        y = norm(x, w.layer(i, "attn_norm"))
        q, k, v = (y @ f32(w.layer(i, name)).T for name in ("query", "key", "value"))
        note("query", i, q * _query_factor(c))
        note("key", i, k)
        note("value", i, v)
        group = c.heads // c.kv_heads
        k, v = (heads(t, c.kv_heads).repeat_interleave(group, 1) for t in (k, v))
        scores = rotate(heads(q, c.heads)) @ (rotate(k).transpose(-1, -2)) / math.sqrt(c.head_dim)
        context = ((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(clips, length, c.q_dim)
        out = note("residual", 0, context @ f32(w.layer(i, "output")).T)
        x = note("residual", 0, x + out)
        y = norm(x, w.layer(i, "mlp_norm"))
        gate = note("gate", i, y @ f32(w.layer(i, "gate")).T)
        up = note("up", i, y @ f32(w.layer(i, "up")).T)
        silu = note("silu", i, gate * gate.sigmoid())
        hidden = note("hidden", i, silu * up)
        out = note("residual", 0, hidden @ f32(w.layer(i, "down")).T)
        x = note("residual", 0, x + out)
    logits = note("logits", 0, norm(x, w.final_norm) @ f32(w.head).T)
    return peaks, logits


def _query_factor(config: ModelConfig) -> float:
    """Return what makes scores base-2 logarithms of the softmax weights."""
    return math.log2(math.e) / math.sqrt(config.head_dim)


def _fraction(peak: float, bits: int, low: int, high: int) -> int:
    """Return the fraction bits with which ``peak`` still is below 2^bits, held in ``low``..``high``."""
    if peak == 0.0:
        return high
    return min(high, max(low, bits - math.frexp(peak)[1]))


def _round(x: np.ndarray) -> np.ndarray:
    return np.floor(x + 0.5)


def _int16(x: np.ndarray, fraction: int) -> np.ndarray:
    return np.clip(_round(np.ldexp(x, fraction)), -32767, 32767).astype(np.int16)


def _largest_fraction(x: np.ndarray, high: int) -> int:
    """Return the most fraction bits with which all of ``x`` are int16."""
    fraction = _fraction(float(np.abs(x).max()), 15, -64, high)
    # A magnitude just below a power of two rounds up to it.
    return fraction - int(_round(np.ldexp(np.abs(x).max(), fraction)) > 32767)


def _matrix(weight: np.ndarray, peak: float, fractions: tuple[int, int], name: str) -> QuantizedLinear:
    """Quantize a matrix.

    Parameters
    ----------
    weight
        Float (out, in).
    peak
        Largest magnitude that the scale's fraction bits must cover; at least that of ``weight``.
    fractions
        Fraction bits of input and output.
    name
        For messages.
    """
    source, target = fractions
    scale_fraction = math.floor(math.log2(65535 * 127 / peak)) if peak else 16
    rows = np.abs(weight).max(1)
    scale = np.clip(np.ceil(np.ldexp(rows / 127, scale_fraction) - 1e-6), 1, 65535)
    integers = np.clip(_round(np.ldexp(weight, scale_fraction) / scale[:, None]), -127, 127)
    shift = scale_fraction + source - target
    if not integers.any():
        shift = min(47, max(9, shift))
    if not 9 <= shift <= 47:
        raise ModelError(
            f"shift of {name} must be in 9..47, not {shift}: its weights (up to {peak:.3g}) do not fit the range "
            "of its results in the calibration clips"
        )
    return QuantizedLinear(weight=integers.astype(np.int8), scale=scale.astype(np.uint16), shift=int(shift))


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Move the rows of each head from the half-split rotary convention to neighbouring pairs."""
    head_dim = rows.shape[0] // heads
    halves = rows.reshape(heads, 2, head_dim // 2, -1)
    return halves.transpose(0, 2, 1, 3).reshape(rows.shape)


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
        Give all layers the same shifts, so that the program can loop over the layers.  The cost is below a bit of
        precision that is not used anyway, unless the layers' ranges differ by more than a factor of about 100.
    source
        Text kept in the file, such as the hash of the float model.

    Raises
    ------
    ModelError
        When a tensor is missing, has the wrong shape or is not finite, or when the ranges admit no legal shifts.
    """
    c = config
    w = _Weights(c, state)
    if calibration is None:
        calibration = random_tokens(c, seed=0)
    _check_tokens(c, calibration)
    peaks, _ = calibrate(c, state, calibration)

    def peak(name: str, layer: int) -> float:
        return max(peaks[name, i] for i in range(c.layers)) if uniform else peaks[name, layer]

    def weight_peak(name: str, layer: int) -> float:
        chosen = range(c.layers) if uniform else (layer,)
        factor = _query_factor(c) if name == "query" else 1.0
        return max(float(np.abs(w.layer(i, name)).max()) for i in chosen) * factor

    root = math.sqrt(c.hidden)

    def gain_fraction(name: str, layer: int) -> int:
        chosen = range(c.layers) if uniform else (layer,)
        return min(_largest_fraction(w.layer(i, name) * root, 30) for i in chosen)

    def norm(gain: np.ndarray, fraction: int) -> QuantizedNorm:
        return QuantizedNorm(gain=_int16(gain * root, fraction), shift=_NORM_SHIFT)

    bits = 31 - HEADROOM
    eps_sum = c.norm_eps * c.hidden
    # Epsilon (40 bits) bounds the fraction bits of the residual stream.
    residual_high = math.floor((39.9 - math.log2(eps_sum)) / 2)
    tables = [w.embedding] if w.positions is None else [w.embedding, w.positions]
    residual_peak = max(peaks["residual", 0], *(float(np.abs(t).max()) for t in tables), 2.0**-16)
    fx = _fraction(residual_peak, bits, -8, residual_high)
    eps = math.floor(math.ldexp(eps_sum, 2 * fx) + 0.5)
    eps_shift = max(0, eps.bit_length() - 32)
    embedded = [max(fx - 16, min(fx, _largest_fraction(t, fx))) for t in tables]

    layers = []
    for i in range(c.layers):
        f = {
            "norm": _XHAT_FRACTION - _NORM_SHIFT + gain_fraction("attn_norm", i),
            "mlp_norm": _XHAT_FRACTION - _NORM_SHIFT + gain_fraction("mlp_norm", i),
            "query": _fraction(peak("query", i), bits, *_QK_FRACTIONS),
            "key": _fraction(peak("key", i), bits, *_QK_FRACTIONS),
            "value": _fraction(peak("value", i), bits, -64, 40),
            "gate": _fraction(peak("gate", i), bits, GATE_FRACTION, 40),
            "up": _fraction(peak("up", i), bits, -64, 40),
            "silu": _fraction(peak("silu", i), 15 - SILU_HEADROOM, -8, 26),
        }
        f["hidden"] = min(_fraction(peak("hidden", i), bits, -64, 64), f["silu"] + f["up"])
        f["context"] = f["value"]
        ends = {
            "query": ("norm", f["query"]), "key": ("norm", f["key"]), "value": ("norm", f["value"]),
            "output": ("context", fx), "gate": ("mlp_norm", f["gate"]), "up": ("mlp_norm", f["up"]),
            "down": ("hidden", fx),
        }  # fmt: skip
        linears = {}
        for name in LINEARS:
            weight = w.layer(i, name)
            if name == "query":
                weight = weight * _query_factor(c)
            if name in ("query", "key"):
                weight = _interleave(weight, c.heads if name == "query" else c.kv_heads)
            source_name, target = ends[name]
            linears[name] = _matrix(weight, weight_peak(name, i), (f[source_name], target), f"layers.{i}.{name}")
        fractions = {"attn_norm": f["norm"], "mlp_norm": f["mlp_norm"]}
        norms = {n: norm(w.layer(i, n), fractions[n] + _NORM_SHIFT - _XHAT_FRACTION) for n in NORMS}
        layers.append(
            QuantizedLayer(
                **norms,
                **linears,
                score_shift=f["query"] + f["key"] - SCORE_FRACTION,
                # rc has 15 fraction bits more than the sum; values and context have the same fraction bits.
                context_shift=15,
                gate_shift=f["gate"] - GATE_FRACTION,
                silu_shift=f["gate"] + 15 - f["silu"],
                product_shift=f["silu"] + f["up"] - f["hidden"],
                fractions=f,
            )
        )

    final_fraction = _largest_fraction(w.final_norm * root, 30)
    fl = _fraction(peaks["logits", 0], bits, -16, 24)
    ends_head = (_XHAT_FRACTION - _NORM_SHIFT + final_fraction, fl)
    angles = rope_angles(c, c.max_seq)
    rope = np.stack((np.cos(angles), np.sin(angles)), -1).reshape(c.max_seq, c.head_dim)
    return QuantizedModel(
        config=c,
        embedding=_int16(w.embedding, embedded[0]),
        embedding_shift=embedded[0] - fx,
        positions=None if w.positions is None else _int16(w.positions, embedded[1]),
        position_shift=0 if w.positions is None else embedded[1] - fx,
        rope=_int16(rope, ROPE_FRACTION),
        layers=tuple(layers),
        final_norm=norm(w.final_norm, final_fraction),
        head=_matrix(w.head, float(np.abs(w.head).max()), ends_head, "head"),
        eps=eps >> eps_shift,
        eps_shift=eps_shift,
        residual_fraction=fx,
        logit_fraction=fl,
        source=source,
    )


def _check_tokens(config: ModelConfig, tokens: torch.Tensor) -> None:
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= config.max_seq or tokens.shape[0] < 1:
        raise ModelError(
            f"calibration must be clips of 1..{config.max_seq} tokens (clips, positions), not of shape {tuple(tokens.shape)}"
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= config.vocab:
        raise ModelError(
            f"calibration tokens must be in 0..{config.vocab - 1}, not {int(tokens.min())}..{int(tokens.max())}"
        )


def random_tokens(config: ModelConfig, seed: int, clips: int = 2, length: int = 96) -> torch.Tensor:
    """Return random clips, int64 (clips, positions), in which a frame keeps most tokens of the one before."""
    rng = np.random.default_rng(seed)
    length = min(length, config.max_seq)
    tokens = rng.integers(0, config.vocab, (clips, length))
    n = config.tokens_per_frame
    for t in range(n, length):
        keep = rng.random(clips) < 0.7
        tokens[keep, t] = tokens[keep, t - n]
    return torch.tensor(tokens)


def random_model(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Return plausible random weights for any shapes, float32, with the keys that `quantize` takes.

    Residual branches shrink with the depth, queries and keys give logits of a few units, and gains, channels and
    layers differ in size, as in trained models.
    """
    rng = np.random.default_rng(seed)
    spread = {"query": 1.5, "key": 1.5, "head": 3.0, "output": (2 * config.layers) ** -0.5, "down": (2 * config.layers) ** -0.5}
    names = {f"{key}.weight": name for name, key in _KEYS.items()}
    state = {}
    for key, shape in expected_shapes(config).items():
        name = names.get(key.split(".", 3)[-1], "head" if key.startswith("lm_head") else "")
        if len(shape) == 1:
            value = np.exp(rng.normal(0, 0.3, shape))
        elif "embed" in key:
            value = rng.normal(0, 1.0 if "tokens" in key else 0.3, shape)
        else:
            channels = np.exp(rng.normal(0, 0.3, (shape[0], 1)))
            value = rng.normal(0, spread.get(name, 1.0) / math.sqrt(shape[1]), shape) * channels
        state[key] = torch.tensor(value, dtype=torch.float32)
    return state
