"""``fastcar train``: a small video model from procedural traffic, or from the user's own videos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..train import TrainOptions, TrainProgress, TrainResult
from ..train import train as run_training
from .common import JsonOption, Reporter, SeedOption, UsageError
from .outputs import Outputs
from .tables import print_fields, result_console

__all__ = ["train"]

_DEFAULTS = TrainOptions(output=Path("model.safetensors"))


def train(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File of the model (.safetensors), or a folder that exists.")
    ],
    video: Annotated[
        list[Path] | None,
        typer.Option("--video", help="Video, GIF, or folder of pictures; several are allowed. Without any: traffic."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model; when missing that of the file, or of what it learns from.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = _DEFAULTS.steps,
    batch: Annotated[int, typer.Option(help="Clips of a step.")] = _DEFAULTS.batch,
    frames: Annotated[int, typer.Option(help="Frames of a clip.")] = _DEFAULTS.frames,
    size: Annotated[tuple[int, int], typer.Option(help="Height and width in pixels.")] = _DEFAULTS.size,
    patch: Annotated[int, typer.Option(help="Side of a patch in pixels; a patch is a token.")] = _DEFAULTS.patch,
    vocab: Annotated[int, typer.Option(help="Entries of the codebook.")] = _DEFAULTS.vocab,
    stride: Annotated[int, typer.Option(help="Take every so many frames of a video.")] = _DEFAULTS.stride,
    hidden: Annotated[int, typer.Option(help="Width of the decoder.")] = _DEFAULTS.hidden,
    layers: Annotated[int, typer.Option(help="Decoder layers.")] = _DEFAULTS.layers,
    heads: Annotated[int, typer.Option(help="Query heads.")] = _DEFAULTS.heads,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads.")] = _DEFAULTS.kv_heads,
    ffn: Annotated[int, typer.Option(help="Width of the MLP.")] = _DEFAULTS.ffn,
    muon_rate: Annotated[float, typer.Option(help="Learning rate of the layers' matrices.")] = _DEFAULTS.muon_rate,
    adam_rate: Annotated[float, typer.Option(help="Learning rate of everything else.")] = _DEFAULTS.adam_rate,
    weight_decay: Annotated[float, typer.Option(help="Decay of the layers' matrices.")] = _DEFAULTS.weight_decay,
    first_frame_weight: Annotated[
        float, typer.Option(help="Weight of the loss of the first frame, which nobody can foresee.")
    ] = _DEFAULTS.first_frame_weight,
    log_every: Annotated[int, typer.Option(help="Steps between two reports.")] = _DEFAULTS.log_every,
    threads: Annotated[int | None, typer.Option(help="Threads of PyTorch.")] = None,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Train a model, by the recipe of the shipped one unless options say otherwise.

    With --video the frames are cut into patches, a codebook is fitted by k-means, and the last tenth of each video is
    held out for the figures.
    """
    videos = tuple(video or ())
    if out.is_dir():
        name = name or (videos[0].stem if videos else _DEFAULTS.name)
        out = out / f"{name}.safetensors"
    if out.suffix != ".safetensors":
        raise UsageError(f"--out must be a file with the suffix .safetensors, or a folder that exists, not {out}")
    if not out.parent.is_dir():
        raise UsageError(f"folder {out.parent} of --out does not exist")
    # Places that cannot be written are found now, not after the training; Ctrl-C leaves neither file.
    with Outputs(None, json_file) as outputs:
        options = TrainOptions(
            output=outputs.file(out), videos=videos, name=name or out.stem, seed=seed, steps=steps, batch=batch,
            frames=frames, size=size, patch=patch, vocab=vocab, stride=stride, hidden=hidden, layers=layers,
            heads=heads, kv_heads=kv_heads, ffn=ffn, muon_rate=muon_rate, adam_rate=adam_rate,
            weight_decay=weight_decay, first_frame_weight=first_frame_weight, threads=threads, log_every=log_every,
        )  # fmt: skip
        with Reporter() as reporter, reporter.task(f"train {options.name}") as update:
            result = run_training(options, _shower(update))
        record = _result(result, out)
        outputs.result(record)
    print_fields(result_console(json_file), f"{options.name} in {out}", record["metrics"])


def _shower(update: Callable[..., None]) -> Callable[[TrainProgress], None]:
    """Return what shows the reports of a training, with loss and remaining time."""
    start: float | None = None

    def show(progress: TrainProgress) -> None:
        nonlocal start
        if progress.phase != "train":
            start = progress.seconds
            update(progress.done, progress.total, progress.phase)
            return
        # Reading and the codebook took their time once; the steps tell how long the others will take.
        spent = progress.seconds - (start or 0.0)
        left = spent / progress.done * (progress.total - progress.done)
        shown = "" if progress.loss is None else f", loss {progress.loss:.4f}"
        update(progress.done, progress.total, f"train{shown}, accuracy {progress.accuracy:.3f}, {left:.0f} s left")

    return show


def _result(result: TrainResult, out: Path) -> dict[str, Any]:
    return {
        "model": result.model.config.to_dict(),
        "file": out,
        "metrics": result.metrics,
        "history": result.history,
        "seconds": result.seconds,
    }
