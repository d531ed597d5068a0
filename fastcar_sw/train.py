"""Training of small video models on a CPU: what is behind ``fastcar train``.

Matrices of the decoder layers are trained by Muon, everything else by AdamW; the learning rate rises, stays,
and falls to zero.  Everything that is random follows from one seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fastcar_hw.config import ModelConfig

from .model import VideoModel, save_model
from .muon import make_muon
from .quality import copy_accuracy, teacher_forced
from .reference import Decoder
from .video.clips import ClipSource, TrafficClips, VideoClips
from .video.io import read_video
from .video.metrics import psnr
from .video.tokenizer import fit_kmeans

__all__ = ["TrainError", "TrainOptions", "TrainProgress", "TrainResult", "train"]

#: Steps of the rise, and share of the steps that the fall takes.
_RISE = 30
_FALL = 0.5
_CLIP_NORM = 1.0
#: Clips that the final figures are measured on.
_HELD_OUT = 64


class TrainError(ValueError):
    """An option of the training broke a rule; the message names field, value and rule."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is trained, on what, and how.

    Parameters
    ----------
    output
        File of the model.
    videos
        Videos to learn from (see `read_video`); without any, procedural traffic.
    name
        Name of the model.
    seed
        Of weights, clips and codebook.
    steps, batch
        Optimizer steps; clips of a step.
    frames, size
        Frames of a clip; height and width in pixels, multiples of ``patch``.
    patch, vocab
        Side of a patch in pixels; entries of the codebook.
    stride
        Distance of neighbouring frames of a clip in frames of the video.
    hidden, layers, heads, kv_heads, ffn
        Shapes of the decoder; a head has ``hidden / heads`` values.
    muon_rate, adam_rate, weight_decay
        Learning rates, and decay of the matrices that Muon trains.
    first_frame_weight
        Weight of the loss of the first frame, which nobody can foresee.
    threads
        Threads of PyTorch; its own choice when missing.
    log_every
        Steps between two reports.

    Raises
    ------
    TrainError
        When a field breaks its rule.
    """

    output: Path
    videos: tuple[Path, ...] = ()
    name: str = "traffic"
    seed: int = 0
    steps: int = 3000
    batch: int = 8
    frames: int = 8
    size: tuple[int, int] = (64, 64)
    patch: int = 8
    vocab: int = 256
    stride: int = 1
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 352
    muon_rate: float = 0.02
    adam_rate: float = 0.004
    weight_decay: float = 0.1
    first_frame_weight: float = 0.3
    threads: int | None = None
    log_every: int = 50

    def __post_init__(self) -> None:
        whole = {
            "seed": 0, "steps": 1, "batch": 1, "frames": 2, "patch": 1, "vocab": 2, "stride": 1, "hidden": 2,
            "layers": 1, "heads": 1, "kv_heads": 1, "ffn": 2, "log_every": 1,
        }  # fmt: skip
        for name, low in whole.items():
            value = getattr(self, name)
            _require(type(value) is int and value >= low, name, value, f"an integer of at least {low}")
        for name in ("muon_rate", "adam_rate", "weight_decay", "first_frame_weight"):
            value = getattr(self, name)
            ok = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
            _require(ok, name, value, "a number of at least 0")
        _require(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1")
        _require(self.hidden % self.heads == 0, "hidden", self.hidden, f"a multiple of heads={self.heads}")
        ok = len(self.size) == 2 and all(v >= self.patch and v % self.patch == 0 for v in self.size)
        _require(ok, "size", self.size, f"height and width in multiples of patch={self.patch}")
        if not self.videos:
            _require(self.size == (64, 64), "size", self.size, "(64, 64) for traffic")
            _require(self.patch == 8, "patch", self.patch, "8 for traffic")
            _require(self.stride == 1, "stride", self.stride, "1 for traffic")

    @property
    def config(self) -> ModelConfig:
        """Shapes of the model."""
        grid = (self.size[0] // self.patch, self.size[1] // self.patch)
        return ModelConfig(
            name=self.name, vocab=self.vocab, hidden=self.hidden, layers=self.layers, heads=self.heads,
            kv_heads=self.kv_heads, head_dim=self.hidden // self.heads, ffn=self.ffn,
            tokens_per_frame=grid[0] * grid[1], frames=self.frames, frame_embedding=True,
        )  # fmt: skip


@dataclass(frozen=True)
class TrainProgress:
    """A report from a running training.

    Attributes
    ----------
    phase
        ``read``, ``codebook``, ``train`` or ``evaluate``.
    done, total
        Steps of the phase.
    loss
        Cross-entropy of the batch in nats a token (weighted as in `TrainOptions`), in the phase ``train``.
    seconds
        Since the training was started.
    accuracy
        Share of the batch's tokens that had the largest logit, in the phase ``train``.
    """

    phase: str
    done: int
    total: int
    loss: float | None = None
    seconds: float = 0.0
    accuracy: float | None = None


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a training gave.

    Attributes
    ----------
    path
        File of the model.
    model
        The same, in memory.
    history
        (step, loss) of every report.
    metrics
        Held-out clips, frames after the second: ``cross_entropy`` (nats a token), ``accuracy``,
        ``copy_accuracy`` (of repeating the frame before), ``codebook_psnr`` (dB, infinite when lossless),
        ``clips``, ``parameters``.
    seconds
        Duration.
    """

    path: Path
    model: VideoModel
    history: tuple[tuple[int, float], ...]
    metrics: dict[str, float]
    seconds: float = field(default=0.0)


