"""What the pictures share: fonts, lines, colours, and how they become files.

Figures are matplotlib objects of their own, never pyplot's global state, so they can be made in any order.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .palette import Theme

__all__ = ["make_figure", "plain_axes", "styled", "to_svg"]

#: Inches; a page shows an inch as about 100 pixels.
_WIDTH = 9.6
_STYLE: Any = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: small, sharp, in the reader's own font
    "svg.hashsalt": "fastcar",  # the same report gives the same bytes
    "text.parse_math": False,  # a name may contain a dollar sign
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "hatch.linewidth": 0.6,
}


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Give what is drawn inside the block the look of a theme."""
    colours: Any = {
        "text.color": theme.ink,
        "axes.labelcolor": theme.muted,
        "axes.edgecolor": theme.line,
        "xtick.color": theme.line,
        "ytick.color": theme.line,
        "xtick.labelcolor": theme.muted,
        "ytick.labelcolor": theme.ink,
        "grid.color": theme.line,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.frameon": False,
        "hatch.color": theme.muted,
    }
    with rc_context(_STYLE | colours):
        yield


def make_figure(height: float) -> Figure:
    """Return an empty figure of so many inches, as wide as the page."""
    return Figure(figsize=(_WIDTH, height), layout="constrained")


def plain_axes(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    """Take ticks and the line beside bars away; lines of the grid ("x", "y" or "both") stay behind what is drawn."""
    axes.tick_params(length=0)
    axes.grid(axis=grid, linewidth=0.7)
    axes.set_axisbelow(True)


def to_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG file without a date: the same figure gives the same bytes."""
    with rc_context(_STYLE), io.BytesIO() as file:
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = file.getvalue().decode()
    # Matplotlib measures with the font that it ships; the reader's own is narrower, so everything fits.
    return text.replace("'DejaVu Sans'", "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans'").encode()
