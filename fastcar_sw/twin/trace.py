"""Recording of every intermediate integer, in the order and with the contents that the hardware's trace has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..compiler.ops import OpTag

__all__ = ["NO_TRACE", "Recorder", "Trace", "TraceEntry"]

#: Smallest types that hold the values; all others are int32.
_TYPES: dict[OpTag, type[np.generic]] = dict.fromkeys(
    (OpTag.ATTN_ACT, OpTag.QUERY_RAW, OpTag.QUERY, OpTag.KEY, OpTag.VALUE, OpTag.PROB, OpTag.OUT_ACT,
    OpTag.MLP_ACT,
     OpTag.HIDDEN_ACT, OpTag.FINAL_ACT), np.int8,
) | {OpTag.WEIGHT: np.uint16, OpTag.SLOT: np.int16}  # fmt: skip


class TraceEntry(NamedTuple):
    """One operation of one lane.

    Attributes
    ----------
    position, layer, lane, tag
        Which; embeddings have layer 0, the final norm and the logits the number of layers.
    values
        Integers, one axis.
    """

    position: int
    layer: int
    lane: int
    tag: OpTag
    values: np.ndarray


class Recorder:
    """Takes the results of operations; this one drops them."""

    def at(self, position: int, layer: int) -> None:
        """Say which position and layer the following operations belong to."""

    def add(self, tag: OpTag, values: Tensor, lanes: Tensor | None = None) -> None:
        """Record integers (lanes, ...); ``lanes`` names the lanes of the rows, all when it is missing."""

    def add_with_exponent(self, tag: OpTag, exponents: Tensor, values: Tensor, lanes: Tensor | None = None) -> None:
        """Record vectors along the last axis, each preceded by its exponent (length 1 along that axis)."""


NO_TRACE = Recorder()


class Trace(Recorder):
    """All operations of a run, in memory.

    Parameters
    ----------
    sink
        Called with each entry instead of keeping it.
    """

    def __init__(self, sink: Callable[[TraceEntry], object] | None = None) -> None:
        self._sink = sink
        self._where = (0, 0)
        #: (position, layer, tag) -> lanes (None: row = lane) and rows.
        self._rows: dict[tuple[int, int, OpTag], tuple[list[int] | None, np.ndarray]] = {}

    def at(self, position: int, layer: int) -> None:
        """Say which position and layer the following operations belong to."""
        self._where = (position, layer)

    def add(self, tag: OpTag, values: Tensor, lanes: Tensor | None = None) -> None:
        """Record integers (lanes, ...); ``lanes`` names the lanes of the rows, all when it is missing."""
        rows = values.reshape(values.shape[0], -1).cpu().numpy().astype(_TYPES.get(tag, np.int32))
        names = None if lanes is None else lanes.tolist()
        if self._sink is None:
            self._rows[*self._where, tag] = (names, rows)
            return
        for row, lane in enumerate(range(len(rows)) if names is None else names):
            self._sink(TraceEntry(*self._where, lane, tag, rows[row]))

    def add_with_exponent(self, tag: OpTag, exponents: Tensor, values: Tensor, lanes: Tensor | None = None) -> None:
        """Record vectors along the last axis, each preceded by its exponent (length 1 along that axis)."""
        self.add(tag, torch.cat((exponents.to(values.dtype), values), -1), lanes)

    def get(self, position: int, layer: int, lane: int, tag: OpTag) -> np.ndarray:
        """Return the integers of one operation.

        Raises
        ------
        KeyError
            When it did not run there.
        """
        if (position, layer, tag) in self._rows:
            names, rows = self._rows[position, layer, tag]
            if names is None and 0 <= lane < len(rows):
                return rows[lane]
            if names is not None and lane in names:
                return rows[names.index(lane)]
        raise KeyError(f"{tag.name} did not run at position {position}, layer {layer}, lane {lane}")

    def __iter__(self) -> Iterator[TraceEntry]:
        """Yield every entry in the order in which the operations ran, lane by lane within an operation."""
        for (position, layer, tag), (names, rows) in self._rows.items():
            for row, lane in enumerate(range(len(rows)) if names is None else names):
                yield TraceEntry(position, layer, lane, tag, rows[row])

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._rows.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all integers."""
        return sum(rows.nbytes for _, rows in self._rows.values())
