"""The most that replay could save: what no run can beat by much, from shapes and the dense run's traffic.

A beat of the memory takes one cycle; a beat of weights takes one for each *pass*, because the array reads a tile again
for the lanes that did not fit into its rows.  With one pass this is the bound of the method: 1 / (1 - m r), m = the
MLP's share of the bytes moved, r = the share of the MLPs that are replayed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import ReportData, RunData

__all__ = ["bound_at", "bound_of_run", "mlp_share"]


def _passes(computing: np.ndarray, accelerator: dict[str, Any]) -> np.ndarray:
    """Return the traversals of a tile for a number of computing lanes, spread evenly over the cores."""
    busiest = (computing + accelerator["cores"] - 1) // accelerator["cores"]
    return (busiest + accelerator["rows"] - 1) // accelerator["rows"]


def _mlp_cycles(passes: np.ndarray, model: dict[str, Any], cols: int) -> np.ndarray:
    """Return the cycles of one MLP: per tile two beats of scales, and one a K-step and pass."""
    hidden, ffn = model["hidden"], model["ffn"]
    cycles = 2 * (ffn // cols) * (2 + passes * hidden) + (hidden // cols) * (2 + passes * ffn)
    # Where every lane replays, no weight is fetched at all.
    return np.where(passes > 0, cycles, 0)


def _floor(report: ReportData) -> tuple[float, float] | None:
    """Return the least cycles of the dense run and, of those, the MLP's; None where the shapes do not say."""
    dense, model, accelerator = report.runs[0], report.model, report.accelerator
    if not {"hidden", "ffn"} <= model.keys() or not {"cores", "rows", "cols"} <= accelerator.keys():
        return None
    reads = ("weights", "kv", "replay", "params", "control")
    beats = {name: dense.counters.get(f"beats_{name}", 0) for name in reads}
    passes = _passes(np.array(dense.lanes), accelerator)
    decoded = dense.compute.shape[0] * dense.compute.shape[1]
    mlp = float(decoded * _mlp_cycles(passes, model, accelerator["cols"]))
    rest = beats["weights"] - decoded * int(_mlp_cycles(np.array(1), model, accelerator["cols"]))
    if rest < 0 or mlp == 0:
        return None  # counters of another model
    # The other matrices are about `hidden` wide.
    rest_cycles = rest * (2 + int(passes) * model["hidden"]) / (2 + model["hidden"])
    return mlp + rest_cycles + sum(beats.values()) - beats["weights"], mlp


def mlp_share(report: ReportData) -> float | None:
    """Return the MLP's share of the least cycles of the dense run, or None where the shapes do not say."""
    floor = _floor(report)
    return None if floor is None else floor[1] / floor[0]


def bound_at(share: float, ratio: np.ndarray) -> np.ndarray:
    """Return the speed-up when a part of the MLP's cycles, ``ratio``, falls away; ``share`` as of `mlp_share`."""
    return 1 / (1 - share * ratio)


def bound_of_run(report: ReportData, run: RunData) -> float | None:
    """Return the largest speed-up that a run's own decisions allow, or None where the shapes do not say.

    Lanes share the stream of weights, so replay saves passes, and the stream only where every lane replays: with
    several lanes this is less than `bound_at` of the ratio.
    """
    floor = _floor(report)
    if floor is None or run.compute.shape != report.runs[0].compute.shape:
        return None
    total, mlp = floor
    passes = _passes(run.compute.sum(2), report.accelerator)
    spent = float(_mlp_cycles(passes, report.model, report.accelerator["cols"]).sum())
    return total / (total - mlp + spent)
