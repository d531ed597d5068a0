"""``fastcar generate``: the accelerator and everything that its user needs, as files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fastcar_hw.config import AcceleratorConfig, ModelConfig
from fastcar_hw.export import registers as export_registers
from fastcar_hw.export import to_verilog
from fastcar_hw.registers_map import register_map

from .. import export_memory_map
from ..image import Image, compile_image
from ..model import VideoModel
from ..quantize import quantize
from ..quantize_ranges import random_tokens
from ..video.clips import TrafficClips
from .common import JsonOption, OutOption, Reporter, SeedOption, UsageError, accelerator_of, video_model_of
from .outputs import Outputs
from .prompts import load_tokens
from .tables import print_fields, print_rows, result_console

__all__ = ["compile_model", "generate"]

_TARGETS = ("verilog",)
#: Models whose training notes name these data are calibrated on clips of the traffic generator.
_TRAFFIC, _CLIPS = "procedural traffic", 4
_IDENTITY = ("hardware", "model", "model_hash", "memory_bytes")


def generate(
    config: Annotated[str, typer.Option(help="Accelerator: preset or TOML file.")],
    target: Annotated[str, typer.Option(help="What to generate: verilog.")] = "verilog",
    model: Annotated[str | None, typer.Option(help="Shipped model (traffic) or file; adds its image.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Typical tokens (.npy or .json) to quantize the model with.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace ports, for simulation.")] = False,
    out: OutOption = Path("fastcar-generate"),
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write Verilog, register map, and the image of a model.

    The same configuration gives the same files, whatever the machine and the time.
    """
    if target not in _TARGETS:
        raise UsageError(f"--target must be one of {', '.join(_TARGETS)}, not {target!r}")
    accelerator, shapes = accelerator_of(config)
    accelerator = accelerator.replace(trace=accelerator.trace or trace)
    video_model = None
    if model is not None:
        video_model = video_model_of(model)
        shapes = _agreed(shapes, video_model.config, config)
    elif calibration is not None:
        raise UsageError("--calibration needs a --model")
    if shapes is not None:
        accelerator.check_model(shapes)
    with Outputs(out, json_file) as outputs, Reporter() as reporter:
        image = None
        if video_model is not None:
            with reporter.task("quantize and compile the model"):
                image = compile_model(video_model, accelerator, calibration, seed, reporter)
        with reporter.task(f"generate Verilog of {accelerator.name}"):
            files = _files(accelerator, shapes, image)
        for name, text in files.items():
            outputs.text(name, text)
        if image is not None:
            image.save(outputs.path("model.fcar"))
        result = _result(accelerator, image, outputs, [*files, *(["model.fcar"] if image else [])])
        outputs.result({**result, "out": out})
    console = result_console(json_file)
    rows = [(file["name"], file["bytes"]) for file in result["files"]]
    print_rows(console, f"{accelerator.name} in {out}", ("file", "bytes"), rows, right=(1,))
    print_fields(console, "identity", {name: result[name] for name in _IDENTITY})


def _agreed(shapes: ModelConfig | None, found: ModelConfig, config: str) -> ModelConfig:
    """Return the shapes of a model, which must be those of the configuration file, if it has some."""
    if shapes is not None and shapes.replace(name=found.name) != found:
        fields = found.to_dict()
        name = next(key for key, value in shapes.to_dict().items() if key != "name" and value != fields[key])
        raise UsageError(
            f"model must have the {name}={getattr(shapes, name)} of the [model] table in {config}, "
            f"not {getattr(found, name)}"
        )
    return found


def compile_model(model: VideoModel, accelerator: AcceleratorConfig, calibration: Path | None, seed: int,
                  reporter: Reporter) -> Image:  # fmt: skip
    """Quantize a model on typical tokens and compile it."""
    shapes = model.config
    if calibration is not None:
        tokens = torch.from_numpy(load_tokens(calibration, shapes.vocab, "calibration"))
    elif model.tokenizer is not None and model.training.get("data") == _TRAFFIC:
        tokens = torch.from_numpy(TrafficClips(shapes.frames, seed, shapes.vocab).train(_CLIPS, 0))
    else:
        reporter.say("calibrated on random tokens; --calibration FILE with typical ones gives better integers")
        tokens = random_tokens(shapes, seed=seed)
    integers = quantize(shapes, model.state, tokens, source=str(model.training.get("seed", "")))
    return compile_image(integers, accelerator)[0]


def _files(accelerator: AcceleratorConfig, shapes: ModelConfig | None, image: Image | None) -> dict[str, str]:
    """Return every text file by its name."""
    registers = register_map(accelerator)
    toml = f"[accelerator]\n{accelerator.to_toml()}"
    if shapes is not None:
        toml = f"[model]\n{shapes.to_toml()}\n{toml}"
    files = {
        "fastcar.v": to_verilog(accelerator),
        "registers.md": export_registers.to_markdown(registers),
        "registers.json": export_registers.to_json(registers),
        "fastcar_registers.h": export_registers.to_c_header(registers),
        "accelerator.toml": toml,
    }
    if image is not None:
        files |= {
            "memory_map.md": export_memory_map.to_markdown(image.layout),
            "memory_map.json": export_memory_map.to_json(image.layout),
            "program.txt": "\n".join(image.listing()) + "\n",
        }
    return files


def _result(accelerator: AcceleratorConfig, image: Image | None, outputs: Outputs, names: list[str]) -> dict[str, Any]:
    files = []
    for name in names:
        content = outputs.path(name).read_bytes()
        files.append({"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return {
        "accelerator": accelerator.name,
        "hardware": f"{accelerator.hash:016x}",
        "trace": accelerator.trace,
        "model": None if image is None else image.model.name,
        "model_hash": None if image is None else f"{image.model_hash:016x}",
        "memory_bytes": None if image is None else len(image.memory) + image.heap_bytes,
        "files": files,
    }
