"""What the quantizer learns from the float model: checked weights, and the range of every tensor on some clips."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from fastcar_hw.config import ModelConfig

from .model import ModelError

__all__ = [
    "FloatWeights",
    "calibrate",
    "check_tokens",
    "expected_shapes",
    "query_factor",
    "random_model",
    "random_tokens",
    "rope_angles",
]

#: Part of the key of each tensor of a layer, by the names of `QuantizedLayer`.
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


class FloatWeights:
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
        """Return a tensor of a layer."""
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
    w = FloatWeights(c, state)
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
        note("query", i, q * query_factor(c))
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


def query_factor(config: ModelConfig) -> float:
    """Return what makes scores base-2 logarithms of the softmax weights."""
    return math.log2(math.e) / math.sqrt(config.head_dim)


def check_tokens(config: ModelConfig, tokens: torch.Tensor) -> None:
    """Raise `ModelError` when calibration clips do not fit the model."""
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= config.max_seq or tokens.shape[0] < 1:
        raise ModelError(
            f"calibration must be clips of 1..{config.max_seq} tokens (clips, positions), "
            f"not of shape {tuple(tokens.shape)}"
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

    Residual branches shrink with the depth, queries and keys give logits of a few units, and gains, channels
    and layers differ in size, as in trained models.
    """
    rng = np.random.default_rng(seed)
    spread = {
        "query": 1.5,
        "key": 1.5,
        "head": 3.0,
        "output": (2 * config.layers) ** -0.5,
        "down": (2 * config.layers) ** -0.5,
    }
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
