"""Comparison of a hardware run with the twin: every integer of every operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from .compiler.ops import OpTag
from .driver import HardwareRun
from .engines.link import TraceWords
from .twin import GenerationResult
from .twin.trace import Trace

__all__ = ["Comparator", "Comparison", "Difference", "compare"]

#: Operations whose words hold whole tiles of positions, of which only the first T count.
_POSITIONS = {OpTag.SCORE, OpTag.WEIGHT, OpTag.PROB}
#: Slots are written by the pass that adds the residual, whose words are traced as MLP_RES.
_UNTRACED = {OpTag.SLOT}


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ; a value that one side does not have is None."""

    position: int
    layer: int
    operation: str
    lane: int
    index: int
    expected: int | None
    actual: int | None

    def __str__(self) -> str:
        return (
            f"position {self.position}, layer {self.layer}, operation {self.operation}, lane {self.lane}, "
            f"index {self.index}: twin has {self.expected}, hardware has {self.actual}"
        )


@dataclass(frozen=True)
class Comparison:
    """What was compared, and the first difference or None."""

    tokens: int
    decisions: int
    operations: int
    integers: int
    difference: Difference | None

    @property
    def mismatches(self) -> int:
        """0, or 1: everything behind the first difference follows from it."""
        return int(self.difference is not None)


def _first(expected: np.ndarray, actual: np.ndarray) -> int | None:
    """Return the first index at which two vectors differ, the end of the shorter one included."""
    common = min(len(expected), len(actual))
    unequal = np.flatnonzero(expected[:common] != actual[:common])
    if len(unequal):
        return int(unequal[0])
    return common if len(expected) != len(actual) else None


def _item(values: np.ndarray, index: int) -> int | None:
    return int(values[index]) if index < len(values) else None


class Comparator:
    """Compares a trace piece by piece, so that it never has to be held as a whole.

    Parameters
    ----------
    twin
        A run with its trace.

    Raises
    ------
    ValueError
        When the twin's run has no trace.
    """

    def __init__(self, twin: GenerationResult) -> None:
        if twin.trace is None:
            raise ValueError("the twin's run must have a trace")
        self._trace: Trace = twin.trace
        self._twin = twin
        self._expected = Counter(entry.position for entry in twin.trace if entry.tag not in _UNTRACED)
        self._rest: list[TraceWords] = []
        self._position = 0
        self._operations = self._integers = 0
        self._difference: Difference | None = None

    def feed(self, words: TraceWords) -> None:
        """Take the next words, and compare the positions that they complete."""
        if self._difference is None and len(words):
            self._rest.append(words)
            self._positions(final=False)

    def finish(self, run: HardwareRun) -> Comparison:
        """Compare what is left, then decisions and tokens."""
        if self._difference is None:
            self._positions(final=True)
        if self._difference is None and self._position != len(self._expected):
            self._difference = Difference(self._position, 0, OpTag.EMBED.name, 0, 0, None, None)
        decisions = 0
        if run.compute is not None and self._difference is None:
            decisions = run.compute.size
            self._decisions(run.compute)
        if self._difference is None:
            self._tokens(run.tokens)
        return Comparison(run.tokens.size, decisions, self._operations, self._integers, self._difference)

    def _positions(self, *, final: bool) -> None:
        """Cut the words at the first word of an embedding of lane 0, with which every position begins."""
        if not self._rest:
            return
        words = TraceWords.join(self._rest)
        starts = np.flatnonzero((words.tag == OpTag.EMBED) & (words.lane == 0) & (words.addr == 0))
        ends = np.append(starts[1:], len(words)) if final else starts[1:]
        begin = 0
        for end in ends.tolist():
            self._compare_position(words[begin:end])
            begin = end
            if self._difference is not None:
                break
            self._position += 1
        self._rest = [words[begin:]] if begin < len(words) else []

    def _compare_position(self, words: TraceWords) -> None:
        """Compare the operations of a position, in the order in which the hardware began them."""
        key = (words.layer * 32 + words.lane) * 256 + words.tag
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        flat = words.data[order][np.arange(words.data.shape[1]) < words.count[order][:, None]]
        ends = np.cumsum(words.count[order])
        limits = np.append(ends[starts] - words.count[order][starts], len(flat)).tolist()
        firsts = order[starts]
        for group in np.argsort(firsts, kind="stable").tolist():
            first = firsts[group]
            layer, lane = int(words.layer[first]), int(words.lane[first])
            self._compare_operation(layer, lane, int(words.tag[first]), flat[limits[group] : limits[group + 1]])
            if self._difference is not None:
                return
        # Every operation that the hardware ran is one of the twin's, so fewer means that some are missing.
        if len(firsts) < self._expected[self._position]:
            self._find_missing(set(key[firsts].tolist()))

    def _compare_operation(self, layer: int, lane: int, tag: int, actual: np.ndarray) -> None:
        try:
            name = OpTag(tag)
            expected = self._trace.get(self._position, layer, lane, name)
        except (KeyError, ValueError):
            text = OpTag(tag).name if tag in set(OpTag) else f"unknown tag {tag}"
            self._difference = Difference(self._position, layer, text, lane, 0, None, _item(actual, 0))
            return
        if name in _POSITIONS:
            heads = len(expected) // (self._position + 1)
            if len(actual) % heads == 0:
                actual = actual.reshape(heads, -1)[:, : self._position + 1].reshape(-1)
        index = _first(expected, actual)
        self._operations += 1
        self._integers += len(actual)
        if index is not None:
            self._difference = Difference(
                self._position, layer, name.name, lane, index, _item(expected, index), _item(actual, index)
            )

    def _find_missing(self, found: set[int]) -> None:
        for entry in self._trace:
            if entry.position != self._position or entry.tag in _UNTRACED:
                continue
            if (entry.layer * 32 + entry.lane) * 256 + entry.tag not in found:
                self._difference = Difference(
                    entry.position, entry.layer, entry.tag.name, entry.lane, 0, _item(entry.values, 0), None
                )
                return

    def _decisions(self, compute: np.ndarray) -> None:
        expected = self._twin.compute.numpy()
        if compute.shape != expected.shape:
            place = min(len(compute), len(expected))
            self._difference = Difference(place, 0, "DECISION", 0, 0, None, None)
            return
        unequal = np.argwhere(compute != expected)
        if len(unequal):
            position, layer, lane = (int(x) for x in unequal[0])
            self._difference = Difference(
                position, layer, "DECISION", lane, 0,
                int(expected[position, layer, lane]), int(compute[position, layer, lane]),
            )  # fmt: skip

    def _tokens(self, actual: np.ndarray) -> None:
        expected = self._twin.tokens.numpy()
        unequal = np.argwhere((expected != actual).T)
        if len(unequal):
            position, lane = (int(x) for x in unequal[0])
            self._difference = Difference(
                position, 0, "TOKEN", lane, 0, int(expected[lane, position]), int(actual[lane, position])
            )


def compare(run: HardwareRun, twin: GenerationResult) -> Comparison:
    """Compare tokens, decisions and every traced operation of a run that holds its trace.

    Operations are checked in the order in which the hardware ran them; one that only one side ran is a difference.
    """
    comparator = Comparator(twin)
    comparator.feed(run.trace)
    return comparator.finish(run)
