"""Float reference of decoding with replay: what twin and hardware do in integers, in plain PyTorch.

A run is decoded in pieces of one token, or of any part of a frame: within a frame the order does not matter,
since the replay slot of a place was filled in an earlier frame.  So teacher forcing takes a frame at once and
still chains the replay caches exactly as token by token decoding does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastcar_hw.config import ModelConfig

from .gates import GateError, GateSettings
from .reference import Decoder, Layer, rotate

__all__ = ["ReferenceRun", "ReplayDecoder", "generate", "sample", "teacher_forced_run"]


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """What a run gave; axes are ordered as in the results of the twin.

    Attributes
    ----------
    tokens : Tensor
        int64 (lanes, total).
    logits : Tensor
        float32 (lanes, positions, vocab); those of position p are for token p + 1.
    compute : Tensor
        bool (positions, layers, lanes): who computed its MLP.
    eligible : Tensor
        bool (positions,): where replay was allowed.
    tas : Tensor
        float32 (positions, layers, lanes): temporal attention scores in natural-logarithm units, NaN where
        there is no aligned token.
    """

    tokens: Tensor
    logits: Tensor
    compute: Tensor
    eligible: Tensor
    tas: Tensor

    @property
    def replay_ratio(self) -> float:
        """Replayed MLPs over eligible ones; 0 without any."""
        chosen = self.compute[self.eligible]
        return float((~chosen).double().mean()) if chosen.numel() else 0.0

    @property
    def total_replay_ratio(self) -> float:
        """Replayed MLPs over all of them."""
        return float((~self.compute).double().mean()) if self.compute.numel() else 0.0


class ReplayDecoder:
    """State of a run: caches, replay slots, decisions so far.

    Parameters
    ----------
    decoder
        The model.
    lanes
        Sequences side by side; they do not influence one another.
    prompt
        Given positions, at least 1: what the eligibility of later ones counts from.
    gate
        ``never``, ``always``, ``tas`` or ``forced``; or settings, which then also give the next four.
    threshold
        In natural-logarithm units (those of attention logits), one for all layers or one a layer.
    definition
        ``paper``: rotated query, score >= threshold; ``reference-code``: query before the rotation,
        score > threshold.
    warmup_frames
        Frames from the first generated one on that compute.
    head_weights
        Integer weight of each head in the score; one each when missing.
    forced
        bool (positions, layers, lanes), True = compute, for the gate ``forced``.
    collect
        Filled with the largest magnitude of every tensor by (name, layer); names are ``residual`` and
        ``logits`` (layer 0), ``query, key, value`` (before the rotation), ``gate, up, silu, hidden``.

    Raises
    ------
    GateError
        When a setting breaks its rule.
    """

    def __init__(
        self,
        decoder: Decoder,
        lanes: int,
        prompt: int,
        *,
        gate: str | GateSettings = "never",
        threshold: float | tuple[float, ...] = 0.0,
        definition: str = "paper",
        warmup_frames: int = 1,
        head_weights: tuple[int, ...] | None = None,
        forced: Tensor | None = None,
        collect: dict[tuple[str, int], float] | None = None,
    ) -> None:
        c = decoder.config
        if isinstance(gate, str):
            gate = GateSettings(
                kind=gate,
                definition=definition,
                threshold=threshold,
                head_weights=head_weights,
                warmup_frames=warmup_frames,
            )
        if not 1 <= prompt <= c.max_seq:
            raise GateError(f"prompt must be in 1..{c.max_seq}, not {prompt}")
        if (gate.kind == "forced") != (forced is not None):
            need = "given" if forced is None else "missing"
            raise GateError(f"forced decisions must be {need} with the gate {gate.kind!r}")
        if forced is not None and (forced.ndim != 3 or forced.shape[1:] != (c.layers, lanes)):
            raise GateError(
                f"forced decisions must have the shape (positions, {c.layers}, {lanes}), "
                f"not {tuple(forced.shape)}"
            )
        self.decoder, self.lanes, self.prompt, self.gate = decoder, lanes, prompt, gate
        self.position = 0
        self._thresholds = _thresholds(gate, c)
        weights = torch.tensor(gate.integer_weights(c), dtype=torch.float32)
        self._head_weights = weights / weights.sum()
        self._forced = None if forced is None else forced.bool()
        self._collect = collect
        self._keys = torch.zeros(c.layers, lanes, c.kv_heads, c.max_seq, c.head_dim)
        self._values = torch.zeros_like(self._keys)
        self._slots = torch.zeros(c.layers, lanes, c.tokens_per_frame, c.hidden)
        self._compute: list[Tensor] = []
        self._scores: list[Tensor] = []

    @property
    def compute(self) -> Tensor:
        """Who computed its MLP so far, bool (positions, layers, lanes)."""
        return torch.cat(self._compute)

    @property
    def tas(self) -> Tensor:
        """Temporal attention scores so far, float32 (positions, layers, lanes)."""
        return torch.cat(self._scores)

    def eligible(self, position: int) -> bool:
        """Return whether lanes may replay at a position."""
        return self.gate.eligible(self.decoder.config, position, self.prompt)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Decode the next positions.

        Parameters
        ----------
        tokens
            int64 (lanes, count), or (lanes,) for one position; the positions must be of one frame.

        Returns
        -------
        Tensor
            Logits, float32 (lanes, count, vocab), or (lanes, vocab) for one position.
        """
        single = tokens.ndim == 1
        tokens = tokens[:, None] if single else tokens
        c, first = self.decoder.config, self.position
        lanes, count = tokens.shape
        if lanes != self.lanes or not 1 <= count <= c.tokens_per_frame - first % c.tokens_per_frame:
            raise ValueError(
                f"tokens must be of {self.lanes} lanes and inside one frame, "
                f"not {tuple(tokens.shape)} from position {first} on"
            )
        if first + count > c.max_seq:
            raise ValueError(f"position must be below {c.max_seq}, not {first + count - 1}")
        if self._forced is not None and first + count > len(self._forced):
            raise GateError(
                f"forced decisions must cover position {first + count - 1}, not {len(self._forced)}"
            )
        allowed = torch.tensor([self.eligible(p) for p in range(first, first + count)])
        compute = torch.ones(count, c.layers, lanes, dtype=torch.bool)
        scores = torch.full((count, c.layers, lanes), math.nan)
        x = self._note("residual", 0, self.decoder.embed(tokens, first))
        for i, layer in enumerate(self.decoder.layers):
            x, compute[:, i], scores[:, i] = self._layer(layer, i, x, allowed)
        self._compute.append(compute)
        self._scores.append(scores)
        self.position += count
        logits = self._note("logits", 0, self.decoder.logits(x))
        return logits[:, 0] if single else logits

    def _note(self, name: str, layer: int, x: Tensor) -> Tensor:
        if self._collect is not None:
            self._collect[name, layer] = max(self._collect.get((name, layer), 0.0), float(x.abs().max()))
        return x

    def _layer(self, layer: Layer, i: int, x: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the residual stream, (lanes, count, hidden), decisions and scores, (count, lanes)."""
        c, first, count = self.decoder.config, self.position, x.shape[1]
        last = first + count
        attention = layer.self_attn
        raw, k, v = attention.project(layer.input_layernorm(x))
        for name, value in (("query", raw), ("key", k), ("value", v)):
            self._note(name, i, value)
        cos, sin = self.decoder.cos[first:last], self.decoder.sin[first:last]
        q = rotate(raw, cos, sin)
        self._keys[i, :, :, first:last] = rotate(k, cos, sin)
        self._values[i, :, :, first:last] = v
        places = torch.arange(last)
        mask = places <= torch.arange(first, last)[:, None]
        out = attention.attend(q, self._keys[i, :, :, :last], self._values[i, :, :, :last], mask)
        x = self._note("residual", 0, x + self._note("residual", 0, attention.o_proj(out)))

        scores = self._tas(raw if self.gate.definition == "reference-code" else q, i)
        compute = self._decide(scores, allowed, i)
        y = self._mlp(layer, i, x)
        slots = [p % c.tokens_per_frame for p in range(first, last)]
        # The slot takes what is added, be it computed or replayed: a replay leaves it as it is.
        y = torch.where(compute.T[..., None], y, self._slots[i][:, slots])
        self._slots[i][:, slots] = y
        return self._note("residual", 0, x + y), compute, scores

    def _tas(self, q: Tensor, i: int) -> Tensor:
        """Return the score of the aligned keys, (count, lanes); NaN where there are none."""
        c, first, count = self.decoder.config, self.position, q.shape[2]
        scores = torch.full((count, self.lanes), math.nan)
        start = first - c.tokens_per_frame
        if start >= 0:
            keys = self._keys[i, :, :, start : start + count].repeat_interleave(c.heads // c.kv_heads, 1)
            each = (q * keys).sum(-1) / math.sqrt(c.head_dim)  # (lanes, heads, count)
            scores = torch.einsum("lhp,h->pl", each, self._head_weights)
        return scores

    def _decide(self, scores: Tensor, allowed: Tensor, i: int) -> Tensor:
        """Return who computes, bool (count, lanes)."""
        kind = self.gate.kind
        replays = torch.zeros_like(scores, dtype=torch.bool)
        if kind == "always":
            replays[:] = True
        elif kind == "forced" and self._forced is not None:
            replays = ~self._forced[self.position : self.position + len(scores), i]
        elif kind == "tas":
            limit = self._thresholds[i]
            replays = scores > limit if self.gate.definition == "reference-code" else scores >= limit
        return ~(replays & allowed[:, None])

    def _mlp(self, layer: Layer, i: int, x: Tensor) -> Tensor:
        mlp, y = layer.mlp, layer.post_attention_layernorm(x)
        gate, up = self._note("gate", i, mlp.gate_proj(y)), self._note("up", i, mlp.up_proj(y))
        hidden = self._note("hidden", i, self._note("silu", i, F.silu(gate)) * up)
        return self._note("residual", 0, mlp.down_proj(hidden))


def _thresholds(gate: GateSettings, config: ModelConfig) -> tuple[float, ...]:
    values = gate.threshold if isinstance(gate.threshold, tuple) else (gate.threshold,) * config.layers
    if len(values) != config.layers:
        raise GateError(f"number of thresholds must be layers={config.layers}, not {len(values)}")
    return values


def _prefill(state: ReplayDecoder, tokens: Tensor) -> Tensor:
    """Decode given tokens frame by frame from the present position on; return their logits."""
    n, done, logits = state.decoder.config.tokens_per_frame, 0, []
    while done < tokens.shape[1]:
        count = min(tokens.shape[1] - done, n - state.position % n)
        logits.append(state.step(tokens[:, done : done + count]))
        done += count
    return torch.cat(logits, 1)


def _result(state: ReplayDecoder, tokens: Tensor, logits: Tensor) -> ReferenceRun:
    eligible = torch.tensor([state.eligible(p) for p in range(state.position)], dtype=torch.bool)
    return ReferenceRun(tokens, logits, state.compute, eligible, state.tas)


def teacher_forced_run(decoder: Decoder, tokens: Tensor, prompt: int, **policy: object) -> ReferenceRun:
    """Run a policy over true tokens, with chained replay caches.

    Parameters
    ----------
    decoder
        The model.
    tokens
        int64 (lanes, total): the last one is only a target.
    prompt
        Positions that count as given.
    policy
        Keywords of `ReplayDecoder`.
    """
    state = ReplayDecoder(decoder, tokens.shape[0], prompt, **policy)  # type: ignore[arg-type]
    return _result(state, tokens, _prefill(state, tokens[:, :-1]))


def sample(logits: Tensor, topk: int, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Return a token of each row of logits, int64 (lanes,).

    Parameters
    ----------
    logits
        float (lanes, vocab).
    topk
        Candidates; 0 takes the largest logit, the first of equal ones.
    temperature
        Divides the logits.
    generator
        Of the random numbers.
    """
    if topk == 0:
        # argmax of PyTorch does not promise the first index.
        return (logits == logits.max(-1, keepdim=True).values).int().argmax(-1)
    best, index = logits.topk(min(topk, logits.shape[-1]), -1)
    chosen = torch.multinomial((best / temperature).softmax(-1), 1, generator=generator)
    return index.gather(-1, chosen)[:, 0]


def generate(
    decoder: Decoder,
    prompt: Tensor,
    total: int,
    *,
    topk: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **policy: object,
) -> ReferenceRun:
    """Generate tokens.

    Parameters
    ----------
    decoder
        The model.
    prompt
        int64 (lanes, given positions), at least one position.
    total
        Positions of the whole video, prompt included.
    topk, temperature, seed
        Choice of tokens, see `sample`; its random numbers are not those of the hardware.
    progress
        Called with each position after it is done.
    policy
        Keywords of `ReplayDecoder`.
    """
    lanes, given = prompt.shape
    if given < 1 or not max(2, given) <= total <= decoder.config.max_seq:
        raise ValueError(f"total must be in {max(2, given)}..{decoder.config.max_seq}, not {total}")
    state = ReplayDecoder(decoder, lanes, given, **policy)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(lanes, total, dtype=torch.int64)
    tokens[:, :given] = prompt
    logits = [_prefill(state, prompt[:, : min(given, total - 1)])]
    while state.position < total - 1:
        tokens[:, state.position] = sample(logits[-1][:, -1], topk, temperature, generator)
        logits.append(state.step(tokens[:, state.position])[:, None])
        if progress is not None:
            progress(state.position - 1)
    if given < total:
        tokens[:, -1] = sample(logits[-1][:, -1], topk, temperature, generator)
    return _result(state, tokens, torch.cat(logits, 1))
