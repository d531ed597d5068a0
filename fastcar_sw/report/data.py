"""What a report is made from: plain numbers and arrays, no engine and no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ReportData", "RunData"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """One run of the hardware, compared with the twin.

    Attributes
    ----------
    gate, definition, threshold
        Policy; the threshold is None where the gate has none (``never``, ``always``).
    lanes, frames
        Sequences side by side; frames of each, prompt included.
    cycles, drs_cycles
        Cycles of the run; those that the DRS scheduler worked.
    replay_ratio_eligible, replay_ratio_all
        Replayed MLPs over eligible ones, and over all.
    bandwidth_utilisation
        Beats read over cycles.
    mac_utilisation
        MACs over (PEs * cycles).
    speedup
        Cycles of the dense run over those of this one.
    operations_compared, integers_compared, tokens_compared, mismatches
        What the comparison with the twin covered and found.
    quality
        ``cross_entropy``, ``accuracy``, ``psnr`` (dB, None where it is infinite or unknown).
    counters
        Every counter of the hardware: ``cycles``, ``busy_*`` (cycles that a unit worked; they overlap), ``stall_*``,
        ``beats_*`` (one beat is one cycle of the memory bus), ``macs``, ...
    compute
        bool (positions, layers, lanes): True = the MLP was computed, False = replayed.
    eligible
        bool (positions,): whether replay was allowed there.
    video
        uint8 (lanes, frames, height, width, 3).
    """

    gate: str
    definition: str
    threshold: float | None
    lanes: int
    frames: int
    cycles: int
    drs_cycles: int
    replay_ratio_eligible: float
    replay_ratio_all: float
    bandwidth_utilisation: float
    mac_utilisation: float
    speedup: float
    operations_compared: int
    integers_compared: int
    tokens_compared: int
    mismatches: int
    quality: dict[str, float | None]
    counters: dict[str, int]
    compute: np.ndarray
    eligible: np.ndarray
    video: np.ndarray

    @property
    def title(self) -> str:
        """Name in tables and captions."""
        if self.gate == "never":
            return "dense"
        return self.gate if self.threshold is None else f"{self.gate} {self.threshold:g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportData:
    """All of a demonstration.

    Attributes
    ----------
    model, accelerator
        Names and shapes: the ``to_dict()`` of the configurations.
    prompt_frames, tokens_per_frame
        Frames that were given; tokens of each.
    memory_latency
        Cycles from a read request to its first beat.
    runs
        The dense run first.
    single_lane
        The first performance bar: ``accelerator``, ``cycles``, ``bandwidth_utilisation``, ``drs_cycles_per_layer``,
        ``mismatches``; None when it was not measured.
    source
        Real continuation of the prompt, uint8 (lanes, frames, height, width, 3), or None.
    command, versions, seconds
        How it was made: command line; versions of the tools; wall-clock seconds by phase.
    differences
        The first difference of each run that has one, in words.
    """

    model: dict[str, Any]
    accelerator: dict[str, Any]
    prompt_frames: int
    tokens_per_frame: int
    memory_latency: int
    runs: tuple[RunData, ...]
    single_lane: dict[str, Any] | None = None
    source: np.ndarray | None = None
    command: str = "fastcar demo"
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
