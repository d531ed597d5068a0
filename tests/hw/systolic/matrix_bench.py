"""Test bench: the matrix unit with the real beat FIFO, tables for places and exponents, random stalls."""

import random
from dataclasses import dataclass, field
from functools import cache

from amaranth.hdl import Cat, Elaboratable, Module, signed, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.sim import Simulator
from matrix_reference import Job, World

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Dest
from fastcar_hw.memory.beat_fifo import BeatFifo
from fastcar_hw.systolic import MatrixUnit


class Surroundings(Elaboratable):
    """The unit and everything that answers it within a cycle."""

    def __init__(self, config: AcceleratorConfig, *, late_exponents: bool) -> None:
        g = config.derived
        self.config = config
        self.late_exponents = late_exponents
        self.unit = MatrixUnit(config)
        self.fifo = BeatFifo(config)
        entry = data.StructLayout({"exponent": signed(8), "scale": unsigned(16)})
        self.index_bits = (g.ex_slots - 1).bit_length()
        self.exponents = memory.Memory(shape=entry, depth=32 << self.index_bits, init=[])
        self.lanes = memory.Memory(shape=unsigned(5), depth=2 << (g.core_bits + g.slot_bits), init=[])

    def elaborate(self, platform: object) -> Module:
        m = Module()
        unit, places = self.unit, self.unit.places
        m.submodules.unit, m.submodules.fifo = unit, self.fifo
        m.submodules.exponents, m.submodules.lanes = self.exponents, self.lanes
        wiring.connect(m, unit.beats, self.fifo.matrix)
        exponent = self.exponents.read_port(domain="sync" if self.late_exponents else "comb")
        lane = self.lanes.read_port(domain="comb")
        m.d.comb += [
            exponent.addr.eq(Cat(unit.ex_index[: self.index_bits], unit.ex_lane)),
            unit.ex_exponent.eq(exponent.data.exponent),
            unit.ex_scale.eq(exponent.data.scale),
            lane.addr.eq(Cat(places.index, places.core, places.mapped)),
            places.lane.eq(lane.data),
        ]
        return m


@dataclass
class Stalls:
    """Probabilities of a pause, a cycle."""

    seed: int = 0
    command: float = 0.0
    beats: float = 0.0
    results: float = 0.0


@dataclass
class Observed:
    """What came out, and when."""

    y: list[tuple] = field(default_factory=list)
    s: list[tuple] = field(default_factory=list)
    tas: list[tuple] = field(default_factory=list)
    logits: list[tuple] = field(default_factory=list)
    trace: list[tuple] = field(default_factory=list)
    macs: int = 0
    saturated: int = 0
    starved: int = 0
    held: int = 0
    accepted: list[int] = field(default_factory=list)  # cycles in which commands were taken
    taken: list[int] = field(default_factory=list)  # cycles in which beats were taken
    words: list[int] = field(default_factory=list)  # cycles in which words left
    idle: int = 0  # first cycle without busy after the last command


