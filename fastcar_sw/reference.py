"""Float reference of the decoder: what the model means before any quantization.

`Decoder` is the module that is trained; its parameters carry the names of Hugging Face's LLaMA.
How it decodes token by token, with replay, is in `replay_reference.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastcar_hw.config import ModelConfig

__all__ = ["Attention", "Decoder", "Layer", "Mlp", "RMSNorm", "rope_tables", "rotate"]


def rope_tables(config: ModelConfig, positions: int | None = None) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 (positions, head_dim), of the half-split rotary convention.

    Parameters
    ----------
    config
        Shapes and the base of the frequencies.
    positions
        How many; those of the longest video when missing.
    """
    rate = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angles = torch.arange(positions or config.max_seq, dtype=torch.float64)[:, None] * rate
    angles = torch.cat((angles, angles), -1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys (..., positions, head_dim) by the tables of their positions."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain.

    Parameters
    ----------
    width, eps
        Values of a vector; what is added to their mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., width)."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Causal attention with rotary positions and, with fewer key heads, grouped queries.

    Parameters
    ----------
    config
        Shapes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden, c.q_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_dim, bias=False)
        self.o_proj = nn.Linear(c.q_dim, c.hidden, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (batch, heads, positions, head_dim), keys and values (kv_heads), not yet rotated."""
        q, k, v = (
            f(x).unflatten(-1, (count, self.head_dim)).transpose(1, 2)
            for f, count in (
                (self.q_proj, self.heads),
                (self.k_proj, self.kv_heads),
                (self.v_proj, self.kv_heads),
            )
        )
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention's output before `o_proj`, (batch, positions, heads * head_dim).

        Parameters
        ----------
        q, k, v
            As of `project`, queries and keys rotated; there may be more keys than queries.
        mask
            bool (positions, keys), True = attends; causal when missing.
        """
        group = self.heads // self.kv_heads
        if group > 1:
            k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within a sequence, (batch, positions, hidden)."""
        q, k, v = self.project(x)
        return self.o_proj(self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v))


class Mlp(nn.Module):
    """SwiGLU.

    Parameters
    ----------
    config
        Shapes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (..., hidden)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream.

    Parameters
    ----------
    config
        Shapes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Compute (batch, positions, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    """Everything but the head, under the name that Hugging Face gives it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        if config.frame_embedding:
            self.frame_embed = nn.Embedding(config.tokens_per_frame, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)


class Decoder(nn.Module):
    """LLaMA-style decoder of video tokens.

    Parameters
    ----------
    config
        Shapes.
    tied
        Use the token embedding as the head, too.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, *, tied: bool = False) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    @classmethod
    def from_state(cls, config: ModelConfig, state: Mapping[str, Tensor]) -> Decoder:
        """Return the decoder of float tensors by name (see `model.py`), ready to evaluate."""
        decoder = cls(config)
        decoder.load_state_dict({name: state[name].float() for name in decoder.state_dict()})
        return decoder.eval()

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> None:
        """Draw new weights; branches of the residual stream shrink with the depth."""
        generator = torch.Generator() if seed is None else torch.Generator().manual_seed(seed)
        if seed is None:
            generator.seed()
        depth = math.sqrt(2 * self.config.layers)
        for name, p in self.named_parameters():
            if p.ndim < 2:
                p.fill_(1.0)
                continue
            std = 0.02 if "embed" in name or "lm_head" in name else 1 / math.sqrt(p.shape[1]) / 2
            std /= depth if "o_proj" in name or "down_proj" in name else 1
            p.normal_(0, std, generator=generator)

    @property
    def layers(self) -> list[Layer]:
        """The decoder layers, in order."""
        return cast("list[Layer]", list(self.model.layers))

    def embed(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Return the embedding, (batch, positions, hidden), of tokens at the positions from ``first`` on."""
        x = self.model.embed_tokens(tokens)
        if self.config.frame_embedding:
            places = torch.arange(first, first + tokens.shape[-1], device=tokens.device)
            x = x + self.model.frame_embed(places % self.config.tokens_per_frame)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits, (..., vocab), of the residual stream."""
        return self.lm_head(self.model.norm(x))

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute a whole sequence, as training needs it.

        Parameters
        ----------
        tokens
            int64 (batch, positions).

        Returns
        -------
        Tensor
            Logits (batch, positions, vocab); those of position p are for token p + 1.
        """
        x = self.embed(tokens)
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.logits(x)
