"""``fastcar demo``: everything in one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fastcar_hw.presets import accelerator_preset

from ..demo import DemoOptions, run_demo
from ..engines.link import MemorySettings
from ..report.data import ReportData, RunData
from ..report.page import write_report
from ..report.summary import verdict
from ..report.table import run_table
from ..video.clips import TrafficClips
from .common import (
    CheckFailed,
    JsonOption,
    OutOption,
    Reporter,
    SeedOption,
    UsageError,
    accelerator_of,
    out_folder,
    video_model_of,
    write_json,
)

__all__ = ["demo"]

#: Fields of a run in the machine-readable result.
_FIELDS = (
    "gate", "definition", "threshold", "lanes", "frames", "cycles", "replay_ratio_eligible", "replay_ratio_all",
    "bandwidth_utilisation", "mac_utilisation", "drs_cycles", "speedup", "operations_compared", "integers_compared",
    "tokens_compared", "mismatches", "counters",
)  # fmt: skip


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="One generated frame instead of four.")] = False,
    config: Annotated[str, typer.Option(help="Accelerator: preset or TOML file.")] = "tiny",
    frames: Annotated[int | None, typer.Option(min=2, help="Frames of a video, the given ones included.")] = None,
    thresholds: Annotated[
        list[float] | None, typer.Option("--threshold", help="TAS threshold; may be given several times.")
    ] = None,
    definition: Annotated[str, typer.Option(help="Score: paper or reference-code.")] = "paper",
    latency: Annotated[int, typer.Option(help="Cycles from a read request to its first beat.")] = 32,
    out: OutOption = Path("fastcar-demo"),
    json_file: JsonOption = None,
    seed: SeedOption = 0,
) -> None:
    """Let generated RTL and twin make the same videos, and compare every integer.

    Loads the shipped model, quantizes and compiles it, generates the accelerator, lets the RTL generate whole videos
    under Verilator, dense and with replay, and compares tokens, decisions and every operation with the twin.
    """
    accelerator, _ = accelerator_of(config)
    model = video_model_of("traffic")
    given = 1 if quick else 2
    count = frames or (2 if quick else 6)
    if not given < count <= model.config.frames:
        raise UsageError(f"--frames must be in {given + 1}..{model.config.frames}, not {count}")
    accelerator.check_model(model.config)
    options = DemoOptions(
        accelerator=accelerator, single=accelerator_preset("tiny-1"), frames=count, prompt_frames=given,
        thresholds=tuple(thresholds or (4.0, 2.0)), definition=definition, quality_frames=4 if quick else 8,
        single_positions=15 if quick else 63, memory=MemorySettings(latency=latency, seed=seed),
        jobs=2 * (os.cpu_count() or 1),
    )  # fmt: skip
    folder = out_folder(out)
    with Reporter() as reporter:
        report = run_demo(model, TrafficClips(model.config.frames, seed=seed), options, reporter)
        with reporter.task("write the report"):
            page = write_report(folder, report)
    result = _result(report, page)
    write_json(json_file, result)
    _show(report, page, to_stderr=str(json_file) == "-")
    failed = sum(run.mismatches for run in report.runs) + (report.single_lane or {}).get("mismatches", 0)
    if failed:
        raise CheckFailed(report.differences[0] if report.differences else "the one-lane run differs from the twin")


def _result(report: ReportData, page: Path) -> dict[str, Any]:
    def run(data: RunData) -> dict[str, Any]:
        return {name: getattr(data, name) for name in _FIELDS}

    return {
        "model": report.model,
        "accelerator": report.accelerator,
        "runs": [run(data) for data in report.runs],
        "quality": {data.title: data.quality for data in report.runs},
        "single_lane": report.single_lane,
        "memory_latency": report.memory_latency,
        "versions": report.versions,
        "seconds": report.seconds,
        "report": page,
    }


def _show(report: ReportData, page: Path, *, to_stderr: bool) -> None:
    """Print the table, the bar and the verdict."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=120)
    console.print(run_table(report))
    bar = report.single_lane
    if bar is not None:
        console.print(
            f"One lane, dense ({bar['accelerator']}, memory latency {report.memory_latency}): bandwidth utilisation "
            f"{100 * bar['bandwidth_utilisation']:.1f} % of a beat a cycle, DRS "
            f"{bar['drs_cycles_per_layer']:.1f} cycles a layer",
            highlight=False,
        )
    for run in report.runs:
        layers = run.compute.shape[0] * run.compute.shape[1]
        console.print(
            f"DRS, {run.title}: {run.drs_cycles / layers:.1f} cycles a layer with {run.lanes} lanes "
            f"(bound {2 * run.lanes})",
            highlight=False,
        )
    found = verdict(report)
    console.print(f"{found.headline}. {found.detail}", highlight=False, soft_wrap=True)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
