"""The link to a simulated accelerator in a shared library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from fastcar_hw.config import AcceleratorConfig

from ..link import Decisions, EngineError, Link, MemorySettings, TraceWords
from .build import Progress, _silent, build_model

__all__ = ["VerilatorLink"]

#: Records after which a batch of cycles ends, so that the trace never takes much memory.
_RECORDS = 1 << 18
_SLVERR = 2


class _Settings(ctypes.Structure):
    """`Settings` of the harness."""

    _fields_ = (
        ("latency", ctypes.c_uint32),
        ("beat_period", ctypes.c_uint32),
        ("pause", ctypes.c_uint32),
        ("fail_response", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("fail_first", ctypes.c_uint64),
        ("fail_last", ctypes.c_uint64),
    )


_DECISION = np.dtype([("layer", "u1"), ("lane", "u1"), ("eligible", "u1"), ("compute", "u1"), ("score", "<i4")])


def _library(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions."""
    library = ctypes.CDLL(str(path))
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
        ("fc_new", pointer, (u64,)),
        ("fc_delete", None, (pointer,)),
        ("fc_memory", pointer, (pointer,)),
        ("fc_cycle", u64, (pointer,)),
        ("fc_violation", ctypes.c_char_p, (pointer,)),
        ("fc_settings", None, (pointer, ctypes.POINTER(_Settings))),
        ("fc_write", ctypes.c_int, (pointer, u32, u32)),
        ("fc_read", ctypes.c_int, (pointer, u32, ctypes.POINTER(u32))),
        ("fc_run", u64, (pointer, u64, u64)),
        ("fc_irq", ctypes.c_int, (pointer,)),
        ("fc_records", u64, (pointer, ctypes.POINTER(pointer))),
        ("fc_decisions", u64, (pointer, ctypes.POINTER(pointer))),
        ("fc_forget_records", None, (pointer,)),
        ("fc_forget_decisions", None, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class VerilatorLink(Link):
    """An accelerator under Verilator.

    Parameters
    ----------
    config
        The accelerator; with ``trace`` its words and decisions are recorded.
    memory_bytes
        Size of the memory.
    memory
        How the memory behaves.
    progress
        Called with the steps of a build; nothing is built when the cache has the model.

    Raises
    ------
    ToolError
        When the model cannot be built.
    """

    def __init__(
        self, config: AcceleratorConfig, memory_bytes: int, memory: MemorySettings | None = None,
        progress: Progress = _silent,
    ) -> None:  # fmt: skip
        self.config, self.memory_bytes = config, memory_bytes
        self._library = _library(build_model(config, progress))
        self._engine: ctypes.c_void_p | None = ctypes.c_void_p(self._library.fc_new(memory_bytes))
        raw = (ctypes.c_uint8 * memory_bytes).from_address(self._library.fc_memory(self._engine))
        self._memory = np.ctypeslib.as_array(raw)
        self._record = np.dtype(
            [("tag", "u1"), ("layer", "u1"), ("lane", "u1"), ("count", "u1"), ("addr", "<u4"),
             ("cycle", "<u4"), ("data", "<i4", (config.vector_width,))]
        )  # fmt: skip
        self.set_memory(memory or MemorySettings())

    def set_memory(self, memory: MemorySettings) -> None:
        """Change how the memory behaves."""
        first, last = (1, 0) if memory.fail_at is None else (memory.fail_at, memory.fail_at)
        settings = _Settings(
            latency=memory.latency, beat_period=round(256 / memory.beats_per_cycle),
            pause=int(memory.stall * (1 << 32)), fail_response=_SLVERR, seed=memory.seed, fail_first=first,
            fail_last=last,
        )  # fmt: skip
        self._library.fc_settings(self._open(), ctypes.byref(settings))

    def _open(self) -> ctypes.c_void_p:
        if self._engine is None:
            raise EngineError("the engine was closed")
        return self._engine

    def _answer(self, code: int, offset: int) -> None:
        if code:
            what = "did not answer" if code < 0 else "answered with an error"
            raise EngineError(f"register at {offset:#06x} {what}")

    def read(self, offset: int) -> int:
        """Return a register."""
        value = ctypes.c_uint32()
        self._answer(self._library.fc_read(self._open(), offset, ctypes.byref(value)), offset)
        return value.value

    def write(self, offset: int, value: int) -> None:
        """Write a register."""
        self._answer(self._library.fc_write(self._open(), offset, value), offset)

    def _piece(self, address: int, size: int) -> slice:
        if not 0 <= address <= address + size <= self.memory_bytes:
            raise EngineError(f"memory has {self.memory_bytes} bytes, not {size} at {address:#x}")
        return slice(address, address + size)

    def read_memory(self, address: int, size: int) -> bytes:
        """Return a piece of the memory."""
        self._open()
        return self._memory[self._piece(address, size)].tobytes()

    def write_memory(self, address: int, data: bytes) -> None:
        """Replace a piece of the memory."""
        self._open()
        self._memory[self._piece(address, len(data))] = np.frombuffer(data, dtype=np.uint8)

    def wait(self, cycles: int) -> bool:
        """Let the clock run for at most so many cycles, or until the trace wants to be taken."""
        self._library.fc_run(self._open(), cycles, _RECORDS)
        violation = self._library.fc_violation(self._engine)
        if violation:
            raise EngineError(f"bus rule broken: {violation.decode()}")
        return bool(self._library.fc_irq(self._engine))

    @property
    def cycle(self) -> int:
        """Cycles since the engine was made."""
        return int(self._library.fc_cycle(self._open()))

    def _array(self, function: str, dtype: np.dtype) -> np.ndarray:
        """Return what the harness collected, without a copy."""
        pointer = ctypes.c_void_p()
        count = getattr(self._library, function)(self._open(), ctypes.byref(pointer))
        if not count:
            return np.zeros(0, dtype=dtype)
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(pointer.value or 0)
        return np.frombuffer(raw, dtype=dtype)

    def take_trace(self) -> TraceWords:
        """Return the words since the last call, and forget them."""
        records = self._array("fc_records", self._record)
        tag, layer, lane, count, addr, cycle = (
            records[name].astype(np.int64) for name in ("tag", "layer", "lane", "count", "addr", "cycle")
        )
        words = TraceWords(tag, layer, lane, count, addr, cycle, records["data"].copy())
        self._library.fc_forget_records(self._open())
        return words

    def take_decisions(self) -> Decisions | None:
        """Return the decisions since the last call, and forget them."""
        if not self.config.trace:
            return None
        found = self._array("fc_decisions", _DECISION)
        decisions = Decisions(
            layer=found["layer"].astype(np.int64), lane=found["lane"].astype(np.int64),
            eligible=found["eligible"].astype(bool), compute=found["compute"].astype(bool),
            score=found["score"].astype(np.int64),
        )  # fmt: skip
        self._library.fc_forget_decisions(self._open())
        return decisions

    def close(self) -> None:
        """Delete the engine."""
        if self._engine is not None:
            self._memory = np.zeros(0, dtype=np.uint8)
            self._library.fc_delete(self._engine)
            self._engine = None
