"""One run of an image on an engine, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..compiler.decompile import quantized_model
from ..driver import Driver, HardwareRun, memory_needed
from ..engines.link import Link, TraceWords
from ..engines.pysim import PysimLink
from ..engines.verilator import VerilatorLink, build_model
from ..twin import GenerationResult, Twin
from ..utilisation import bandwidth_utilisation, mac_utilisation
from .common import Reporter, json_text
from .outputs import Outputs
from .run_options import RunRequest
from .tables import print_fields

__all__ = ["RunResult", "run_hardware", "run_twin", "show_run", "write_run"]


@dataclass(frozen=True, eq=False)
class RunResult:
    """What every engine gives: tokens (lanes, positions), MLPs (layers, lanes), and counters where there are some."""

    engine: str
    tokens: np.ndarray
    eligible: np.ndarray
    replayed: np.ndarray
    counters: dict[str, int] | None

    @classmethod
    def of_hardware(cls, engine: str, run: HardwareRun) -> RunResult:
        """Take what is reported from a run of the RTL."""
        return cls(engine, run.tokens, run.eligible, run.replayed, run.counters)

    @classmethod
    def of_twin(cls, run: GenerationResult, engine: str = "twin") -> RunResult:
        """Take what is reported from a run of the twin."""
        compute, eligible = run.compute.numpy(), run.eligible.numpy()
        return cls(
            engine, run.tokens.numpy(), np.full(compute.shape[1:], int(eligible.sum())), (~compute).sum(0), None
        )

    def measures(self, request: RunRequest) -> dict[str, Any]:
        """Return counters and what follows from them, as plain values."""
        possible = int(self.eligible.sum())
        measures: dict[str, Any] = {
            "eligible": self.eligible.tolist(),
            "replayed": self.replayed.tolist(),
            "replay_ratio": int(self.replayed.sum()) / possible if possible else 0.0,
            "counters": self.counters,
        }
        if self.counters is not None:
            measures["bandwidth_utilisation"] = bandwidth_utilisation(self.counters)
            measures["mac_utilisation"] = mac_utilisation(self.counters, request.config)
        return measures


def run_twin(request: RunRequest, reporter: Reporter, *, trace: bool = False) -> GenerationResult:
    """Let the twin make the video."""
    integers = quantized_model(request.image)
    with reporter.task("twin", request.total - 1) as update:
        return Twin(integers, len(request.prompt)).generate(
            torch.from_numpy(request.prompt), request.total, request.gate, request.sampling, trace=trace,
            progress=update,
        )  # fmt: skip


def run_hardware(request: RunRequest, engine: str, reporter: Reporter, *, vcd: Path | None = None,
                 sink: Callable[[TraceWords], object] | None = None) -> HardwareRun:  # fmt: skip
    """Let the RTL make the video.

    Parameters
    ----------
    request, engine, reporter
        What runs, where, and who sees it.
    vcd
        File for the waveforms, of the engine pysim.
    sink
        Takes the trace.
    """
    with ExitStack() as stack:
        link: Link
        if engine == "verilator":
            # Always with trace ports: one build serves every command.
            config = request.config.replace(trace=True)
            with reporter.task(f"generate Verilog of {config.name}, compile it") as update:
                build_model(config, lambda text, done, total: update(done, total, text))
            link = VerilatorLink(config, memory_needed(request.image), request.memory)
        else:
            config = request.config.replace(trace=sink is not None)
            with reporter.task(f"elaborate {config.name}"):
                link = PysimLink(config, memory_needed(request.image), request.memory, vcd)
        stack.enter_context(link)
        driver = Driver(link)
        driver.load(request.image)
        update = stack.enter_context(reporter.task(f"RTL, {engine}", request.total - 1))
        return driver.generate(
            request.prompt, request.total, request.gate, request.sampling, progress=update, sink=sink or _drop
        )


def _drop(words: TraceWords) -> None:
    del words


def write_run(outputs: Outputs, request: RunRequest, result: RunResult) -> dict[str, Any]:
    """Write tokens and counters; return everything as plain values."""
    found = {**request.to_dict(), "engine": result.engine, **result.measures(request)}
    with outputs.path("tokens.npy").open("wb") as file:
        np.save(file, result.tokens)
    outputs.text("counters.json", json_text(found))
    return {**found, "tokens": result.tokens.tolist()}


def show_run(console: Console, found: dict[str, Any]) -> None:
    """Print what was measured."""
    shares = ("replay_ratio", "bandwidth_utilisation", "mac_utilisation")
    fields = {name.replace("_", " "): f"{100 * found[name]:.1f} %" for name in shares if name in found}
    title = (
        f"{found['model']} on {found['accelerator']}, {found['engine']}: {found['lanes']} x {found['positions']} tokens"
    )
    print_fields(console, title, {**(found["counters"] or {}), **fields})
