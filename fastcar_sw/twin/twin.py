"""The twin: whole videos, with the interface of the hardware's driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..gates import GateError, GateSettings
from ..model import ModelError
from ..quantized import QuantizedModel
from ..sampling import SamplingError, SamplingSettings
from .decoder import Decoder, LayerState
from .linear import Linear, LinearFactory
from .replay import Gate
from .sampler import Sampler
from .trace import NO_TRACE, Trace, TraceEntry

__all__ = ["GenerationResult", "Twin"]


@dataclass(frozen=True, eq=False)
class GenerationResult:
    """What a run gave; all tensors on the CPU.

    Attributes
    ----------
    tokens : Tensor
        int64 (lanes, total), the prompt first.
    logits : Tensor
        int32 (positions with a head, lanes, vocab).
    logit_positions : Tensor
        int64: the positions of ``logits``; the logits of position p are for token p + 1.
    compute : Tensor
        bool (positions, layers, lanes): who computed its MLP.
    eligible : Tensor
        bool (positions,): where replay was allowed.
    tas : Tensor
        int32 (positions, layers, lanes): temporal attention scores, 0 where the gate did not need them.
    trace : Trace or None
        Every intermediate integer, when it was asked for.
    """

    tokens: Tensor
    logits: Tensor
    logit_positions: Tensor
    compute: Tensor
    eligible: Tensor
    tas: Tensor
    trace: Trace | None

    @property
    def replay_ratio(self) -> float:
        """Replayed MLPs over eligible ones; 0 without any."""
        chosen = self.compute[self.eligible]
        return float((~chosen).double().mean()) if chosen.numel() else 0.0

    @property
    def total_replay_ratio(self) -> float:
        """Replayed MLPs over all of them."""
        return float((~self.compute).double().mean()) if self.compute.numel() else 0.0


class Twin:
    """Bit-exact model of the accelerator in PyTorch.

    Parameters
    ----------
    model
        The integers.
    lanes
        Sequences that are decoded side by side; they do not influence one another.
    device
        Any device of PyTorch with exact float32 and int64 arithmetic.
    linear
        Makes the matrix products; a board can do them in place of PyTorch.

    Raises
    ------
    ModelError
        When ``lanes`` is out of range.
    """

    def __init__(self, model: QuantizedModel, lanes: int, *, device: torch.device | str = "cpu",
                 linear: LinearFactory = Linear) -> None:  # fmt: skip
        if type(lanes) is not int or not 1 <= lanes <= 32:
            raise ModelError(f"lanes must be an integer in 1..32, not {lanes!r}")
        self.model, self.lanes = model, lanes
        self._device = torch.device(device)
        self._decoder = Decoder(model, device, linear)

    @torch.inference_mode()
    def generate(
        self,
        prompt: Tensor,
        total: int,
        gate: GateSettings | None = None,
        sampling: SamplingSettings | None = None,
        *,
        trace: bool | Callable[[TraceEntry], object] = False,
        forced: Tensor | None = None,
        head_all: bool = False,
        teacher: Tensor | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> GenerationResult:
        """Generate tokens.

        Positions 0 to ``total`` - 2 are decoded, since position p gives token p + 1.  The prompt is decoded
        the same way, with its own tokens.

        Parameters
        ----------
        prompt
            int64 (lanes, P), 1 <= P <= ``total``.
        total
            Positions of the whole video, prompt included.
        gate
            Replay policy; ``never`` when missing.
        sampling
            Choice of tokens; greedy when missing.
        trace
            True records every intermediate integer; a function is called with each entry instead.
        forced
            bool (at least ``total`` - 1 positions, layers, lanes), True = compute, for the gate kind
            ``forced``.
        head_all
            Logits for the prompt's positions, too (teacher forcing).  No token is sampled
            there, so the tokens do not change.
        teacher
            int64 (lanes, total): true tokens that follow whatever is sampled, to judge a gate's predictions.
        progress
            Called with each position after it is done.

        Raises
        ------
        ModelError, GateError, SamplingError
            When an argument does not fit the model.
        """
        gate = GateSettings(kind="never") if gate is None else gate
        sampling = SamplingSettings() if sampling is None else sampling
        self._check(prompt, total, sampling, forced)
        if teacher is not None and tuple(teacher.shape) != (self.lanes, total):
            raise ModelError(f"teacher must have the shape ({self.lanes}, {total}), not {tuple(teacher.shape)}")
        c, lanes, given, steps = self.model.config, self.lanes, prompt.shape[1], total - 1
        policy = Gate(gate, c, lanes, given, None if forced is None else forced.bool().cpu(), self._device)
        sampler = Sampler(sampling.registers(self.model.logit_fraction), lanes, self._decoder.functions)
        trace_object = Trace(None if trace is True else trace) if trace else None
        recorder = NO_TRACE if trace_object is None else trace_object
        states = [LayerState(c, lanes, self._device) for _ in range(c.layers)]

        first_head = 0 if head_all else given - 1
        tokens = torch.zeros((lanes, total), dtype=torch.int64)
        tokens[:, :given] = prompt
        logits = torch.zeros((max(0, steps - first_head), lanes, c.vocab), dtype=torch.int32)
        compute = torch.ones((steps, c.layers, lanes), dtype=torch.bool)
        tas = torch.zeros((steps, c.layers, lanes), dtype=torch.int32)
        for position in range(steps):
            x = self._decoder.embed(tokens[:, position].to(self._device), position, recorder)
            for i, state in enumerate(states):
                x, compute[position, i], score = self._decoder.layer(x, position, i, state, policy, recorder)
                if score is not None:
                    tas[position, i] = score.int()
            if position >= first_head:
                row = self._decoder.logits(x, position, recorder)
                logits[position - first_head] = row.int()
                if position + 1 >= given:
                    following = sampler(row)
                    tokens[:, position + 1] = following if teacher is None else teacher[:, position + 1]
            if progress is not None:
                progress(position)
        return GenerationResult(
            tokens=tokens,
            logits=logits,
            logit_positions=torch.arange(first_head, max(first_head, steps)),
            compute=compute,
            eligible=torch.tensor([policy.eligible(p) for p in range(steps)], dtype=torch.bool),
            tas=tas,
            trace=None if trace_object is None or callable(trace) else trace_object,
        )

    def _check(self, prompt: Tensor, total: int, sampling: SamplingSettings, forced: Tensor | None) -> None:
        c = self.model.config
        if type(total) is not int or not 1 <= total <= c.max_seq:
            raise ModelError(f"total must be an integer in 1..{c.max_seq}, not {total!r}")
        if prompt.ndim != 2 or prompt.shape[0] != self.lanes or not 1 <= prompt.shape[1] <= total:
            raise ModelError(
                f"prompt must have the shape (lanes={self.lanes}, 1..total={total}), not {tuple(prompt.shape)}"
            )
        if int(prompt.min()) < 0 or int(prompt.max()) >= c.vocab:
            raise ModelError(f"prompt tokens must be in 0..{c.vocab - 1}, not {int(prompt.min())}..{int(prompt.max())}")
        if sampling.topk > c.vocab:
            raise SamplingError(f"topk must be at most vocab={c.vocab}, not {sampling.topk}")
        if forced is not None and (
            forced.ndim != 3 or forced.shape[0] < total - 1 or forced.shape[1:] != (c.layers, self.lanes)
        ):
            raise GateError(
                f"forced decisions must have the shape (>= {total - 1}, {c.layers}, {self.lanes}), "
                f"not {tuple(forced.shape)}"
            )
