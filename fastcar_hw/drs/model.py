"""Transaction-level model of gate, scheduler and dispatcher: the same integers, in Python.

The functions are the rules one by one; `DrsModel` keeps the state between commands exactly as `Gate` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..config import AcceleratorConfig
from ..isa import Cond
from .policy import Definition, GateKind

__all__ = ["DrsModel", "Mapping", "decide", "runs", "schedule", "static_place"]


@dataclass(frozen=True)
class Mapping:
    """Mapping registers after a SCHEDULE.

    Attributes
    ----------
    places
        ``(core, index)`` of each computing lane.
    members
        For each core its lanes, in the order of their index.
    cycles
        Cycles from the acceptance of the command until the mapping can be used.
    """

    places: dict[int, tuple[int, int]]
    members: tuple[tuple[int, ...], ...]
    cycles: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Computing lanes of each core."""
        return tuple(len(lanes) for lanes in self.members)


def static_place(lane: int, cores: int) -> tuple[int, int]:
    """Return the place of a lane when nothing is scheduled: core = lane mod cores."""
    return lane % cores, lane // cores


def schedule(compute: Sequence[bool], cores: int, *, static_map: bool = False) -> Mapping:
    """Fill the mapping registers.

    Parameters
    ----------
    compute
        The index register, one entry an active lane.
    cores
        Number of cores.
    static_map
        Keep core = lane mod cores, instead of the round-robin.
    """
    members: list[list[int]] = [[] for _ in range(cores)]
    places = {}
    for turn, lane in enumerate(lane for lane, computes in enumerate(compute) if computes):
        core = (lane if static_map else turn) % cores
        places[lane] = (core, len(members[core]))
        members[core].append(lane)
    return Mapping(places, tuple(map(tuple, members)), len(compute) + 1)


def decide(kind: GateKind, definition: Definition, *, eligible: bool, score: int = 0, threshold: int = 0,
           forced: bool = True) -> bool:  # fmt: skip
    """Return whether a lane computes (numerics, section 11); ``forced`` is the recorded decision."""
    if not eligible or kind is GateKind.NEVER:
        return True
    if kind is GateKind.ALWAYS:
        return False
    if kind is GateKind.FORCED:
        return bool(forced)
    return score < threshold if definition is Definition.PAPER else score <= threshold


def runs(cond: Cond, lane: int, compute: Sequence[bool], *, eligible: bool, kind: GateKind,
         definition: Definition) -> bool:  # fmt: skip
    """Return whether an instruction runs; ``compute`` has one entry an active lane."""
    scores = eligible and kind is GateKind.TAS
    return {
        Cond.ALWAYS: lambda: True,
        Cond.COMPUTE: lambda: bool(compute[lane]),
        Cond.REPLAY: lambda: not compute[lane],
        Cond.ANY: lambda: any(compute),
        Cond.TAS: lambda: scores,
        Cond.PAPER: lambda: scores and definition is Definition.PAPER,
        Cond.RAW: lambda: scores and definition is Definition.REFERENCE_CODE,
        Cond.FORCED: lambda: eligible and kind is GateKind.FORCED,
    }[cond]()


@dataclass
class DrsModel:
    """Gate, scheduler and dispatcher at the level of their commands.

    Parameters
    ----------
    config
        The accelerator.
    lanes
        Active lanes.
    kind, definition, static_map, thresholds, head_weights
        The registers.

    Attributes
    ----------
    compute
        Index register, one entry an active lane.
    mapping
        Result of the last `schedule`.
    eligible_count, replayed_count
        Decisions by ``(layer, lane)``.
    drs_cycles
        Cycles spent in `schedule`.
    """

    config: AcceleratorConfig
    lanes: int
    kind: GateKind = GateKind.TAS
    definition: Definition = Definition.PAPER
    static_map: bool = False
    thresholds: Sequence[int] = ()
    head_weights: Sequence[int] = ()
    layer: int = 0
    eligible: bool = False
    compute: list[bool] = field(default_factory=list)
    scores: list[int] = field(default_factory=list)
    mapping: Mapping = Mapping({}, (), 0)
    eligible_count: dict[tuple[int, int], int] = field(default_factory=dict)
    replayed_count: dict[tuple[int, int], int] = field(default_factory=dict)
    drs_cycles: int = 0

    def begin(self, layer: int, *, eligible: bool) -> None:
        """Start a layer: every lane computes and has no score."""
        self.layer, self.eligible = layer, eligible
        self.compute = [True] * self.lanes
        self.scores = [0] * self.lanes

    def tas(self, lane: int, head: int, score: int) -> None:
        """Add the score of one head."""
        self.scores[lane] += self.head_weights[head] * score

    def decide(self, lane: int, forced: int = 0) -> bool:
        """Decide for a lane; ``forced`` has a bit a lane, 1 = compute.  Returns whether the lane computes."""
        computes = decide(
            self.kind, self.definition, eligible=self.eligible, score=self.scores[lane],
            threshold=self.thresholds[self.layer] if self.thresholds else 0, forced=bool(forced >> lane & 1),
        )  # fmt: skip
        self.compute[lane] = computes
        for counts, step in ((self.eligible_count, self.eligible), (self.replayed_count, not computes)):
            counts[self.layer, lane] = counts.get((self.layer, lane), 0) + step
        return computes

    def schedule(self) -> Mapping:
        """Fill the mapping registers from the index register."""
        self.mapping = schedule(self.compute, self.config.cores, static_map=self.static_map)
        self.drs_cycles += self.mapping.cycles
        return self.mapping

    def runs(self, cond: Cond, lane: int = 0) -> bool:
        """Return whether an instruction of a lane runs."""
        return runs(cond, lane, self.compute, eligible=self.eligible, kind=self.kind, definition=self.definition)

    def dispatch(self, lanes: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the place of each lane whose MLP runs; replayed lanes are dropped."""
        return {lane: self.mapping.places[lane] for lane in lanes if self.compute[lane]}
