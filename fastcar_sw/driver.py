"""The driver: whole videos on anything that has the accelerator's registers, simulated or real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs.policy import Definition, GateKind
from fastcar_hw.errors import ErrorCode
from fastcar_hw.registers_map import MAGIC, VERSION, register_map

from .compiler.layout import Layout
from .engines.link import Decisions, EngineError, Link, RequestError, TraceWords
from .gates import GateSettings
from .image import Image
from .sampling import SamplingSettings

__all__ = ["Driver", "EngineState", "HardwareRun", "check_request", "memory_needed"]

_PAGE = 4096

@dataclass(frozen=True)
class EngineState:
    """Where the engine is.

    Attributes
    ----------
    running, done
        Whether it works; whether the last run ended well.
    error
        First error of the last run.
    position, layer, pc, error_pc, error_address
        Where it is, and where the error was.
    """

    running: bool
    done: bool
    error: ErrorCode
    position: int
    layer: int
    pc: int
    error_pc: int
    error_address: int

    def __str__(self) -> str:
        return (
            f"{self.error.name} at pc {self.error_pc}, address {self.error_address:#x}, "
            f"position {self.position}, layer {self.layer}"
        )


@dataclass(frozen=True, eq=False)
class HardwareRun:
    """What a run gave.

    Attributes
    ----------
    tokens
        int64 (lanes, total).
    counters
        Every 64-bit counter by name.
    eligible, replayed
        int64 (layers, lanes): tokens that might have been, and were, replayed.
    compute
        bool (positions, layers, lanes): who computed its MLP; None without trace ports.
    trace
        Every word that a unit wrote; empty without trace ports, or when a sink took it.
    """

    tokens: np.ndarray
    counters: dict[str, int]
    eligible: np.ndarray
    replayed: np.ndarray
    compute: np.ndarray | None
    trace: TraceWords


def memory_needed(image: Image) -> int:
    """Return the bytes of memory that an image and its heap take."""
    return _pages(len(image.memory)) + _pages(image.heap_bytes)


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def check_request(image: Image, config: AcceleratorConfig, prompt: np.ndarray, total: int, sampling: SamplingSettings,
                  forced: np.ndarray | None = None) -> None:  # fmt: skip
    """Raise `RequestError` when `Driver.generate` would, before there is an engine."""
    model = image.model
    if not isinstance(total, int) or not 1 <= total <= model.max_seq:
        raise RequestError(f"total must be an integer in 1..{model.max_seq} (the KV cache), not {total!r}")
    if prompt.ndim != 2 or not 1 <= prompt.shape[0] <= config.lanes or not 1 <= prompt.shape[1] <= total:
        raise RequestError(
            f"prompt must have the shape (1..lanes={config.lanes}, 1..total={total}), not {prompt.shape}"
        )
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= model.vocab:
        raise RequestError(f"prompt tokens must be in 0..{model.vocab - 1}, not {low}..{high}")
    if sampling.topk > config.topk_max:
        raise RequestError(f"topk must be at most topk_max={config.topk_max}, not {sampling.topk}")
    shape = (model.layers, prompt.shape[0])
    if forced is not None and (forced.ndim != 3 or len(forced) < total - 1 or forced.shape[1:] != shape):
        raise RequestError(
            f"forced decisions must have the shape (>= {total - 1}, {shape[0]}, {shape[1]}), not {forced.shape}"
        )


class Driver:
    """Loads images, runs videos, reads results.

    Parameters
    ----------
    link
        The accelerator.

    Raises
    ------
    EngineError
        When something else than the expected accelerator answers.
    """

    def __init__(self, link: Link) -> None:
        self._link, self._map = link, register_map(link.config)
        self._image: Image | None = None
        self._trace = TraceWords.empty(link.config.vector_width)
        for name, value, what in (("id", MAGIC, "identity"), ("version", VERSION, "register map")):
            found = self.read(name)
            same = found == value if name == "id" else found >> 16 == value >> 16
            if not same:
                raise EngineError(f"accelerator must have the {what} {value:#010x}, not {found:#010x}")
        found = self.read64("config_hash")
        if found != link.config.hash:
            raise EngineError(
                f"accelerator must be {link.config.name!r} with the hash {link.config.hash:016x}, not {found:016x}"
            )

    def read(self, name: str, index: int = 0) -> int:
        """Return a register, or an entry of an array, by name."""
        return self._link.read(self._map.offset(name, index))

    def read64(self, name: str) -> int:
        """Return a register of two words; counters are consistent, since the low word latches the high one."""
        low = self.read(f"{name}_lo")
        return low | self.read(f"{name}_hi") << 32

    def write(self, name: str, value: int, index: int = 0) -> None:
        """Write a register, or an entry of an array, by name."""
        try:
            self._link.write(self._map.offset(name, index), value & 0xFFFFFFFF)
        except EngineError as error:
            raise EngineError(f"register {name} does not take {value}: {error}") from None

    def write64(self, name: str, value: int) -> None:
        """Write a register of two words."""
        self.write(f"{name}_lo", value)
        self.write(f"{name}_hi", value >> 32)

    def load(self, image: Image) -> None:
        """Put an image into the memory.

        Raises
        ------
        ImageError
            When it is for other hardware.
        RequestError
            When the memory is too small.
        """
        image.check(self._link.config)
        if memory_needed(image) > self._link.memory_bytes:
            raise RequestError(
                f"memory must have {memory_needed(image)} bytes for this image, not {self._link.memory_bytes}"
            )
        self._link.write_memory(0, image.memory)
        self._image = image

    def generate(
        self,
        prompt: np.ndarray,
        total: int,
        gate: GateSettings | None = None,
        sampling: SamplingSettings | None = None,
        *,
        forced: np.ndarray | None = None,
        head_all: bool = False,
        static_map: bool = False,
        max_cycles: int = 1 << 40,
        progress: Callable[[int], object] | None = None,
        sink: Callable[[TraceWords], object] | None = None,
    ) -> HardwareRun:
        """Generate videos.

        Parameters
        ----------
        prompt
            int (lanes, positions): the beginning of each lane.
        total
            Positions of the whole video, prompt included.
        gate, sampling
            Replay policy (``never`` when missing) and sampler (greedy when missing).
        forced
            bool (positions, layers, lanes), True = compute, for the gate ``forced``.
        head_all
            Logits for the positions of the prompt, too.
        static_map
            Lanes stay on core ``lane mod cores`` instead of going where the scheduler puts them.
        max_cycles
            Cycles after which the run counts as hanging.
        progress
            Called with the position, now and then.
        sink
            Takes the trace piece by piece, instead of the result.

        Raises
        ------
        RequestError
            When an argument does not fit.
        EngineError
            When the engine stops with an error or does not end.
        """
        image = self._require_image()
        layout = image.layout
        gate = GateSettings(kind="never") if gate is None else gate
        sampling = SamplingSettings() if sampling is None else sampling
        check_request(image, self._link.config, prompt, total, sampling, forced)
        lanes, given = prompt.shape
        heap = _pages(len(image.memory))
        self._store_inputs(layout, heap, prompt, forced)
        self._configure(image, heap, lanes, given, total, gate, sampling, head_all, static_map)
        # What an earlier run left behind is no part of this one.
        self._link.take_trace()
        self._link.take_decisions()

        pieces: list[TraceWords] = []
        decisions: list[Decisions] = []

        def drain() -> None:
            words, decided = self._link.take_trace(), self._link.take_decisions()
            if len(words):
                (pieces.append if sink is None else sink)(words)
            if decided is not None:
                decisions.append(decided)

        self.write("irq_pending", 3)
        self.write("irq_enable", 3)
        self.write("control", 1)
        while not self._link.wait(min(self._link.batch, max_cycles)):
            drain()
            if progress is not None:
                progress(self.read("position"))
            if self.read64("cycles") > max_cycles:
                state = self.state()
                self._stop()
                raise EngineError(
                    f"run did not end in {max_cycles} cycles: position {state.position}, layer {state.layer}, "
                    f"pc {state.pc}"
                )
        drain()
        state = self.state()
        if state.error is not ErrorCode.NONE:
            raise EngineError(str(state))
        if progress is not None:
            progress(total - 1)
        self._trace = TraceWords.join(pieces) if pieces else TraceWords.empty(self._link.config.vector_width)
        eligible, replayed = (self._table(name, image.model.layers, lanes) for name in ("eligible", "replayed"))
        return HardwareRun(
            tokens=self._tokens(layout, heap, lanes, total),
            counters=self.counters(),
            eligible=eligible,
            replayed=replayed,
            compute=_decisions(decisions, image.model.layers, lanes) if decisions else None,
            trace=self._trace,
        )

    def trace(self) -> TraceWords:
        """Return the trace of the last run, if no sink took it."""
        return self._trace

    def counters(self) -> dict[str, int]:
        """Return every counter by name."""
        return {register.name: self.read64(register.name) for register in self._map.counters}

    def state(self) -> EngineState:
        """Return where the engine is."""
        status = self.read("status")
        code = self.read("error_code")
        try:
            error = ErrorCode(code)
        except ValueError:
            raise EngineError(f"accelerator reports the unknown error {code}") from None
        return EngineState(
            running=bool(status & 1),
            done=bool(status & 2),
            error=error,
            position=self.read("position"),
            layer=self.read("layer"),
            pc=self.read("pc"),
            error_pc=self.read("error_pc"),
            error_address=self.read64("error_address"),
        )

    def _require_image(self) -> Image:
        if self._image is None:
            raise RequestError("an image must be loaded before a video can be generated")
        return self._image

    def _store_inputs(self, layout: Layout, heap: int, prompt: np.ndarray, forced: np.ndarray | None) -> None:
        for position, lane in np.ndindex(prompt.shape[1], prompt.shape[0]):
            value = int(prompt[lane, position]).to_bytes(4, "little")
            self._link.write_memory(heap + layout.token_offset(position, lane), value)
        if forced is not None:
            for position, layer in np.ndindex(*forced.shape[:2]):
                bits = sum(1 << lane for lane, compute in enumerate(forced[position, layer]) if compute)
                self._link.write_memory(heap + layout.forced_offset(position, layer), bits.to_bytes(4, "little"))

    def _configure(self, image: Image, heap: int, lanes: int, given: int, total: int, gate: GateSettings,
                   sampling: SamplingSettings, head_all: bool, static_map: bool) -> None:  # fmt: skip
        end = heap + _pages(image.heap_bytes)
        for name, value in (
            ("image_base", 0), ("heap_base", heap), ("read_base", 0), ("read_limit", end - 1),
            ("write_base", heap), ("write_limit", end - 1), ("model_hash", image.model_hash),
        ):  # fmt: skip
            self.write64(name, value)
        registers = sampling.registers(image.logit_fraction)
        kind = GateKind[gate.kind.upper()].value
        definition = Definition[gate.definition.upper().replace("-", "_")].value
        for name, value in (
            ("lanes", lanes), ("prompt", given), ("total", total), ("warmup", gate.warmup_frames),
            ("head_all", int(head_all)), ("gate", kind | definition << 4 | int(static_map) << 8),
            ("topk", registers.topk), ("inv_temperature", registers.inv_temperature),
            ("temp_shift", registers.temp_shift), ("seed", registers.seed),
        ):  # fmt: skip
            self.write(name, value)
        for layer, threshold in enumerate(gate.integer_thresholds(image.model)):
            self.write("thresholds", int(threshold), layer)
        for head, weight in enumerate(gate.integer_weights(image.model)):
            self.write("head_weights", int(weight), head)

    def _stop(self) -> None:
        """Stop the engine, which ends with the present instruction, or is hung for good."""
        self.write("control", 2)
        self._link.wait(self._link.batch)

    def _table(self, name: str, layers: int, lanes: int) -> np.ndarray:
        stride = self._link.config.lanes
        rows = [[self.read(name, layer * stride + lane) for lane in range(lanes)] for layer in range(layers)]
        return np.array(rows, dtype=np.int64)

    def _tokens(self, layout: Layout, heap: int, lanes: int, total: int) -> np.ndarray:
        """Return the tokens, read in one piece."""
        stride, slots = layout.beat, self._link.config.lanes
        raw = self._link.read_memory(heap + layout.token_offset(0, 0), total * slots * stride)
        beats = np.frombuffer(raw, dtype=np.uint8).reshape(total, slots, stride)
        words = np.ascontiguousarray(beats[:, :lanes, :4]).view("<u4")[..., 0]
        return words.T.astype(np.int64)


def _decisions(parts: list[Decisions], layers: int, lanes: int) -> np.ndarray:
    """Return who computed; the gate decides lane by lane, layer by layer, position by position."""
    compute = np.concatenate([part.compute for part in parts])
    where = np.concatenate([part.layer * lanes + part.lane for part in parts])
    if len(where) % (layers * lanes) or not np.array_equal(where, np.arange(len(where)) % (layers * lanes)):
        raise EngineError("the gate did not decide each lane of each layer once a position, in order")
    return compute.reshape(-1, layers, lanes)
