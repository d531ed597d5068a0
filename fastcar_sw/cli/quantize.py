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
from ..video.clips import ClipSource, TrafficClips, VideoClips
from ..video.io import read_video
from ..video.tokenizer import TokenizerError
from .common import JsonOption, Reporter, SeedOption, UsageError, video_model_of
from .outputs import Outputs
from .tables import print_fields, result_console

__all__ = ["quantize"]


def quantize(
    model: Annotated[str, typer.Argument(help="Model file, or the name of a shipped model.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File of the integers (.safetensors).")],
    video: Annotated[
        list[Path] | None, typer.Option("--video", help="Video that a model of one's own was trained on; repeatable.")
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="Take every so many frames of a video, as in the training.")] = 1,
    calibration: Annotated[int, typer.Option(min=1, max=256, help="Clips that choose the ranges.")] = 4,
    clips: Annotated[int, typer.Option(min=1, max=32, help="Held-out clips that judge.")] = 4,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Quantize a model to 8 bits and compare the twin's predictions with the float reference's.

    Ranges come from clips of the training, the judgement from held-out ones.  The traffic model makes its clips itself;
    any other takes them from --video, whose last tenth is held out as in the training, or else is calibrated on
    random tokens and not judged.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"--out must be a file with the suffix .safetensors, not {out}")
    if not out.parent.is_dir():
        raise UsageError(f"folder {out.parent} of --out does not exist")
    loaded = video_model_of(model)
    source = _clips(loaded, video or [], stride, seed)
    # Places that cannot be written are found before the work, and Ctrl-C leaves neither file.
    with Outputs(None, json_file) as outputs:
        temporary = outputs.file(out)
        with Reporter() as reporter, reporter.task("quantize and judge", 3) as update:
            tokens = random_tokens(loaded.config, seed=seed)
            if source is not None:
                tokens = torch.from_numpy(source.train(calibration, 0))
            integers = make_integers(loaded.config, loaded.state, tokens, source=model)
            update(1)
            integers.save(temporary)
            judged = {}
            if source is not None:
                judged = _judge(loaded, integers, torch.from_numpy(source.held_out(clips)), update)
        result = {"file": out, "hash": f"{integers.hash:016x}", "model": loaded.config.to_dict(), "quality": judged}
        outputs.result(result)
    console = result_console(json_file)
    print_fields(console, f"{loaded.config.name} in {out}", {"hash": result["hash"], **judged})
    if not judged:
        console.print("not judged: no clips (see --video)")


def _clips(model: VideoModel, videos: list[Path], stride: int, seed: int) -> ClipSource | None:
    """Return a source of clips, or None when there is none."""
    if model.tokenizer is None:
        return None
    if not videos:
        try:
            traffic = TrafficClips(model.config.frames, seed, model.config.vocab)
        except TokenizerError:
            return None  # too few tokens for traffic
        same = np.array_equal(traffic.tokenizer.codebook, model.tokenizer.codebook)
        return traffic if same else None
    frames = [read_video(path, size=model.tokenizer.frame_shape) for path in videos]
    return VideoClips(frames, model.tokenizer, model.config.frames, seed, stride)


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
