"""The engine on Amaranth's own simulator: slow, but with nothing between the design and the result.

For unit tests and waveforms of small configurations; about 1,000 cycles a second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from amaranth.sim import Simulator

from fastcar_hw.accelerator import Accelerator
from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.drs.policy import Definition, GateKind
from fastcar_hw.errors import ErrorCode
from fastcar_hw.registers_map import RegisterMap, register_map

from ..compiler.layout import Layout
from ..gates import GateSettings
from ..image import Image
from ..quantized import QuantizedModel
from ..sampling import SamplingSettings

__all__ = ["EngineError", "HardwareRun", "TraceRecord", "simulate"]

_PAGE = 4096


class EngineError(RuntimeError):
    """The engine stopped with an error, or did not end; the message says where."""


@dataclass(frozen=True)
class TraceRecord:
    """A word that a unit wrote: whose, where, and the elements."""

    tag: int
    layer: int
    lane: int
    addr: int
    values: tuple[int, ...]


@dataclass
class HardwareRun:
    """What a run gave.

    Attributes
    ----------
    tokens
        int64 (lanes, total).
    counters
        Every 64-bit counter by name.
    compute
        bool (positions, layers, lanes), in the order of the decisions.
    records
        The trace in the order of cycles.
    """

    tokens: np.ndarray
    counters: dict[str, int] = field(default_factory=dict)
    compute: list[tuple[int, int, bool]] = field(default_factory=list)
    records: list[TraceRecord] = field(default_factory=list)


class _Memory:
    """AXI4 memory: fixed latency, random stalls, an optional error response."""

    def __init__(self, dut: Accelerator, size: int, beat: int, latency: int, stall: float, seed: int,
                 fail_at: int | None) -> None:  # fmt: skip
        self._read_port, self._write_port = dut.read, dut.write
        self.data = bytearray(size)
        self._beat, self._latency, self._stall = beat, latency, stall
        self._random = random.Random(seed)
        self._fail_at = fail_at

    def _go(self) -> bool:
        return self._random.random() >= self._stall

    async def read(self, ctx) -> None:
        """Serve the read channels."""
        port = self._read_port
        waiting: list[tuple[int, int, bool]] = []
        time = 0
        ready = valid = False
        while True:
            _, _, asked, request, taken = await ctx.tick().sample(port.ar.valid, port.ar.payload, port.r.ready)
            time += 1
            if asked and ready:
                waiting += [
                    (time + self._latency, request.addr + i * self._beat, i == request.len)
                    for i in range(request.len + 1)
                ]
            if valid and taken:
                waiting.pop(0)
                valid = False
            # A beat that was offered stays until it is taken.
            valid = valid or bool(waiting) and waiting[0][0] <= time and self._go()
            if valid:
                _, address, last = waiting[0]
                raw = self.data[address : address + self._beat]
                failed = self._fail_at is not None and address <= self._fail_at < address + self._beat
                ctx.set(
                    port.r.payload,
                    {"data": int.from_bytes(raw, "little"), "resp": 2 if failed else 0, "last": last},
                )
            ctx.set(port.r.valid, valid)
            ready = self._go()
            ctx.set(port.ar.ready, ready)

    async def write(self, ctx) -> None:
        """Serve the write channels."""
        port = self._write_port
        addresses: list[int] = []
        answers = 0
        ready = answering = False
        while True:
            _, _, asked, request, offered, beat, taken = await ctx.tick().sample(
                port.aw.valid, port.aw.payload, port.w.valid, port.w.payload, port.b.ready
            )
            if answering and taken:
                answers -= 1
            if ready and asked:
                addresses += [request.addr + i * self._beat for i in range(request.len + 1)]
            if ready and offered:
                address = addresses.pop(0)
                raw = beat.data.to_bytes(self._beat, "little")
                for i in range(self._beat):
                    if beat.strb >> i & 1:
                        self.data[address + i] = raw[i]
                answers += beat.last
            ready = self._go()
            answering = answers > 0 and (answering and not taken or self._go())
            ctx.set(port.aw.ready, ready)
            ctx.set(port.w.ready, ready)
            ctx.set(port.b.valid, answering)


class _Host:
    """AXI4-Lite master over the register names."""

    def __init__(self, ctx, port, registers: RegisterMap) -> None:
        self._ctx, self._port, self._map = ctx, port, registers

    async def write(self, name: str, value: int, index: int = 0) -> None:
        ctx, port = self._ctx, self._port
        ctx.set(port.aw.payload.addr, self._map.offset(name, index))
        ctx.set(port.w.payload, {"data": value & 0xFFFFFFFF, "strb": 15})
        for channel in (port.aw, port.w):
            ctx.set(channel.valid, 1)
        ctx.set(port.b.ready, 1)
        await ctx.tick().until(port.aw.ready)
        for channel in (port.aw, port.w):
            ctx.set(channel.valid, 0)
        while not ctx.get(port.b.valid):
            await ctx.tick()
        response = ctx.get(port.b.payload.resp)
        await ctx.tick()
        if response.value != 0:
            raise EngineError(f"register {name} refused {value}: {response.name}")

    async def write64(self, name: str, value: int) -> None:
        await self.write(f"{name}_lo", value)
        await self.write(f"{name}_hi", value >> 32)

    async def read(self, name: str, index: int = 0) -> int:
        ctx, port = self._ctx, self._port
        ctx.set(port.ar.payload.addr, self._map.offset(name, index))
        ctx.set(port.ar.valid, 1)
        ctx.set(port.r.ready, 1)
        await ctx.tick().until(port.ar.ready)
        ctx.set(port.ar.valid, 0)
        while not ctx.get(port.r.valid):
            await ctx.tick()
        value = ctx.get(port.r.payload.data)
        await ctx.tick()
        return value


async def _configure(host: _Host, image: Image, model: QuantizedModel, lanes: int, prompt: int, total: int,
                     gate: GateSettings, sampling: SamplingSettings, head_all: bool, heap: int,
                     end: int) -> None:  # fmt: skip
    """Write every register that a run needs."""
    for name, value in (
        ("image_base", 0), ("heap_base", heap), ("read_base", 0), ("read_limit", end - 1),
        ("write_base", heap), ("write_limit", end - 1), ("model_hash", image.model_hash),
    ):  # fmt: skip
        await host.write64(name, value)
    registers = sampling.registers(model.logit_fraction)
    kind = GateKind[gate.kind.upper().replace("-", "_")].value
    definition = Definition[gate.definition.upper().replace("-", "_")].value
    for name, value in (
        ("lanes", lanes), ("prompt", prompt), ("total", total), ("warmup", gate.warmup_frames),
        ("head_all", head_all),
        ("gate", kind | definition << 4), ("topk", registers.topk), ("inv_temperature", registers.inv_temperature),
        ("temp_shift", registers.temp_shift), ("seed", registers.seed),
    ):  # fmt: skip
        await host.write(name, value)
    for layer, threshold in enumerate(gate.integer_thresholds(model.config)):
        await host.write("thresholds", int(threshold), layer)
    for head, weight in enumerate(gate.integer_weights(model.config)):
        await host.write("head_weights", int(weight), head)


def simulate(
    config: AcceleratorConfig,
    image: Image,
    layout: Layout,
    model: QuantizedModel,
    prompt: np.ndarray,
    total: int,
    gate: GateSettings,
    sampling: SamplingSettings | None = None,
    *,
    forced: np.ndarray | None = None,
    head_all: bool = False,
    latency: int = 32,
    stall: float = 0.0,
    seed: int = 0,
    fail_at: int | None = None,
    max_cycles: int = 500_000,
) -> HardwareRun:
    """Run a whole video on the RTL.

    Parameters
    ----------
    config
        The accelerator; with ``trace`` the result holds records.
    image, layout, model
        What `compile_image` gave, and its source.
    prompt
        int (lanes, positions).
    total
        Positions of the video.
    gate, sampling
        Replay policy and sampler.
    forced
        bool (positions, layers, lanes), True = compute, for the gate ``forced``.
    head_all
        Logits for the positions of the prompt, too.
    latency, stall, seed
        Cycles of the memory; probability that a channel pauses in a cycle; seed of the pauses.
    fail_at
        Memory byte whose beat is answered with SLVERR.
    max_cycles
        Limit of the simulation.

    Raises
    ------
    EngineError
        When the engine reports an error or does not end in time.
    """
    image.check(config)
    lanes, given = prompt.shape
    heap = -(-len(image.memory) // _PAGE) * _PAGE
    end = heap + -(-layout.heap_bytes // _PAGE) * _PAGE
    dut = Accelerator(config)
    memory = _Memory(dut, end, layout.beat, latency, stall, seed, fail_at)
    memory.data[: len(image.memory)] = image.memory
    for position in range(given):
        for lane in range(lanes):
            at = heap + layout.token_offset(position, lane)
            memory.data[at : at + 4] = int(prompt[lane, position]).to_bytes(4, "little")
    if forced is not None:
        for position, layers in enumerate(forced):
            for layer, row in enumerate(layers):
                at = heap + layout.forced_offset(position, layer)
                bits = sum(1 << lane for lane, compute in enumerate(row) if compute)
                memory.data[at : at + 4] = bits.to_bytes(4, "little")

    registers = register_map(config)
    run = HardwareRun(tokens=np.zeros((lanes, total), dtype=np.int64))
    outcome: list[str] = []

    async def trace(ctx) -> None:
        while True:
            _, _, matrix, vector, decision = await ctx.tick().sample(
                dut.trace_matrix, dut.trace_vector, dut.trace_gate
            )
            for word in (matrix, vector):
                if word.valid and word.tag:
                    count = min(word.count, config.vector_width)
                    values = tuple(word.data[i] for i in range(count))
                    run.records.append(TraceRecord(word.tag, word.layer, word.lane, word.addr, values))
            if decision.valid:
                run.compute.append((decision.layer, decision.lane, bool(decision.compute)))

    async def main(ctx) -> None:
        host = _Host(ctx, dut.host, registers)
        await _configure(host, image, model, lanes, given, total, gate, sampling or SamplingSettings(),
                         head_all, heap, end)  # fmt: skip
        await host.write("control", 1)
        for _ in range(0, max_cycles, 100):
            await ctx.tick().repeat(100)
            if not await host.read("status") & 1:
                break
        else:
            outcome.append(f"did not end in {max_cycles} cycles: position {await host.read('position')}, "
                           f"layer {await host.read('layer')}, pc {await host.read('pc')}")  # fmt: skip
            return
        for counter in registers.counters:
            low = await host.read(f"{counter.name}_lo")
            run.counters[counter.name] = low | await host.read(f"{counter.name}_hi") << 32
        code = ErrorCode(await host.read("error_code"))
        if code is not ErrorCode.NONE:
            outcome.append(
                f"{code.name} at pc {await host.read('error_pc')}, address {await host.read('error_address_lo'):#x}, "
                f"position {await host.read('position')}, layer {await host.read('layer')}"
            )

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(main)
    sim.add_testbench(memory.read, background=True)
    sim.add_testbench(memory.write, background=True)
    if config.trace:
        sim.add_testbench(trace, background=True)
    sim.run()
    if outcome:
        raise EngineError(outcome[0])
    for position in range(total):
        for lane in range(lanes):
            at = heap + layout.token_offset(position, lane)
            run.tokens[lane, position] = int.from_bytes(memory.data[at : at + 4], "little")
    return run
