"""``fastcar build``: from a board's name to its bitstream."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from boards.catalogue import board
from boards.flow import BuildResult
from boards.flow import build as build_board
from boards.flow.picture import draw_utilisation
from boards.flow.report import to_markdown

from ..engines.verilator.toolchain import cache_folder
from .common import CheckFailed, JsonOption, OutOption, Reporter
from .outputs import Outputs
from .tables import print_rows, result_console

__all__ = ["build"]


def build(
    name: Annotated[str, typer.Option("--board", help="Board; an unknown name lists those that exist.")],
    out: OutOption = Path("fastcar-build"),
    seeds: Annotated[int, typer.Option(min=1, max=64, help="Placements to try; the best one counts.")] = 1,
    first_seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of the first placement.")] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, max=64, help="Placements at once (one a processor).")] = None,
    json_file: JsonOption = None,
) -> None:
    """Build the bitstream of a board: synthesis, place and route, packing, with tools from pip alone.

    A clock that is missed is a failure (exit code 1); bitstream and report are written all the same.  What was built
    before comes from a cache.
    """
    spec = board(name)
    with Outputs(out, json_file) as outputs, Reporter() as reporter:
        with reporter.task(f"build {spec.name}") as update:
            steps: set[str] = set()

            def progress(step: str, done: int, total: int) -> None:
                if step not in steps:
                    steps.add(step)
                    reporter.say(step)
                update(done, total, step)

            numbers = list(range(first_seed, first_seed + seeds))
            result = build_board(spec, cache_folder() / "boards", numbers, jobs or os.cpu_count() or 1, progress)
        plain = _plain(result)
        bitstream = f"{spec.name}{result.bitstream.suffix}"
        shutil.copy(result.bitstream, outputs.path(bitstream))
        shutil.copy(result.bitstream.parent / "route.log", outputs.path("route.log"))
        outputs.text("report.json", json.dumps(plain, indent=2) + "\n")
        outputs.text("report.md", to_markdown(spec, result))
        draw_utilisation(result, outputs.path("utilisation.png"))
        outputs.result({**plain, "out": out})
    console = result_console(json_file)
    print_rows(console, f"{spec.title} in {out}", ("", "used", "of"), [
        *((column, f"{use['used']:,}", f"{use['available']:,}") for column, use in result.best.resources.items()),
        *((f"clock {clock}", f"{speed['achieved_hz'] / 1e6:.1f} MHz", f"{speed['constraint_hz'] / 1e6:.1f} MHz")
          for clock, speed in result.best.clocks.items()),
    ], right=(1, 2))  # fmt: skip
    if not result.met:
        raise CheckFailed(
            f"clock of {spec.name} missed: the best of {seeds} placements reaches {result.best.slack:.1%} of it"
        )


def _plain(result: BuildResult) -> dict[str, Any]:
    return json.loads(json.dumps(result.to_dict(), default=str))
