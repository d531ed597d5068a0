"""``fastcar run``: a board makes a video."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from boards.catalogue import BoardSpec, board

from ..compiler.decompile import quantized_model
from ..driver import Driver
from ..engines.device import DeviceLink, MatrixBoard
from ..image import Image
from ..model import VideoModel
from ..twin import Twin
from ..video.io import write_gif
from .common import JsonOption, OutOption, Reporter, SeedOption, UsageError, json_text, video_model_of
from .generate import compile_model
from .outputs import Outputs
from .run_options import RunOptions, RunRequest
from .running import RunResult, show_run, write_run
from .tables import result_console

__all__ = ["run"]


def run(
    name: Annotated[str, typer.Option("--board", help="Board; an unknown name lists those that exist.")],
    port: Annotated[str, typer.Option(metavar="PORT", help="Serial port: device file, name, or URL.")],
    prompt: Annotated[Path, typer.Option(metavar="FILE", help="Tokens (lanes, positions), .npy or .json.")],
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Image of a model (.fcar).")] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of the video, prompt included.")] = None,
    gate: Annotated[str, typer.Option(help="Replay policy: never, always, tas.")] = "never",
    threshold: Annotated[list[float] | None, typer.Option(help="Of the gate tas; once, or once a layer.")] = None,
    definition: Annotated[str, typer.Option(help="Score of the gate tas.")] = "paper",
    warmup: Annotated[int, typer.Option(help="Frames after the prompt that always compute.")] = 0,
    topk: Annotated[int, typer.Option(help="Candidates of the sampler; 0 takes the best.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of the sampler.")] = 1.0,
    model: Annotated[
        str | None, typer.Option(help="Shipped model (traffic) or file: the image, when none is given, and the video.")
    ] = None,
    out: OutOption = Path("fastcar-run"),
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Let a board make a video.

    Writes tokens.npy, int64 (lanes, positions), counters.json, and with a model that has a tokenizer video.gif, lanes
    side by side; without --image the image, too (model.fcar).
    """
    spec = board(name)
    if image is None and model is None:
        raise UsageError("--image or --model must say what the board shall run")
    video_model = None if model is None else video_model_of(model)
    with Outputs(out, json_file) as outputs, Reporter() as reporter:
        file = image
        if file is None:
            assert video_model is not None
            spec.config.check_model(video_model.config)
            file = outputs.path("model.fcar")
            with reporter.task("quantize and compile the model"):
                compile_model(video_model, spec.config, None, seed, reporter).save(file)
        Image.load(file).check(spec.config)
        request = RunOptions(
            image=file, prompt=prompt, frames=frames, gate=gate, threshold=threshold, definition=definition,
            warmup=warmup, topk=topk, temperature=temperature, seed=seed,
        ).request()  # fmt: skip
        if video_model is not None and video_model.config != request.image.model:
            raise UsageError(f"image {file} must be of the model {model}, not of {request.image.model.name!r}")
        result = (_run if spec.kind == "accelerator" else _run_matrices)(spec, request, port, reporter)
        found = write_run(outputs, request, result)
        # The memory of a board is what it is.
        del found["memory"]
        outputs.text("counters.json", json_text({key: value for key, value in found.items() if key != "tokens"}))
        if video_model is not None and video_model.tokenizer is not None:
            _write_video(video_model, result.tokens, outputs.path("video.gif"))
        outputs.result({**found, "board": spec.name, "port": port, "out": out})
    console = result_console(json_file)
    show_run(console, found)
    console.print(f"Tokens and counters: {out}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _linked(spec: BoardSpec, request: RunRequest, port: str, reporter: Reporter) -> Iterator[DeviceLink]:
    with (
        reporter.task(f"load {port}") as update,
        DeviceLink(port, request.config, spec.baud, progress=update, identity=spec.identity) as link,
    ):
        yield link


def _run(spec: BoardSpec, request: RunRequest, port: str, reporter: Reporter) -> RunResult:
    """Let an accelerator make the video."""
    with _linked(spec, request, port, reporter) as link:
        driver = Driver(link)
        driver.load(request.image)
        with reporter.task("generate", request.total - 1) as position:
            run = driver.generate(request.prompt, request.total, request.gate, request.sampling, progress=position)
            return RunResult.of_hardware(spec.name, run)


def _run_matrices(spec: BoardSpec, request: RunRequest, port: str, reporter: Reporter) -> RunResult:
    """Let the twin make the video, with the products of the board."""
    integers = quantized_model(request.image)
    with _linked(spec, request, port, reporter) as link:
        matrices = MatrixBoard(link)
        matrices.load(integers)
        with reporter.task("generate", request.total - 1) as position:
            run = Twin(integers, len(request.prompt), linear=matrices.linear).generate(
                torch.from_numpy(request.prompt), request.total, request.gate, request.sampling, progress=position
            )
            return RunResult.of_twin(run, spec.name)


def _write_video(model: VideoModel, tokens: np.ndarray, path: Path) -> None:
    """Write the lanes side by side; tokens (lanes, positions)."""
    assert model.tokenizer is not None
    videos = model.tokenizer.decode(tokens.reshape(len(tokens), -1, model.config.tokens_per_frame))
    write_gif(path, np.concatenate(list(videos), axis=2))
