"""Comparison of a hardware run with the twin: every integer of every operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .compiler.ops import OpTag
from .engines.pysim import HardwareRun, TraceRecord
from .twin import GenerationResult

__all__ = ["Comparison", "Difference", "compare"]

#: Operations whose words hold whole tiles of positions, of which only the first T count.
_POSITIONS = {OpTag.SCORE, OpTag.WEIGHT, OpTag.PROB}


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ."""

    position: int
    layer: int
    operation: str
    lane: int
    index: int
    expected: int | None
    actual: int | None

    def __str__(self) -> str:
        return (
            f"position {self.position}, layer {self.layer}, {self.operation}, lane {self.lane}, index {self.index}: "
            f"expected {self.expected}, got {self.actual}"
        )


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: counts, and the first difference or None."""

    tokens: int
    operations: int
    integers: int
    difference: Difference | None


def _collect(records: list[TraceRecord]) -> dict[tuple[int, int, int, OpTag], list[int]]:
    """Join the words of each operation; a new embedding of lane 0 begins a new position."""
    position = -1
    joined: dict[tuple[int, int, int, OpTag], list[int]] = {}
    for record in records:
        tag = OpTag(record.tag)
        if tag is OpTag.EMBED and record.lane == 0 and record.addr == 0:
            position += 1
        joined.setdefault((position, record.layer, record.lane, tag), []).extend(record.values)
    return joined


def _first(expected: np.ndarray, actual: np.ndarray) -> int | None:
    """Return the first index at which two vectors differ, the end of the shorter one included."""
    common = min(len(expected), len(actual))
    unequal = np.flatnonzero(expected[:common] != actual[:common])
    if len(unequal):
        return int(unequal[0])
    return common if len(expected) != len(actual) else None


def compare(run: HardwareRun, twin: GenerationResult) -> Comparison:
    """Compare tokens and, where the run has a trace, every operation.

    Operations are checked in the order in which the hardware ran them; one that only one side ran is a difference.
    """
    difference = None
    operations = integers = 0
    joined = _collect(run.records)
    for (position, layer, lane, tag), values in joined.items():
        actual = np.asarray(values, dtype=np.int64)
        try:
            expected = np.asarray(twin.trace.get(position, layer, lane, tag), dtype=np.int64)  # type: ignore[union-attr]
        except KeyError:
            difference = Difference(position, layer, tag.name, lane, 0, None, values[0])
            break
        if tag in _POSITIONS:
            heads = len(expected) // (position + 1)
            actual = actual.reshape(heads, -1)[:, : position + 1].reshape(-1)
        index = _first(expected, actual)
        operations += 1
        integers += len(actual)
        if index is not None:
            difference = Difference(
                position, layer, tag.name, lane, index,
                int(expected[index]) if index < len(expected) else None,
                int(actual[index]) if index < len(actual) else None,
            )  # fmt: skip
            break
    if run.records and difference is None:
        # Slots are written by the pass that adds the residual, whose words are traced as MLP_RES.
        for entry in twin.trace:  # type: ignore[union-attr]
            if entry.tag is not OpTag.SLOT and entry[:4] not in joined:
                difference = Difference(*entry[:2], entry.tag.name, entry.lane, 0, int(entry.values[0]), None)
                break
    tokens = np.asarray(twin.tokens)
    if difference is None and not np.array_equal(tokens, run.tokens):
        lane, position = (int(x) for x in np.argwhere(tokens != run.tokens)[0])
        difference = Difference(position, 0, "TOKEN", lane, 0, int(tokens[lane, position]),
                                int(run.tokens[lane, position]))  # fmt: skip
    return Comparison(tokens.size, operations, integers, difference)
