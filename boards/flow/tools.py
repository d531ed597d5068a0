"""Running the tools: found beside this Python, told what to do, watched, and cached by what they were given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastcar_hw.export import ToolError

__all__ = ["find_tool", "first_error", "run_tool", "tool_version"]


def find_tool(name: str) -> str:
    """Return the command of a tool, or raise `ToolError` saying how to get it."""
    beside = Path(sys.executable).parent / name
    command = str(beside) if beside.exists() else shutil.which(name)
    if command is None:
        raise ToolError(f"{name} is not installed: `pip install 'fastcar[boards]'`")
    return command


def tool_version(package: str) -> str:
    """Return the version of a tool's package; raise `ToolError` without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise ToolError(f"{package} is not installed: `pip install 'fastcar[boards]'`") from None


def run_tool(
    name: str, arguments: list[str], folder: Path, log: str, watch: Callable[[str], None] | None = None
) -> int:
    """Run a tool in a folder, which is all that it sees; its output goes to the file ``log`` there.

    Parameters
    ----------
    name, arguments
        The tool.
    folder
        Where it works: paths must be relative to it.
    log
        File for everything that it prints.
    watch
        Sees every line.

    Returns
    -------
    The exit code.

    Raises
    ------
    ToolError
        When it is missing or cannot be started.
    """
    command = [find_tool(name), *arguments]
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    except OSError as error:
        raise ToolError(f"{name} cannot be started: {error.strerror}") from None
    try:
        with (folder / log).open("w", encoding="utf-8") as file, process.stdout as output:
            for line in output:
                file.write(line)
                if watch is not None:
                    watch(line.rstrip())
        return process.wait()
    except BaseException:
        # Ctrl-C, or another seed that failed: nothing goes on behind the caller's back.
        process.kill()
        process.wait()
        raise


def first_error(folder: Path, log: str) -> str:
    """Return the first error that a tool printed, or its last line."""
    lines = [line.strip() for line in (folder / log).read_text(encoding="utf-8").splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
