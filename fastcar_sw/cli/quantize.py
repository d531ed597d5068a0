"""``fastcar quantize``: a float model becomes integers, and the loss is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ..model import VideoModel
from ..quality import kl_divergence, teacher_forced
from ..quantize import quantize as make_integers
from ..quantize import random_tokens
from ..quantized import QuantizedModel
from ..replay_reference import teacher_forced_run
from ..twin import Twin
from ..video.clips import ClipSource, TrafficClips
from ..video.io import read_video
from ..video.tokenizer import TokenizerError
from .common import JsonOption, Reporter, SeedOption, UsageError, video_model_of, write_json
from .tables import print_fields, result_console

__all__ = ["quantize"]


def quantize(
    model: Annotated[str, typer.Argument(help="Model file, or the name of a shipped model.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File of the integers (.safetensors).")],
    video: Annotated[
        Path | None, typer.Option("--video", help="Video that calibrates and judges, for a model of one's own.")
    ] = None,
    clips: Annotated[int, typer.Option(min=1, max=32, help="Clips for calibration, and as many to judge.")] = 4,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Quantize a model to 8 bits and compare the twin's predictions with the float reference's.

    The first half of the clips chooses the ranges, the other half judges.  The shipped traffic model has clips of its
    own; any other takes them from --video, or is calibrated on random tokens and not judged.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"--out must be a file with the suffix .safetensors, not {out}")
    if not out.parent.is_dir():
        raise UsageError(f"folder {out.parent} of --out does not exist")
    loaded = video_model_of(model)
    tokens = _clips(loaded, video, 2 * clips, seed)
    with Reporter() as reporter, reporter.task("quantize and judge", 3) as update:
        calibration = random_tokens(loaded.config, seed=seed) if tokens is None else torch.from_numpy(tokens[:clips])
        integers = make_integers(loaded.config, loaded.state, calibration, source=model)
        update(1)
        integers.save(out)
        judged = {} if tokens is None else _judge(loaded, integers, torch.from_numpy(tokens[clips:]), update)
    result = {"file": out, "hash": f"{integers.hash:016x}", "model": loaded.config.to_dict(), "quality": judged}
    write_json(json_file, result)
    console = result_console(json_file)
    print_fields(console, f"{loaded.config.name} in {out}", {"hash": result["hash"], **judged})
    if not judged:
        console.print("not judged: no clips (see --video)")


def _clips(model: VideoModel, video: Path | None, count: int, seed: int) -> np.ndarray | None:
    """Return clips of tokens, or None when there is no source of them."""
    if model.tokenizer is None:
        return None
    if video is None:
        try:
            traffic: ClipSource = TrafficClips(model.config.frames, seed, model.config.vocab)
        except TokenizerError:
            return None  # too few tokens for traffic
        same = np.array_equal(traffic.tokenizer.codebook, model.tokenizer.codebook)
        return traffic.held_out(count) if same else None
    rows, columns = model.tokenizer.grid
    side = model.tokenizer.codebook.shape[1]
    frames = read_video(video, size=(rows * side, columns * side))
    tokens = model.tokenizer.encode(frames).reshape(len(frames), -1)
    spans = len(frames) // model.config.frames
    if spans < count:
        raise UsageError(f"video {video} must have {count * model.config.frames} frames for {count} clips, "
                         f"not {len(frames)}")  # fmt: skip
    return tokens[: spans * model.config.frames].reshape(spans, -1)[:count]


def _judge(model: VideoModel, integers: QuantizedModel, tokens: torch.Tensor,
           update: Callable[[int], object]) -> dict[str, float]:  # fmt: skip
    """Return cross-entropy and accuracy of float reference and twin, and the divergence between them."""
    n, total = model.config.tokens_per_frame, tokens.shape[1]
    exact = teacher_forced_run(model.decoder(), tokens, total).logits.detach().numpy()
    update(2)
    run = Twin(integers, len(tokens)).generate(tokens[:, :n], total, head_all=True, teacher=tokens)
    logits = run.logits.numpy().transpose(1, 0, 2)
    scale = 2.0**-integers.logit_fraction
    update(3)
    first = min(2, model.config.frames - 1)
    found: dict[str, float] = {}
    for name, values, factor in (("float", exact, 1.0), ("twin", logits, scale)):
        quality = teacher_forced(values, tokens.numpy(), n, first, factor)
        found |= {f"{name}_cross_entropy": quality.cross_entropy, f"{name}_accuracy": quality.accuracy}
    start = first * n
    divergence = kl_divergence(logits[:, start:], exact[:, start : logits.shape[1]], scale)
    return found | {"kl_divergence": divergence}
