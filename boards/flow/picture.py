"""A picture of what a design takes of its device."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .bitstream import BuildResult

__all__ = ["draw_utilisation"]


def draw_utilisation(result: BuildResult, path: Path) -> None:
    """Draw a bar for each resource, and one for the clock."""
    best = result.best
    clock = min(best.clocks.values(), key=lambda clock: clock["achieved_hz"] / clock["constraint_hz"])
    bars = [(column, use["used"] / use["available"], f"{use['used']:,} of {use['available']:,}")
            for column, use in best.resources.items()]  # fmt: skip
    need = clock["constraint_hz"] / clock["achieved_hz"]
    bars.append(("clock", need, f"needs {clock['constraint_hz'] / 1e6:g} of {clock['achieved_hz'] / 1e6:.1f} MHz"))
    figure = Figure(figsize=(7, 0.5 * len(bars) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, (_, share, text) in enumerate(bars):
        axes.barh(row, min(share, 1), color="#c0392b" if share > 1 else "#2471a3", height=0.6)
        axes.barh(row, 1, color="none", edgecolor="#999999", height=0.6, linewidth=0.8)
        inside = share > 0.5
        axes.text(min(share, 1) + (-0.01 if inside else 0.01), row, text, va="center",
                  ha="right" if inside else "left", color="white" if inside else "black")  # fmt: skip
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title(f"{result.board}, {result.configuration}: share of the device in use")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
