"""The report: one HTML page that needs nothing but itself, and the videos as GIF files beside it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from .animation import Animation, make_animation, write_videos
from .columns import COLUMNS
from .cycle_figures import bus_figure, units_figure
from .data import ReportData, RunData
from .drawing import to_svg
from .figures import replay_figure, speedup_figure
from .formats import count, percent, tenths, times
from .palette import DARK, LIGHT, THEMES, Theme
from .publish import published
from .strip import strip_rows
from .summary import key_figures, setting, single_lane, verdict

__all__ = ["PAGE", "write_report"]

#: Name of the page.
PAGE = "report.html"


def write_report(folder: Path, report: ReportData) -> Path:
    """Write the page and, beside it, a GIF a run with its lanes side by side.

    Parameters
    ----------
    folder
        Where to; made when it is missing.  Files of an earlier report are replaced.
    report
        What to show.

    Returns
    -------
    pathlib.Path
        The page, ``report.html``.

    Raises
    ------
    ValueError
        When there is no run, or videos differ in shape.
    OSError
        When the folder cannot be written.  No file is left half-written, and no new one is left at all.
    """
    _check(report)
    folder = Path(folder)
    with published(folder, PAGE) as temporary:
        animation = make_animation(temporary, report)
        files = write_videos(temporary, report)
        (temporary / PAGE).write_text(_render(report, files, animation), encoding="utf-8")
    return folder / PAGE


def _check(report: ReportData) -> None:
    if not report.runs:
        raise ValueError("report must have at least one run")
    shape = report.runs[0].video.shape
    videos = [(run.title, run.video) for run in report.runs]
    videos += [("source", report.source)] if report.source is not None else []
    for name, video in videos:
        if video.dtype != np.uint8 or video.ndim != 5 or video.shape[-1] != 3 or video.shape != shape or 0 in shape:
            raise ValueError(
                f"videos must be uint8 (lanes, frames, height, width, 3) of one shape, but {name} is {video.dtype} "
                f"{video.shape} and {report.runs[0].title} {shape}"
            )
    for run in report.runs:
        if run.compute.ndim != 3 or 0 in run.compute.shape or run.compute.shape[2] != len(run.video):
            raise ValueError(
                f"compute must have the shape (positions, layers, lanes={len(run.video)}), but that of {run.title} is "
                f"{run.compute.shape}"
            )


# Page --------------------------------------------------------------------------------------------------------------


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _picture(draw: Callable[[Theme], Figure], alt: str) -> dict[str, str]:
    """Return a picture for light and one for dark surroundings."""
    return {"alt": alt} | {theme.name: _uri("image/svg+xml", to_svg(draw(theme))) for theme in THEMES}


def _render(report: ReportData, files: list[str], animation: Animation) -> str:
    environment = Environment(
        loader=PackageLoader("fastcar_sw.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    replays = [run for run in report.runs if run.gate != "never"]
    return environment.get_template("report.html.j2").render(
        title=f"{report.model.get('name', 'model')} on {report.accelerator.get('name', 'accelerator')}",
        themes={"light": LIGHT, "dark": DARK},
        verdict=verdict(report),
        cards=key_figures(report),
        setting=setting(report),
        files=files,
        animation=animation,
        moving=_uri("image/gif", animation.gif),
        still=_uri("image/png", animation.still),
        strip=strip_rows(report, animation.chosen, lambda data: _uri("image/png", data)),
        groups=[(name, len(list(members))) for name, members in groupby(COLUMNS, lambda column: column.group)],
        columns=COLUMNS,
        rows=[
            {
                "title": run.title,
                "definition": run.definition if run.gate not in ("never", "always") else "",
                "cells": [column.text(report, run) for column in COLUMNS],
                "wrong": run.mismatches > 0,
            }
            for run in report.runs
        ],
        maps=[(run.title, _replay_picture(report, run, legend=run is replays[0])) for run in replays],
        bus=_picture(lambda theme: bus_figure(report, theme), _bus_alt(report)),
        units=_picture(lambda theme: units_figure(report, theme), _units_alt(report)),
        speedup=_picture(lambda theme: speedup_figure(report, theme), _speedup_alt(report)),
        single=single_lane(report),
        counters=_counters(report),
        shapes=[("Model", report.model), ("Accelerator", report.accelerator)],
        versions=report.versions,
        seconds={phase: f"{tenths(value)} s" for phase, value in report.seconds.items()},
        command=report.command,
        runs=report.runs,
    )


def _replay_picture(report: ReportData, run: RunData, legend: bool) -> dict[str, str]:
    shares = run.compute.mean((0, 2))
    layers = ", ".join(f"layer {number} {percent(share)}" for number, share in enumerate(shares))
    alt = f"Map of layers by positions for {run.title}. Computed MLPs over all positions and lanes: {layers}."
    return _picture(lambda theme: replay_figure(report, run, theme, legend=legend), alt)


def _bus_alt(report: ReportData) -> str:
    parts = []
    for run in report.runs:
        beats = {name.removeprefix("beats_"): n for name, n in run.counters.items() if name.startswith("beats_")}
        shares = ", ".join(f"{name} {percent(n / max(1, run.cycles))}" for name, n in beats.items())
        parts.append(f"{run.title}: {count(run.cycles)} cycles ({shares})")
    return f"Bars of what the memory bus carried. {'; '.join(parts)}."


def _units_alt(report: ReportData) -> str:
    parts = []
    for run in report.runs:
        busy = {name.removeprefix("busy_"): n for name, n in run.counters.items() if name.startswith("busy_")}
        shares = ", ".join(f"{name} {percent(n / max(1, run.cycles))}" for name, n in busy.items())
        parts.append(f"{run.title}: {shares}")
    return f"Bars of the share of cycles in which each unit was busy. {'; '.join(parts)}."


def _speedup_alt(report: ReportData) -> str:
    parts = [f"{run.title} {times(run.speedup)} at {percent(run.replay_ratio_all)}" for run in report.runs]
    return f"Speed-up over the share of all MLPs that were replayed: {', '.join(parts)}."


def _counters(report: ReportData) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for run in report.runs for name in run.counters)
    return [(name, [count(run.counters.get(name)) for run in report.runs]) for name in names]
