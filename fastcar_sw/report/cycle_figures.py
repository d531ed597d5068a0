"""Pictures of time: what the memory bus carried, how busy the units were, and what they waited for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from .data import ReportData, RunData
from .drawing import make_figure, plain_axes, styled
from .formats import compact, percent
from .palette import LIGHT, Theme

__all__ = ["bus_figure", "units_figure"]

#: What the bus read, in the order of the bars, and its name.
_READS = {
    "weights": "weights",
    "kv": "keys and values",
    "replay": "replay cache",
    "params": "gains, embeddings",
    "control": "tokens, decisions",
}


def bus_figure(report: ReportData, theme: Theme = LIGHT) -> Figure:
    """Draw what the memory bus carried in the cycles of each run.

    Reads and writes have channels of their own and may overlap.  Where the beats of any run exceed its cycles, all runs
    get a bar for reads and one for writes; what still exceeds the cycles is named, never cut off.
    """
    runs = report.runs
    apart = any(_beats(run) > run.cycles for run in runs)
    rows: list[tuple[str, RunData, dict[str, int]]] = []
    for run in runs:
        read = {name: run.counters.get(f"beats_{name}", 0) for name in _READS}
        written = {"written": run.counters.get("beats_written", 0)}
        if apart:
            rows += [(f"{run.title}, read", run, read), ("written", run, written)]
        else:
            rows.append((run.title, run, read | written))
    names = _READS | {"written": "written", "idle": "idle"}
    with styled(theme):
        figure = make_figure(1.15 + 0.42 * len(rows))
        axes = figure.subplots()
        for y, (_, run, beats) in enumerate(rows):
            left = 0
            for name, amount in (beats | {"idle": max(0, run.cycles - sum(beats.values()))}).items():
                hatch = "////" if name == "idle" else None
                axes.barh(y, amount, left=left, height=0.62, color=theme.bus[name], hatch=hatch, linewidth=0)
                share = amount / max(1, run.cycles)
                if name != "idle" and amount > 0.07 * max(r.cycles for r in runs):
                    axes.text(left + amount / 2, y, percent(share), ha="center", va="center",
                              color=_readable(theme.bus[name]))  # fmt: skip
                left += amount
            over = sum(beats.values()) - run.cycles
            note, colour = f"{compact(run.cycles)} cycles", theme.muted
            if over > 0:
                note, colour = f"{compact(over)} beats more than cycles", theme.bad
            axes.annotate(note, (left, y), (6, 0), textcoords="offset points", va="center", color=colour)
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, axes.get_xlim()[1] * 1.12)  # room for the notes
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"\.0+(?=\D)", "", compact(value))))
        axes.set_xlabel("cycles")
        axes.spines["left"].set_visible(False)
        plain_axes(axes, "x")
        keys = [
            Patch(facecolor=theme.bus[n], hatch="////" if n == "idle" else None, linewidth=0, label=names[n])
            for n in names
        ]
        figure.legend(handles=keys, loc="outside lower left", ncols=7, handlelength=1.2, columnspacing=1.1,
                      labelcolor=theme.muted)  # fmt: skip
    return figure


def _beats(run: RunData) -> int:
    return sum(run.counters.get(f"beats_{name}", 0) for name in (*_READS, "written"))


def _readable(colour: str) -> str:
    """Return black or white, whichever stands out more from a colour."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def units_figure(report: ReportData, theme: Theme = LIGHT) -> Figure:
    """Draw the share of each run's cycles in which each unit was busy, and in which something waited."""
    runs = report.runs
    names = sorted({name for run in runs for name in run.counters if name.startswith("busy_")}, key=_order(runs[0]))
    stalls = sorted({name for run in runs for name in run.counters if name.startswith("stall_")}, key=_order(runs[0]))
    groups = [("Unit busy", names), ("Waiting", stalls)]
    groups = [(title, members) for title, members in groups if members] or [("Unit busy", [])]
    with styled(theme):
        tallest = max(1, *(len(members) for _, members in groups))
        figure = make_figure(1.0 + tallest * (0.17 * len(runs) + 0.16))
        every = figure.subplots(1, len(groups), squeeze=False)[0]
        colours = theme.runs(len(runs))
        for axes, (title, members) in zip(every, groups, strict=True):
            height = 0.8 / len(runs)
            for number, run in enumerate(runs):
                shares = [run.counters.get(name, 0) / max(1, run.cycles) for name in members]
                places = np.arange(len(members)) + (number - (len(runs) - 1) / 2) * height
                axes.barh(places, shares, height=0.86 * height, color=colours[number])
                for place, share in zip(places, shares, strict=True):
                    axes.annotate(percent(share), (share, place), (3, 0), textcoords="offset points", va="center",
                                  fontsize=7.5, color=theme.muted)  # fmt: skip
            axes.set_title(title, color=theme.muted, fontsize=9)
            axes.set_yticks(range(len(members)), [name.partition("_")[2] for name in members])
            axes.set_ylim(tallest - 0.5, -0.5)  # bars of both groups are equally thick
            axes.set_xlim(0, 1.12)
            axes.set_xticks(np.linspace(0, 1, 5))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value, 0)))
            axes.spines["left"].set_visible(False)
            plain_axes(axes, "x")
        keys = [Patch(color=colour, label=run.title) for colour, run in zip(colours, runs, strict=True)]
        figure.legend(handles=keys, loc="outside lower left", ncols=min(8, len(runs)), handlelength=1.2,
                      labelcolor=theme.muted)  # fmt: skip
    return figure


def _order(run: RunData) -> Callable[[str], tuple[int, str]]:
    """Return a key that keeps the hardware's order of counters; strangers come last, by name."""
    known = {name: number for number, name in enumerate(run.counters)}
    return lambda name: (known.get(name, len(known)), name)