class Bench:
    """A simulation that can be run again and again: compiling it takes longer than most runs."""

    def __init__(self, config: AcceleratorConfig, *, late_exponents: bool) -> None:
        self.dut = Surroundings(config, late_exponents=late_exponents)
        unit = self.dut.unit
        self.ports = {"y": unit.y_write, "s": unit.s_write, "tas": unit.tas, "logits": unit.logits}
        self.config = config
        self.sim = Simulator(self.dut)
        self.sim.add_clock(1e-6)
        self.sim.add_testbench(self._process)
        self._fresh = True

    def run(self, world: World, jobs: list[Job], stalls: Stalls | None = None, *, prefill: int = 0) -> Observed:
        """Run jobs; ``prefill`` cycles pass before the first command, while beats arrive."""
        self._work = (world, jobs, stalls or Stalls(), prefill)
        self.observed = Observed()
        self.finished = False
        if not self._fresh:
            self.sim.reset()
        self._fresh = False
        self.sim.run()
        assert self.finished
        return self.observed

    async def _prepare(self, ctx, world: World) -> None:
        c, g, unit = self.config, self.config.derived, self.dut.unit
        for lane in range(c.lanes):
            for index in range(g.ex_slots):
                value = {
                    "exponent": int(world.exponents[lane, index]),
                    "scale": int(world.scales[lane, index]),
                }
                ctx.set(self.dut.exponents.data[lane << self.dut.index_bits | index], value)
        for mapped in range(2):
            for core in range(c.cores):
                lanes = world.mapped[core] if mapped else world.static(core)
                counts = unit.places.mapped_count if mapped else unit.places.static_count
                ctx.set(counts[core], len(lanes))
                for index, lane in enumerate(lanes):
                    address = (mapped << g.core_bits | core) << g.slot_bits | index
                    ctx.set(self.dut.lanes.data[address], lane)
        ctx.set(unit.act_en, 1)
        for core in range(c.cores):
            ctx.set(unit.act_core, core)
            for index in range(g.slots):
                ctx.set(unit.act_index, index)
                for address in range(0, g.act_depth, c.vector_width):
                    ctx.set(unit.act_addr, address)
                    word = world.act[core, index, address : address + c.vector_width]
                    ctx.set(unit.act_data, [int(v) for v in word])
                    await ctx.tick()
        ctx.set(unit.act_en, 0)

    def _collect(self, ctx, name: str) -> None:
        word = ctx.get(self.ports[name].payload)
        out = getattr(self.observed, name)
        if name == "tas":
            out.append((word.lane, word.head, word.score))
        elif name == "s":
            out.append((word.bank, word.addr, tuple(word.data), tuple(word.ve), word.mask, word.first,
                        word.tag, word.layer, word.lane))  # fmt: skip
        else:
            out.append((word.lane, word.addr, tuple(word.data), word.tag, word.layer))

    async def _process(self, ctx) -> None:
        world, jobs, stalls, prefill = self._work
        unit, fifo, seen = self.dut.unit, self.dut.fifo, self.observed
        rng = random.Random(stalls.seed)
        await self._prepare(ctx, world)
        commands = [job.command() for job in jobs]
        beats = [beat for job in jobs for beat in job.beats()]
        ports = self.ports
        cycle, idle = 0, 0
        command_valid = beat_valid = False
        limit = 4000 + 60 * len(beats)
        while cycle < limit:
            command_valid = command_valid or (bool(commands) and cycle >= prefill and rng.random() >= stalls.command)
            beat_valid = beat_valid or (bool(beats) and rng.random() >= stalls.beats)
            ctx.set(unit.command.valid, command_valid)
            ctx.set(fifo.i.valid, beat_valid)
            if command_valid:
                ctx.set(unit.command.payload, commands[0])
            if beat_valid:
                ctx.set(fifo.i.payload, {"dest": Dest.MATRIX, "beat": beats[0]})
            ready = {name: rng.random() >= stalls.results for name in ports}
            for name, port in ports.items():
                ctx.set(port.ready, ready[name])

            busy = ctx.get(unit.busy)
            # A command makes the unit busy at once; what leaves it does so while it is busy.
            assert busy or not (seen.accepted and seen.accepted[-1] == cycle - 1)
            for name, port in ports.items():
                if ready[name] and ctx.get(port.valid):
                    assert busy
                    self._collect(ctx, name)
                    seen.words.append(cycle)
            if self.config.trace and ctx.get(unit.trace.valid):
                t = ctx.get(unit.trace)
                seen.trace.append((t.tag, t.layer, t.lane, t.kind, t.addr, tuple(t.data)[: t.count]))
            seen.macs += ctx.get(unit.macs)
            seen.saturated += ctx.get(unit.saturated)
            seen.starved += ctx.get(unit.starved)
            seen.held += ctx.get(unit.held)
            if ctx.get(unit.beats.stream.valid) and ctx.get(unit.beats.stream.ready):
                seen.taken.append(cycle)
            if command_valid and ctx.get(unit.command.ready):
                seen.accepted.append(cycle)
                commands.pop(0)
                command_valid = False
                idle = 0
            elif not busy and not commands and seen.accepted and cycle > seen.accepted[-1]:
                idle += 1
                if idle == 1:
                    seen.idle = cycle
                # A while longer: nothing may follow.
                if idle == 12:
                    break
            if beat_valid and ctx.get(fifo.i.ready):
                beats.pop(0)
                beat_valid = False
            await ctx.tick()
            cycle += 1
        assert cycle < limit, "the unit hangs"
        assert not commands
        if not beats:
            await ctx.tick()
            assert ctx.get(fifo.level) == 0, "beats were left, or not freed"
        self.finished = True


@cache
def bench(config: AcceleratorConfig, *, late_exponents: bool = False) -> Bench:
    """Return the (compiled) bench of a configuration."""
    return Bench(config, late_exponents=late_exponents)
