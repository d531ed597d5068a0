"""``fastcar info``: what an image, a model, a configuration or a preset is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fastcar_hw.config import AcceleratorConfig, ModelConfig, load_toml
from fastcar_hw.presets import ACCELERATORS, MODELS
from fastcar_hw.sequencer import ImageHeader

from ..image import Image
from ..model import ModelError, VideoModel, load_model, shipped_model, tensor_shapes
from .common import JsonOption, SeedOption, UsageError
from .outputs import Outputs
from .tables import print_fields, print_rows, result_console

__all__ = ["info"]


def info(
    thing: Annotated[str, typer.Argument(metavar="THING", help="Image, model, TOML file, or name of a preset.")],
    listing: Annotated[bool, typer.Option("--listing", help="The program of an image, too.")] = False,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Show what something is: sizes, hashes, shapes, derived numbers."""
    del seed  # Nothing here is random; every command takes it.
    with Outputs(None, json_file) as outputs:
        found = _describe(thing)
        if listing and "listing" not in found:
            raise UsageError(f"--listing needs an image, not {thing}")
        if not listing:
            found.pop("listing", None)
        outputs.result(found)
    console = result_console(json_file)
    _show(console, found)
    for line in found.get("listing", []):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _describe(thing: str) -> dict[str, Any]:
    """Return everything known about a thing, as plain values."""
    path = Path(thing)
    kinds: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".fcar": lambda path: _image(Image.load(path)),
        ".safetensors": lambda path: _model(load_model(path)),
        ".toml": _toml,
    }
    if path.suffix in kinds:
        return kinds[path.suffix](path)
    preset = _preset(thing)
    if preset:
        return preset
    if path.is_dir():
        return kinds[".safetensors"](path)
    if path.is_file():
        # Whatever its name is.
        if _starts_with_magic(path):
            return kinds[".fcar"](path)
        raise UsageError(f"{thing} is no image (.fcar), model (.safetensors) or configuration (.toml)")
    names = ", ".join(dict.fromkeys([*ACCELERATORS, *MODELS]))
    raise UsageError(f"{thing} is neither a file nor a preset; presets are {names}")


def _starts_with_magic(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(ImageHeader.MAGIC)) == ImageHeader.MAGIC
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _preset(name: str) -> dict[str, Any]:
    """Return accelerator, shapes and shipped model of a name; empty when there are none."""
    found: dict[str, Any] = {}
    if name in ACCELERATORS:
        found |= _accelerator(ACCELERATORS[name])
    if name in MODELS:
        found |= _shapes(MODELS[name])
    try:
        path = shipped_model(name)
    except ModelError:
        return found
    return found | _model(load_model(path))


def _toml(path: Path) -> dict[str, Any]:
    model, accelerator = load_toml(path)
    found: dict[str, Any] = {}
    if accelerator is not None:
        found |= _accelerator(accelerator)
    if model is not None:
        found |= _shapes(model)
    if accelerator is not None and model is not None:
        accelerator.check_model(model)
    return found


def _accelerator(config: AcceleratorConfig) -> dict[str, Any]:
    derived = {name: value for name, value in vars(config.derived).items() if not name.startswith("_")}
    elements = config.cores * config.rows * config.cols
    return {
        "accelerator": {**config.to_dict(), "hash": f"{config.hash:016x}"},
        "derived": {"elements": elements, **derived},
    }


def _shapes(config: ModelConfig) -> dict[str, Any]:
    parameters = sum(math.prod(shape) for shape in tensor_shapes(config).values())
    return {"model": {**config.to_dict(), "positions": config.max_seq, "parameters": parameters}}


def _model(model: VideoModel) -> dict[str, Any]:
    tokenizer = None
    if model.tokenizer is not None:
        t = model.tokenizer
        tokenizer = {"grid": list(t.grid), "vocab": t.vocab, "patch": list(t.codebook.shape[1:])}
    return {
        **_shapes(model.config),
        "tensors": {name: list(shape) for name, shape in tensor_shapes(model.config).items()},
        "tokenizer": tokenizer,
        "training": model.training,
    }


def _image(image: Image) -> dict[str, Any]:
    return {
        "image": {
            "version": ImageHeader.VERSION,
            "config_hash": f"{image.config_hash:016x}",
            "model_hash": f"{image.model_hash:016x}",
            "instructions": image.program_words,
            "image_bytes": len(image.memory),
            "heap_bytes": image.heap_bytes,
            "logit_fraction": image.logit_fraction,
        },
        "sections": [
            {"name": name, "offset": offset, "bytes": size} for name, (offset, size) in image.sections.items()
        ],
        "heap": [
            {"name": name, "offset": offset, "bytes": size}
            for name, (offset, size) in image.layout.heap_sections.items()
        ],
        **_shapes(image.model),
        **_accelerator(image.accelerator),
        "listing": image.listing(),
    }


def _show(console: Console, found: dict[str, Any]) -> None:
    """Print a table for each part; the tensors are left to the JSON."""
    for name, part in found.items():
        if name in ("listing", "tensors") or not part:
            continue
        if isinstance(part, list):
            rows = [(row["name"], f"{row['offset']:#x}", row["bytes"]) for row in part]
            print_rows(console, name, ("section", "offset", "bytes"), rows, right=(1, 2))
        else:
            print_fields(console, name, dict(_flat(part)))


def _flat(part: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in part.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows
