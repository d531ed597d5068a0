"""What a report says in words: verdict, figures that matter most, what was run, and the single lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .data import ReportData
from .formats import MISSING, count, decimal, percent, plural, times

__all__ = [
    "BANDWIDTH_GOAL",
    "BANDWIDTH_TARGET",
    "DRS_TARGET",
    "Fact",
    "Verdict",
    "key_figures",
    "setting",
    "single_lane",
    "verdict",
]

#: What the design asks of a single lane: share of the bus's cycles; the bar of this version, and the goal.
BANDWIDTH_TARGET = 0.80
BANDWIDTH_GOAL = 0.95
#: What the design asks of the scheduler: cycles a decision and lane.
DRS_TARGET = 2


@dataclass(frozen=True)
class Verdict:
    """What the comparison with the twin says.

    Attributes
    ----------
    state
        ``good``, ``bad``, or ``unsure`` where something was not compared.
    mark
        The same as a sign, for those who do not see the colour.
    headline, detail
        In a few words; in one or two sentences.
    """

    state: str
    mark: str
    headline: str
    detail: str


def verdict(report: ReportData) -> Verdict:
    """Return the verdict over all runs and the single lane."""
    runs = report.runs
    single = (report.single_lane or {}).get("mismatches")
    covered = (
        f"{plural(sum(run.integers_compared for run in runs), 'integer')} of "
        f"{plural(sum(run.operations_compared for run in runs), 'operation')} and "
        f"{plural(sum(run.tokens_compared for run in runs), 'token')}, in {plural(len(runs), 'run')} of the RTL, "
        "were compared with the twin."
    )
    wrong = [(run.title, run.mismatches) for run in runs if run.mismatches]
    wrong += [("the single lane", single)] if single else []
    if wrong:
        total = sum(number for _, number in wrong)
        headline = "1 mismatch" if total == 1 else f"{count(total)} mismatches"
        places = ", ".join(f"{title} ({count(number)})" for title, number in wrong)
        return Verdict("bad", "✗", headline, f"{covered} They differ in {places}.")
    bare = [run.title for run in runs if not run.integers_compared]
    if bare:
        detail = f"{covered} Nothing was compared in {', '.join(bare)}."
        return Verdict("unsure", "?", "Not every run was compared", detail)
    more = ", nor does any of the run with a single lane" if single == 0 else ""
    return Verdict("good", "✓", "Every integer equal", f"{covered} None differs{more}.")


@dataclass(frozen=True)
class Fact:
    """A figure, its name, and what belongs to it.

    Attributes
    ----------
    value, name, more
        Texts.
    reached
        Whether it reaches its target; None where it has none.
    """

    value: str
    name: str
    more: str = ""
    reached: bool | None = None


def key_figures(report: ReportData) -> list[Fact]:
    """Return the figures that matter most."""
    facts = []
    replays = [run for run in report.runs if run.gate != "never"]
    if replays:
        best = max(replays, key=lambda run: run.speedup)
        accuracy = best.quality.get("accuracy")
        more = f"{best.title}: {percent(best.replay_ratio_eligible)} of the eligible MLPs replayed"
        facts.append(Fact(times(best.speedup), "Best speed-up", f"{more}, accuracy {percent(accuracy)}"))
    single = report.single_lane or {}
    bandwidth = single.get("bandwidth_utilisation")
    if bandwidth is not None:
        more = f"bar: at least {percent(BANDWIDTH_TARGET)}; goal {percent(BANDWIDTH_GOAL)}"
        facts.append(Fact(percent(bandwidth), "Bandwidth, 1 lane", more, bandwidth >= BANDWIDTH_TARGET))
    dense = report.runs[0]
    more = f"{dense.title}; memory latency {plural(report.memory_latency, 'cycle')}"
    facts.append(Fact(percent(dense.bandwidth_utilisation), f"Bandwidth, {plural(dense.lanes, 'lane')}", more))
    cost = max(run.drs_cycles / (run.compute.shape[0] * run.compute.shape[1]) for run in report.runs)
    target = DRS_TARGET * dense.lanes
    more = f"a layer, {plural(dense.lanes, 'lane')}; target: at most {target}"
    facts.append(Fact(decimal(cost), "DRS cycles", more, cost <= target))
    return facts


def setting(report: ReportData) -> list[Fact]:
    """Return what was run."""
    run, model, accelerator = report.runs[0], report.model, report.accelerator
    height, width = run.video.shape[2:4]
    frame = f"{width}×{height} pixels and {plural(report.tokens_per_frame, 'token')}"
    return [
        Fact(f"{plural(run.lanes, 'lane')} side by side; {plural(report.prompt_frames, 'prompt frame')} each, "
             f"continued to {plural(run.frames, 'frame')} of {frame}", "Videos"),
        Fact(_shape(model, "{layers} layers, hidden {hidden}, {heads} heads, MLP {ffn}, vocabulary {vocab}"), "Model"),
        Fact(_shape(accelerator, "{cores} × {rows} × {cols} PEs (cores, rows, columns), {weight_bits}-bit weights, "
                                 "up to {lanes} lanes"), "Accelerator"),
        Fact(f"{plural(report.memory_latency, 'cycle')} from a request to its first beat", "Memory latency"),
        Fact(", ".join(r.title for r in report.runs), "Runs"),
    ]  # fmt: skip


def _shape(fields: dict[str, Any], sentence: str) -> str:
    """Return the name of a configuration and its shape, as far as it is known."""
    name = str(fields.get("name", MISSING))
    try:
        return f"{name}: {sentence.format_map(fields)}"
    except KeyError:
        return name


def single_lane(report: ReportData) -> dict[str, Any] | None:
    """Return what the template says of the run with a single lane, or None."""
    single = report.single_lane
    if not single:
        return None
    bandwidth, drs = single.get("bandwidth_utilisation"), single.get("drs_cycles_per_layer")
    mismatches, accelerator = single.get("mismatches"), single.get("accelerator", MISSING)
    return {
        "accelerator": accelerator.get("name", MISSING) if isinstance(accelerator, dict) else accelerator,
        "cycles": count(single.get("cycles")),
        "bandwidth": percent(bandwidth),
        "share": f"{100 * min(1.0, max(0.0, bandwidth or 0.0)):.2f}%",
        "target": percent(BANDWIDTH_TARGET),
        "goal": percent(BANDWIDTH_GOAL),
        "target_at": f"{100 * BANDWIDTH_TARGET:g}%",
        "reached": bandwidth is not None and bandwidth >= BANDWIDTH_TARGET,
        "drs": decimal(drs),
        "drs_target": DRS_TARGET,
        "drs_reached": drs is not None and drs <= DRS_TARGET,
        "mismatches": count(mismatches),
        "equal": mismatches == 0,
    }