def train(options: TrainOptions, progress: Callable[[TrainProgress], object] | None = None) -> TrainResult:
    """Train a model and write it.

    Parameters
    ----------
    options
        What to do.
    progress
        Called now and then; what it raises ends the training, and no file is written.

    Raises
    ------
    TrainError, ClipError, VideoError, TokenizerError, ModelError
        When the options, a video or the output file make it impossible.
    """
    started = time.monotonic()

    def report(
        phase: str, done: int, total: int, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        if progress is not None:
            progress(TrainProgress(phase, done, total, loss, time.monotonic() - started, accuracy))

    config = options.config
    with _threads(options.threads):
        source, codebook_psnr = _source(options, report)
        decoder = Decoder(config)
        decoder.reset(options.seed)
        history = tuple(_optimize(decoder, source, options, report))
        decoder.eval()
        report("evaluate", 0, 1)
        metrics = _evaluate(decoder, source) | {"codebook_psnr": codebook_psnr}
        report("evaluate", 1, 1)
    seconds = time.monotonic() - started
    notes: dict[str, object] = {
        "data": [path.name for path in options.videos] or "procedural traffic",
        "seed": options.seed, "steps": options.steps, "batch": options.batch,
        "metrics": {k: v for k, v in metrics.items() if math.isfinite(v)},
    }  # fmt: skip
    state = {name: value.detach() for name, value in decoder.state_dict().items()}
    model = VideoModel(config=config, state=state, tokenizer=source.tokenizer, training=notes)
    save_model(options.output, model)
    return TrainResult(options.output, model, history, metrics, seconds)


def _source(options: TrainOptions, report: Callable[..., None]) -> tuple[ClipSource, float]:
    """Return the clips, and the PSNR of the codebook in dB."""
    if not options.videos:
        return TrafficClips(options.frames, options.seed, options.vocab), math.inf
    videos = []
    for i, path in enumerate(options.videos):
        report("read", i, len(options.videos))
        videos.append(read_video(path, size=options.size))
    held = [max(1, round(len(v) * VideoClips.HELD_OUT_SHARE)) for v in videos]
    seen = np.concatenate([v[: max(1, len(v) - h)] for v, h in zip(videos, held, strict=True)])
    tokenizer = fit_kmeans(
        seen, options.patch, options.vocab, seed=options.seed,
        progress=lambda done, total: report("codebook", done, total),
    )  # fmt: skip
    source = VideoClips(videos, tokenizer, options.frames, options.seed, options.stride)
    tails = np.concatenate([v[-h:] for v, h in zip(videos, held, strict=True)])
    return source, psnr(tokenizer.decode(tokenizer.encode(tails)), tails)


def _optimize(
    decoder: Decoder, source: ClipSource, options: TrainOptions, report: Callable[..., None]
) -> Iterator[tuple[int, float]]:
    """Train in place; yield (step, loss) of every report."""
    config = decoder.config
    matrices = [p for name, p in decoder.named_parameters() if p.ndim == 2 and ".layers." in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in decoder.parameters() if id(p) not in chosen]
    optimizers = [
        make_muon(matrices, options.muon_rate, options.weight_decay),
        torch.optim.AdamW(others, lr=options.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rates = [[group["lr"] for group in o.param_groups] for o in optimizers]
    weights = torch.ones(config.max_seq - 1)
    weights[: config.tokens_per_frame - 1] = options.first_frame_weight
    weights /= weights.mean()
    decoder.train()
    for step in range(options.steps):
        factor = _schedule(step, options.steps)
        for optimizer, base in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
        tokens = torch.from_numpy(source.train(options.batch, step))
        logits = decoder(tokens[:, :-1])
        loss = _loss(logits, tokens[:, 1:], weights)
        decoder.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, _CLIP_NORM)
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise TrainError(
                    f"loss must stay finite, but is {value} at step {step + 1}; lower the learning rates"
                )
            right = float((logits.detach().argmax(-1) == tokens[:, 1:]).double().mean())
            report("train", step + 1, options.steps, value, right)
            yield step + 1, value


def _loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the cross-entropy, nats a token."""
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (each.view(targets.shape) * weights).mean()


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rates at a step: up, level, down to almost zero."""
    return min(1.0, (step + 1) / _RISE, (steps - step) / (_FALL * steps))


@torch.no_grad()
def _evaluate(decoder: Decoder, source: ClipSource) -> dict[str, float]:
    """Measure a model on held-out clips."""
    tokens = torch.from_numpy(source.held_out(_HELD_OUT))
    n, first = decoder.config.tokens_per_frame, min(2, decoder.config.frames - 1)
    logits = torch.cat([decoder(part[:, :-1]) for part in tokens.split(8)])
    found = teacher_forced(logits.numpy(), tokens.numpy(), n, first_frame=first)
    return {
        "cross_entropy": found.cross_entropy,
        "accuracy": found.accuracy,
        "copy_accuracy": copy_accuracy(tokens.numpy(), n, first_frame=first),
        "clips": float(len(tokens)),
        "parameters": float(sum(p.numel() for p in decoder.parameters())),
    }


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use a number of threads for a while."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise TrainError(f"{name} must be {rule}, not {value!r}")
