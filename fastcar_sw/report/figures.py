"""Pictures of replay: where the hardware computed and where it replayed, and what that brought."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from .bound import bound_at, bound_of_run, mlp_share
from .data import ReportData, RunData
from .drawing import make_figure, plain_axes, styled
from .formats import percent, times
from .frames import allowed
from .palette import LIGHT, Theme

__all__ = ["replay_figure", "speedup_figure"]


def replay_figure(
    report: ReportData, run: RunData, theme: Theme = LIGHT, *, lane: int | None = None, legend: bool = True
) -> Figure:
    """Draw layer by position: which part of the MLPs was computed.

    Parameters
    ----------
    report
        For the frames and the prompt.
    run
        The run.
    theme
        Colours.
    lane
        One lane; the mean of all when missing.
    legend
        Whether the colours are named.

    Returns
    -------
    matplotlib.figure.Figure
        One picture.
    """
    computed = run.compute.mean(2) if lane is None else run.compute[:, :, lane].astype(float)
    positions, layers = computed.shape
    eligible = allowed(run)
    with styled(theme):
        figure = make_figure((0.95 if legend else 0.7) + max(0.7, min(4.0, 0.24 * layers)))
        axes = figure.subplots()
        image = theme.work(computed.T)
        image[:, ~eligible] = to_rgba(theme.barred)
        axes.imshow(image, aspect="auto", interpolation="none", extent=(0, positions, layers - 0.5, -0.5))
        _frame_ticks(axes, report, positions, theme)
        step = -(-layers // 16)
        axes.set_yticks(range(0, layers, step))
        axes.set_ylabel("layer")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        _layer_ratios(axes, 1 - computed[eligible].mean(0) if eligible.any() else None, step, layers, theme)
        if legend:
            keys = [
                Patch(color=theme.accent, label="computed"),
                Patch(color=theme.replayed, label="replayed"),
                Patch(color=theme.barred, label="computed, replay not allowed"),
            ]
            figure.legend(handles=keys, loc="outside lower left", ncols=3, handlelength=1.2, labelcolor=theme.muted)
    return figure


def _frame_ticks(axes: Axes, report: ReportData, positions: int, theme: Theme) -> None:
    """Mark frames by lines, and name them; the prompt has a bar above it."""
    size = report.tokens_per_frame
    frames = -(-positions // size)
    for frame in range(1, frames):
        axes.axvline(frame * size, color=theme.surface, linewidth=1.6)
    step = -(-frames // 16)
    shown = range(0, frames, step)
    names = [f"frame {frame}" if frame == 0 else f"{frame}" for frame in shown]
    axes.set_xticks([min((frame + 0.5) * size, positions) for frame in shown], names)
    prompt = min(report.prompt_frames * size, positions)
    if prompt:
        above = axes.get_xaxis_transform()
        axes.plot([0, prompt], [1.06, 1.06], transform=above, color=theme.muted, linewidth=1.4, clip_on=False)
        axes.text(prompt / 2, 1.1, "prompt", transform=above, ha="center", va="bottom", color=theme.muted)


def _layer_ratios(axes: Axes, ratios: np.ndarray | None, step: int, layers: int, theme: Theme) -> None:
    """Write the replay ratio of the layers at the right margin."""
    if ratios is None:
        return
    margin = axes.get_yaxis_transform()
    for layer in range(0, layers, step):
        text = percent(ratios[layer])
        axes.text(1.008, layer, text, transform=margin, va="center", color=theme.ink)
    axes.text(1.008, 1.1, "replayed", transform=axes.transAxes, va="bottom", color=theme.muted)


def speedup_figure(report: ReportData, theme: Theme = LIGHT) -> Figure:
    """Draw the speed-up of each run over the share of all MLPs that it replayed, with the bounds of `bound.py`."""
    runs, share = report.runs, mlp_share(report)
    with styled(theme):
        figure = make_figure(3.9)
        axes = figure.subplots()
        curve: Any = {"color": theme.muted, "linewidth": 1.3, "linestyle": (0, (5, 3))}
        keys = [Line2D([], [], color=theme.accent, marker="o", markersize=7, linestyle="", label="measured")]
        if share is not None:
            ratio = np.linspace(0, 1, 201)
            axes.plot(ratio, bound_at(share, ratio), **curve)
            label = f"bound, if every replay saves its MLP ({percent(share)} of the work is MLP)"
            keys.append(Line2D([], [], label=label, **curve))
        for run in runs:
            bound = bound_of_run(report, run)
            if bound is not None:
                axes.plot([run.replay_ratio_all] * 2, [run.speedup, bound], color=theme.muted, linewidth=0.8)
                axes.plot(run.replay_ratio_all, bound, marker="_", markersize=13, markeredgewidth=1.6, color=theme.ink)
        if share is not None:
            keys.append(Line2D([], [], color=theme.ink, marker="_", markersize=11, markeredgewidth=1.6, linestyle="",
                               label="bound of the run's own decisions"))  # fmt: skip
        for run in runs:
            colour = theme.muted if run.gate == "never" else theme.accent
            axes.plot(run.replay_ratio_all, run.speedup, marker="o", markersize=8, color=colour)
            axes.annotate(f"{run.title}\n{times(run.speedup)}", (run.replay_ratio_all, run.speedup), (9, -4),
                          textcoords="offset points", va="top", linespacing=1.25)  # fmt: skip
        ceiling = float(allowed(runs[-1]).mean())
        top = max([run.speedup for run in runs] + ([bound_at(share, np.array(ceiling))] if share is not None else []))
        axes.set_xlim(-0.01, 1)
        axes.set_ylim(min([0.9] + [run.speedup - 0.15 for run in runs]), 1 + 1.18 * (float(top) - 1) + 0.05)
        if ceiling < 1:
            axes.axvspan(ceiling, 1, color=theme.bus["idle"], alpha=0.6, linewidth=0)
            axes.text((ceiling + 1) / 2, 0.5, "replay not allowed", transform=axes.get_xaxis_transform(), rotation=90,
                      ha="center", va="center", color=theme.muted)  # fmt: skip
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value, 0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: times(value)))
        axes.set_xlabel("replayed, of all MLPs")
        axes.set_ylabel("speed-up")
        plain_axes(axes, "both")
        figure.legend(handles=keys, loc="outside lower left", ncols=3, labelcolor=theme.muted)
    return figure
