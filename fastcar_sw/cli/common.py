"""What every subcommand shares: options, progress, results, and how errors end."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fastcar_hw.config import AcceleratorConfig, ModelConfig, load_toml
from fastcar_hw.presets import ACCELERATORS, MODELS, accelerator_preset, model_preset

from ..model import VideoModel, load_model, shipped_model

__all__ = [
    "CheckFailed",
    "JsonOption",
    "OutOption",
    "Reporter",
    "SeedOption",
    "UsageError",
    "accelerator_of",
    "is_special",
    "json_text",
    "model_config_of",
    "out_folder",
    "video_model_of",
    "write_json",
]


class UsageError(ValueError):
    """An option or an input does not fit; the message is one line."""


class CheckFailed(Exception):  # noqa: N818 - it is an outcome, not a defect
    """A check that the command makes did not pass; the message is one line."""


JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Machine-readable result; - for standard output.")
]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for what is written.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Everything random follows from it.")]


class Reporter:
    """Progress on standard error: bars on a terminal, plain lines elsewhere."""

    #: Seconds between two lines of one task when there is no terminal.
    PERIOD = 15.0

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._start = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        line = f"[{time.monotonic() - self._start:6.1f} s] {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Show a task; yields ``update(done, total=None, note="")``, which any thread may call."""
        number = self._progress.add_task(name, total=total, note="")
        self.say(name)
        last = time.monotonic()

        def update(done: int, total: int | None = total, note: str = "") -> None:
            nonlocal last
            self._progress.update(number, completed=done, total=total, note=note)
            if not self.console.is_terminal and time.monotonic() - last > self.PERIOD:
                last = time.monotonic()
                share = f"{done} of {total}" if total else str(done)
                self.say(f"{name}: {share} {note}".rstrip())

        try:
            yield update
        finally:
            self._progress.remove_task(number)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result, as a whole or not at all; numbers that JSON lacks become null.

    Raises
    ------
    UsageError
        When the file cannot be written.
    """
    if path is None:
        return
    text = json_text(result)
    if str(path) == "-":
        sys.stdout.write(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"result {path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which is written but never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def json_text(result: dict[str, Any]) -> str:
    """Return a result as JSON text; numbers that JSON lacks become null."""
    return json.dumps(_plain(result), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def out_folder(path: Path) -> Path:
    """Make a folder for results and return it.

    Raises
    ------
    UsageError
        When it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(f"folder {path} cannot be written: {error.strerror}") from None
    return path


def accelerator_of(text: str) -> tuple[AcceleratorConfig, ModelConfig | None]:
    """Return the accelerator that a preset's name or a TOML file names, and the file's model if it has one.

    Raises
    ------
    ConfigError
        When there is no such preset, or the file is none or breaks a rule.
    UsageError
        When the file has no accelerator.
    """
    if not _is_file(text):
        return accelerator_preset(text), None
    model, accelerator = load_toml(Path(text))
    if accelerator is None:
        raise UsageError(f"configuration file {text} must have an [accelerator] table")
    return accelerator, model


def video_model_of(text: str) -> VideoModel:
    """Return the model of a file, or the shipped one of this name.

    Raises
    ------
    ModelError
        When there is none.
    """
    return load_model(Path(text) if _is_file(text) else shipped_model(text))


def model_config_of(text: str) -> ModelConfig:
    """Return the shapes of a preset or of a TOML file's [model] table."""
    if not _is_file(text):
        return model_preset(text)
    model, _ = load_toml(Path(text))
    if model is None:
        raise UsageError(f"configuration file {text} must have a [model] table")
    return model


def _is_file(text: str) -> bool:
    return Path(text).suffix != "" or "/" in text or (text not in ACCELERATORS | MODELS and Path(text).exists())
