"""How good a model, an engine or a replay policy is: figures from logits and tokens, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from .reference import Decoder
from .replay_reference import generate, teacher_forced_run
from .video.metrics import change_rate, exact_share

__all__ = [
    "Motion",
    "TeacherForced",
    "copy_accuracy",
    "kl_divergence",
    "motion",
    "reference_summary",
    "teacher_forced",
]

#: Clips that are decoded side by side: bounds the memory of the caches.
_LANES = 16


@dataclass(frozen=True)
class TeacherForced:
    """Quality of predictions when the true tokens come before them.

    Attributes
    ----------
    cross_entropy
        Nats a token.
    accuracy
        Share of tokens that had the largest logit.
    tokens
        Tokens that count.
    """

    cross_entropy: float
    accuracy: float
    tokens: int


@dataclass(frozen=True)
class Motion:
    """How much videos change from frame to frame.

    Attributes
    ----------
    sampled, real
        Share of tokens that differ from the frame before.
    """

    sampled: float
    real: float

    @property
    def relative(self) -> float:
        """``sampled / real - 1``: 0 is perfect, -1 is a standing picture."""
        return self.sampled / self.real - 1.0 if self.real else float("inf")


def _window(positions: int, tokens_per_frame: int, first_frame: int) -> int:
    start = first_frame * tokens_per_frame
    if not 1 <= start < positions:
        raise ValueError(
            f"first_frame must leave tokens to predict in {positions} positions "
            f"of {tokens_per_frame} a frame, not {first_frame}"
        )
    return start


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def teacher_forced(
    logits: np.ndarray, tokens: np.ndarray, tokens_per_frame: int, first_frame: int = 2, scale: float = 1.0
) -> TeacherForced:
    """Judge logits by the tokens that really followed.

    Parameters
    ----------
    logits
        (clips, positions - 1 or positions, vocab): those of position p are for token p + 1; float, or the
        integers of the twin.
    tokens
        int64 (clips, positions).
    tokens_per_frame
        N.
    first_frame
        First frame that counts: from the third on (2), motion can be foreseen.
    scale
        Factor that makes natural logarithms of the logits: ``2.0 ** -logit_fraction`` for the twin.
    """
    logits, tokens = np.asarray(logits), np.asarray(tokens)
    clips, positions = tokens.shape
    if logits.ndim != 3 or logits.shape[0] != clips or logits.shape[1] not in (positions - 1, positions):
        raise ValueError(
            f"logits must have the shape ({clips}, {positions - 1} or {positions}, vocab), not {logits.shape}"
        )
    start = _window(positions, tokens_per_frame, first_frame)
    chosen, targets = logits[:, start - 1 : positions - 1], tokens[:, start:]
    right = int((chosen.argmax(-1) == targets).sum())
    # Clip by clip, since float64 copies of all logits would be large.
    total = 0.0
    for rows, wanted in zip(chosen, targets, strict=True):
        logs = _log_softmax(rows * np.float64(scale))
        total -= float(np.take_along_axis(logs, wanted[:, None], -1).sum())
    return TeacherForced(total / targets.size, right / targets.size, targets.size)


def kl_divergence(
    logits: np.ndarray, reference: np.ndarray, scale: float = 1.0, reference_scale: float = 1.0
) -> float:
    """Return the mean KL divergence, nats a position, of predictions from those of a reference.

    Parameters
    ----------
    logits, reference
        (..., vocab), the same shape.
    scale, reference_scale
        Factors that make natural logarithms of them.
    """
    got = _log_softmax(np.asarray(logits) * np.float64(scale))
    want = _log_softmax(np.asarray(reference) * np.float64(reference_scale))
    return float((np.exp(want) * (want - got)).sum(-1).mean())


def copy_accuracy(tokens: np.ndarray, tokens_per_frame: int, first_frame: int = 2) -> float:
    """Return the accuracy of repeating the frame before: the baseline that a video model must beat.

    Parameters
    ----------
    tokens
        int64 (clips, positions).
    tokens_per_frame, first_frame
        As of `teacher_forced`.
    """
    tokens = np.asarray(tokens)
    start = _window(tokens.shape[1], tokens_per_frame, max(1, first_frame))
    return float((tokens[:, start:] == tokens[:, start - tokens_per_frame : -tokens_per_frame]).mean())


def motion(sampled: np.ndarray, real: np.ndarray, tokens_per_frame: int, first_frame: int = 2) -> Motion:
    """Compare how much sampled and real videos move.

    Parameters
    ----------
    sampled, real
        int64 (clips, positions), whole frames.
    tokens_per_frame
        N.
    first_frame
        First frame that was sampled; it is compared with the one before.
    """
    rates = [
        change_rate(np.asarray(t).reshape(len(t), -1, tokens_per_frame), first_frame=first_frame)
        for t in (sampled, real)
    ]
    return Motion(*rates)


def reference_summary(
    decoder: Decoder,
    clips: np.ndarray,
    *,
    rows: int,
    first_frame: int = 2,
    topk: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
    **policy: object,
) -> dict[str, float]:
    """Measure the float reference on held-out clips: the figures of a model card.

    Parameters
    ----------
    decoder
        The model.
    clips
        int64 (clips, positions), whole frames.
    rows
        Rows of patches of a frame.
    first_frame
        First frame that counts, and that is generated.
    topk, temperature, seed
        Of the sampled videos.
    progress
        Called with (clips done, clips in all).
    policy
        Keywords of `ReplayDecoder`, for the quality at a replay ratio.

    Returns
    -------
    dict
        Teacher-forced: ``cross_entropy`` (nats a token), ``accuracy``, ``copy_accuracy``, ``replay_ratio``
        (over eligible MLPs).  Generated: ``change_rate_real``, ``change_rate_greedy``,
        ``change_rate_sampled``, and the share of moving rows that are right in all frames,
        ``exact_rows_greedy`` and ``exact_rows_sampled``.
    """
    n, positions = decoder.config.tokens_per_frame, clips.shape[1]
    prompt = first_frame * n
    logits, greedy, sampled, ratios = [], [], [], []
    for start in range(0, len(clips), _LANES):
        part = torch.from_numpy(clips[start : start + _LANES])
        run = teacher_forced_run(decoder, part, prompt, **policy)
        logits.append(run.logits.numpy())
        ratios.append(run.replay_ratio)
        common = {"seed": seed + start, **policy}
        greedy.append(generate(decoder, part[:, :prompt], positions, **common).tokens.numpy())  # type: ignore[arg-type]
        drawn = generate(decoder, part[:, :prompt], positions, topk=topk, temperature=temperature, **common)  # type: ignore[arg-type]
        sampled.append(drawn.tokens.numpy())
        if progress is not None:
            progress(min(start + _LANES, len(clips)), len(clips))
    forced = teacher_forced(np.concatenate(logits), clips, n, first_frame)
    found = {
        "cross_entropy": forced.cross_entropy,
        "accuracy": forced.accuracy,
        "copy_accuracy": copy_accuracy(clips, n, first_frame),
        "replay_ratio": float(np.mean(ratios)),
    }
    shape = (len(clips), -1, n)
    for name, parts in (("greedy", greedy), ("sampled", sampled)):
        made = np.concatenate(parts)
        moved = motion(made, clips, n, first_frame)
        found |= {"change_rate_real": moved.real, f"change_rate_{name}": moved.sampled}
        found[f"exact_rows_{name}"] = exact_share(
            made.reshape(shape), clips.reshape(shape), rows, first_frame
        )
    return found
