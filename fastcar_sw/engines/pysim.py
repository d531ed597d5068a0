"""The engine on Amaranth's own simulator: slow, but with nothing between the design and the result.

For unit tests and waveforms of small configurations; about 1,000 cycles a second.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from fastcar_hw.accelerator import Accelerator
from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.memory.axi import Response

from ..interrupts import held_interrupts
from .link import Decisions, EngineError, Link, MemorySettings, TraceWords

__all__ = ["PysimLink"]

#: Cycles in which a register access must end.
_HOST_LIMIT = 4096
#: Cycles between two looks at the interrupt.
_BATCH = 100


class _Memory:
    """AXI4 memory: fixed latency, limited bandwidth, random pauses, an optional error response."""

    def __init__(self, dut: Accelerator, size: int, beat: int, settings: MemorySettings) -> None:
        self._read_port, self._write_port = dut.read, dut.write
        self.data = bytearray(size)
        self._beat, self._settings = beat, settings
        self._random = random.Random(settings.seed)

    def _go(self) -> bool:
        return self._random.random() >= self._settings.stall

    def _response(self, address: int) -> int:
        fail_at = self._settings.fail_at
        if address + self._beat > len(self.data):
            return Response.DECERR.value
        failed = fail_at is not None and address <= fail_at < address + self._beat
        return Response.SLVERR.value if failed else Response.OKAY.value

    async def read(self, ctx: Any) -> None:
        """Serve the read channels: a beat holds what the memory held when its request was accepted."""
        port = self._read_port
        waiting: list[tuple[int, bytes, int, bool]] = []
        time, credit = 0, 0.0
        ready = valid = False
        while True:
            _, _, asked, request, taken = await ctx.tick().sample(port.ar.valid, port.ar.payload, port.r.ready)
            time += 1
            credit = min(1.0, credit + self._settings.beats_per_cycle)
            if asked and ready:
                for i in range(request.len + 1):
                    at = request.addr + i * self._beat
                    waiting.append((time + self._settings.latency + i, bytes(self.data[at : at + self._beat]),
                                    self._response(at), i == request.len))  # fmt: skip
            if valid and taken:
                waiting.pop(0)
                valid = False
                credit -= 1.0
            # A beat that was offered stays until it is taken.
            valid = valid or (bool(waiting) and waiting[0][0] <= time and credit >= 0 and self._go())
            if valid:
                _, raw, response, last = waiting[0]
                ctx.set(port.r.payload, {"data": int.from_bytes(raw, "little"), "resp": response, "last": last})
            ctx.set(port.r.valid, valid)
            ready = self._go()
            ctx.set(port.ar.ready, ready)

    async def write(self, ctx: Any) -> None:
        """Serve the write channels."""
        port = self._write_port
        addresses: list[int] = []
        answers: list[int] = []
        worst = 0
        ready = answering = False
        while True:
            _, _, asked, request, offered, beat, taken = await ctx.tick().sample(
                port.aw.valid, port.aw.payload, port.w.valid, port.w.payload, port.b.ready
            )
            if answering and taken:
                answers.pop(0)
            if ready and asked:
                addresses += [request.addr + i * self._beat for i in range(request.len + 1)]
            if ready and offered:
                address = addresses.pop(0)
                response = self._response(address)
                worst = max(worst, response)
                raw = beat.data.to_bytes(self._beat, "little")
                for i in range(self._beat):
                    if beat.strb >> i & 1 and response == Response.OKAY.value:
                        self.data[address + i] = raw[i]
                if beat.last:
                    answers.append(worst)
                    worst = 0
            ready = self._go()
            answering = bool(answers) and ((answering and not taken) or self._go())
            ctx.set(port.aw.ready, ready)
            ctx.set(port.w.ready, ready)
            if answering:
                ctx.set(port.b.payload.resp, answers[0])
            ctx.set(port.b.valid, answering)


class PysimLink(Link):
    """An accelerator in Amaranth's simulator.

    Parameters
    ----------
    config
        The accelerator; with ``trace`` its words and decisions are recorded.
    memory_bytes
        Size of the memory.
    memory
        How the memory behaves.
    vcd
        File for the waveforms.
    """

    batch = 2000

    def __init__(
        self, config: AcceleratorConfig, memory_bytes: int, memory: MemorySettings | None = None,
        vcd: Path | None = None,
    ) -> None:  # fmt: skip
        self.config, self.memory_bytes = config, memory_bytes
        self._dut = dut = Accelerator(config)
        self._memory = _Memory(dut, memory_bytes, config.derived.beat_bytes, memory or MemorySettings())
        self._job: Callable[[Any], Awaitable[None]] | None = None
        self._words: list[tuple[int, int, int, int, int, int, tuple[int, ...]]] = []
        self._decided: list[tuple[int, int, bool, bool, int]] = []
        self._irq = False
        self._sim = Simulator(dut)
        self._sim.add_clock(1e-6)
        self._sim.add_testbench(self._work)
        self._sim.add_testbench(self._memory.read, background=True)
        self._sim.add_testbench(self._memory.write, background=True)
        if config.trace:
            self._sim.add_testbench(self._record, background=True)
        self._stack = ExitStack()
        if vcd is not None:
            self._stack.enter_context(self._sim.write_vcd(str(vcd)))

    async def _work(self, ctx: Any) -> None:
        """Do the jobs that the methods leave here; time stands still between them."""
        while True:
            if self._job is not None:
                await self._job(ctx)
                self._job = None
            await ctx.tick()

    def _do(self, job: Callable[[Any], Awaitable[None]]) -> None:
        self._job = job
        # A coroutine of the simulation that Ctrl-C left in the middle of a job could not be closed.
        with held_interrupts():
            while self._job is not None:
                self._sim.advance()

    async def _record(self, ctx: Any) -> None:
        dut, width = self._dut, self.config.vector_width
        cycle = 0
        while True:
            _, _, matrix, vector, decision = await ctx.tick().sample(
                dut.trace_matrix, dut.trace_vector, dut.trace_gate
            )
            for word in (matrix, vector):
                if word.valid and word.tag:
                    values = tuple(word.data[i] for i in range(width))
                    count = min(word.count, width)
                    self._words.append((word.tag, word.layer, word.lane, count, word.addr, cycle, values))
            if decision.valid:
                self._decided.append(
                    (decision.layer, decision.lane, bool(decision.eligible), bool(decision.compute), decision.score)
                )
            cycle += 1

    def read(self, offset: int) -> int:
        """Return a register."""
        port, found = self._dut.host, []

        async def job(ctx: Any) -> None:
            ctx.set(port.ar.payload.addr, offset)
            ctx.set(port.r.ready, 1)
            await self._send(ctx, port.ar)
            found.extend(await self._answer(ctx, port.r, offset))

        self._do(job)
        return self._checked(found, offset).data

    def write(self, offset: int, value: int) -> None:
        """Write a register."""
        port, found = self._dut.host, []

        async def job(ctx: Any) -> None:
            ctx.set(port.aw.payload.addr, offset)
            ctx.set(port.w.payload, {"data": value, "strb": 15})
            ctx.set(port.b.ready, 1)
            await self._send(ctx, port.aw, port.w)
            found.extend(await self._answer(ctx, port.b, offset))

        self._do(job)
        self._checked(found, offset)

    async def _send(self, ctx: Any, *channels: Any) -> None:
        """Offer a transfer on each channel until it was taken."""
        for channel in channels:
            ctx.set(channel.valid, 1)
        left = list(channels)
        for _ in range(_HOST_LIMIT):
            _, _, *ready = await ctx.tick().sample(*(channel.ready for channel in left))
            for channel, taken in zip(list(left), ready, strict=True):
                if taken:
                    ctx.set(channel.valid, 0)
                    left.remove(channel)
            if not left:
                return

    async def _answer(self, ctx: Any, channel: Any, offset: int) -> list[Any]:
        """Return the answer of a channel in a list, which stays empty when there is none in time."""
        del offset
        for _ in range(_HOST_LIMIT):
            if ctx.get(channel.valid):
                payload = ctx.get(channel.payload)
                await ctx.tick()
                ctx.set(channel.ready, 0)
                return [payload]
            await ctx.tick()
        return []

    @staticmethod
    def _checked(found: list[Any], offset: int) -> Any:
        if not found:
            raise EngineError(f"register at {offset:#06x} did not answer")
        if found[0].resp != Response.OKAY:
            raise EngineError(f"register at {offset:#06x} answered with an error")
        return found[0]

    def read_memory(self, address: int, size: int) -> bytes:
        """Return a piece of the memory."""
        return bytes(self._memory.data[self._piece(address, size)])

    def write_memory(self, address: int, data: bytes) -> None:
        """Replace a piece of the memory."""
        self._memory.data[self._piece(address, len(data))] = data

    def _piece(self, address: int, size: int) -> slice:
        if not 0 <= address <= address + size <= self.memory_bytes:
            raise EngineError(f"memory has {self.memory_bytes} bytes, not {size} at {address:#x}")
        return slice(address, address + size)

    def wait(self, cycles: int) -> bool:
        """Let the clock run for at most so many cycles, rounded up to a batch."""

        async def look(ctx: Any) -> None:
            self._irq = bool(ctx.get(self._dut.irq))

        async def work(ctx: Any) -> None:
            await look(ctx)
            if not self._irq:
                # The next job begins a cycle later.
                await ctx.tick().repeat(_BATCH - 1)

        # A job a batch, so that Ctrl-C need not wait for long.
        for _ in range(0, cycles, _BATCH):
            self._do(work)
            if self._irq:
                return True
        self._do(look)
        return self._irq

    def take_trace(self) -> TraceWords:
        """Return the words since the last call, and forget them."""
        words, self._words = self._words, []
        if not words:
            return TraceWords.empty(self.config.vector_width)
        tag, layer, lane, count, addr, cycle = np.array([word[:-1] for word in words], dtype=np.int64).T
        return TraceWords(tag, layer, lane, count, addr, cycle, np.array([word[-1] for word in words], dtype=np.int32))

    def take_decisions(self) -> Decisions | None:
        """Return the decisions since the last call, and forget them."""
        if not self.config.trace:
            return None
        decided, self._decided = np.array(self._decided, dtype=np.int64).reshape(-1, 5).T, []
        layer, lane, eligible, compute, score = decided
        return Decisions(layer, lane, eligible.astype(bool), compute.astype(bool), score)

    def close(self) -> None:
        """Close the file of waveforms."""
        self._stack.close()
