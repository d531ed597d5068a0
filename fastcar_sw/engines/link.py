"""What every engine offers to the driver: registers, memory, time, and the trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np

from fastcar_hw.config import AcceleratorConfig

__all__ = ["Decisions", "EngineError", "Link", "MemorySettings", "RequestError", "TraceWords"]


class EngineError(RuntimeError):
    """The engine refused something, stopped with an error, or did not end; the message is one line that says where."""


class RequestError(EngineError):
    """What the engine was asked for does not fit it; nothing was started."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """How a simulated memory behaves.

    Parameters
    ----------
    latency
        Cycles from an accepted read request to its first beat.
    beats_per_cycle
        Bandwidth of each direction, above 0 and at most 1.
    stall
        Probability that a channel pauses in a cycle, 0 to below 1.
    seed
        Of the pauses.
    fail_at
        Byte whose beat is answered with SLVERR.

    Raises
    ------
    RequestError
        When a value is out of its range.
    """

    latency: int = 32
    beats_per_cycle: float = 1.0
    stall: float = 0.0
    seed: int = 0
    fail_at: int | None = None

    def __post_init__(self) -> None:
        for name, ok, rule in (
            ("latency", 1 <= self.latency <= 1 << 20, f"in 1..{1 << 20}"),
            ("beats_per_cycle", 1 / 256 <= self.beats_per_cycle <= 1, "in 1/256..1"),
            ("stall", 0 <= self.stall < 1, "at least 0 and below 1"),
            ("seed", 0 <= self.seed < 1 << 32, "a number of 32 bits"),
        ):
            if not ok:
                raise RequestError(f"memory {name} must be {rule}, not {getattr(self, name)!r}")


_NAMES = ("tag", "layer", "lane", "count", "addr", "cycle", "data")


@dataclass(frozen=True, eq=False)
class TraceWords:
    """Words that the units wrote, in the order of cycles.

    Attributes
    ----------
    tag, layer, lane, count, addr
        int64 (words,): operation, where, elements that count, address in the unit's memory.
    cycle
        int64 (words,): when, modulo 2^32.
    data
        int32 (words, vector_width).
    """

    tag: np.ndarray
    layer: np.ndarray
    lane: np.ndarray
    count: np.ndarray
    addr: np.ndarray
    cycle: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.tag)

    def __getitem__(self, part: slice | np.ndarray) -> TraceWords:
        return TraceWords(*(getattr(self, name)[part] for name in _NAMES))

    @classmethod
    def empty(cls, width: int) -> TraceWords:
        """Return a trace of no words of ``width`` elements."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none, none, np.zeros((0, width), dtype=np.int32))

    @classmethod
    def join(cls, parts: list[TraceWords]) -> TraceWords:
        """Return one trace of several, in their order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of the gate, in their order.

    Attributes
    ----------
    layer, lane
        int64.
    eligible, compute
        bool.
    score
        int64; meaningful where the gate needed one.
    """

    layer: np.ndarray
    lane: np.ndarray
    eligible: np.ndarray
    compute: np.ndarray
    score: np.ndarray


class Link(ABC):
    """An accelerator within reach.

    Attributes
    ----------
    config
        What it was generated from.
    memory_bytes
        Bytes of its memory.
    batch
        Cycles between two looks at the engine's state.
    """

    config: AcceleratorConfig
    memory_bytes: int
    batch: int = 1 << 18

    @abstractmethod
    def read(self, offset: int) -> int:
        """Return a register; raise `EngineError` when it answers with an error or not at all."""

    @abstractmethod
    def write(self, offset: int, value: int) -> None:
        """Write a register; raise `EngineError` when it answers with an error or not at all."""

    @abstractmethod
    def read_memory(self, address: int, size: int) -> bytes:
        """Return a piece of the memory."""

    @abstractmethod
    def write_memory(self, address: int, data: bytes) -> None:
        """Replace a piece of the memory."""

    @abstractmethod
    def wait(self, cycles: int) -> bool:
        """Let the accelerator work for at most so many cycles; return whether its interrupt is raised.

        Raises
        ------
        EngineError
            When a rule of the bus was broken.
        """

    def take_trace(self) -> TraceWords:
        """Return the trace since the last call, and forget it; empty without trace ports."""
        return TraceWords.empty(self.config.vector_width)

    def take_decisions(self) -> Decisions | None:
        """Return the decisions since the last call, and forget them; None without trace ports."""
        return None

    def close(self) -> None:  # noqa: B027 - most links hold nothing
        """Let go of what the link holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
