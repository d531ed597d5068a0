"""The register block through its bus, its description, and what is exported from it."""

import json
import random
import re
import shutil
import subprocess

import pytest
from amaranth.hdl import Elaboratable, Module
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.errors import ErrorCode
from fastcar_hw.export import registers as export
from fastcar_hw.memory.axi import Response
from fastcar_hw.presets import ACCELERATORS
from fastcar_hw.registers import Access, Array, Field, Register, RegisterBlock, RegisterMap, register_map
from fastcar_hw.registers_counters import CounterBank

CONFIG = AcceleratorConfig(name="registers", lanes=3, cores=2, rows=2, max_layers=3, max_heads=5, address_width=40)
MAP = register_map(CONFIG)
OKAY, SLVERR = Response.OKAY.value, Response.SLVERR.value


class Fixture(Elaboratable):
    """The block with a memory behind each of its arrays."""

    def __init__(self, config):
        self.block = RegisterBlock(config)

    def elaborate(self, platform):
        del platform
        m = Module()
        m.submodules.block = self.block
        for array in self.block.map.arrays:
            window = getattr(self.block, array.name)
            memory = Memory(shape=32, depth=max(2, array.depth), init=[100 + i for i in range(array.depth)])
            m.submodules[array.name] = memory
            write, read = memory.write_port(granularity=8), memory.read_port()
            m.d.comb += [
                write.addr.eq(window.addr), write.data.eq(window.w_data), write.en.eq(window.w_strobe),
                read.addr.eq(window.addr), window.r_data.eq(read.data),
            ]  # fmt: skip
        return m


class Host:
    """An AXI4-Lite master with random waits."""

    def __init__(self, ctx, block, seed=0):
        self.ctx, self.block, self.axi = ctx, block, block.axi
        self.random = random.Random(seed)

    async def _wait(self):
        for _ in range(self.random.choice((0, 0, 1, 3))):
            await self.ctx.tick()

    async def _send(self, channel, payload):
        ctx = self.ctx
        ctx.set(channel.payload, payload)
        ctx.set(channel.valid, 1)

    async def _receive(self, channel):
        """Take an answer; it must stay as it is until it is taken."""
        ctx = self.ctx
        for _ in range(100):
            if ctx.get(channel.valid):
                break
            await ctx.tick()
        else:
            pytest.fail("no answer")
        first = ctx.get(channel.payload)
        await self._wait()
        assert ctx.get(channel.valid) and ctx.get(channel.payload) == first
        ctx.set(channel.ready, 1)
        await ctx.tick()
        ctx.set(channel.ready, 0)
        return first

    async def write_at(self, addr, value, strobe=15):
        """Write; return the response."""
        ctx, axi = self.ctx, self.axi
        todo = [(axi.aw, {"addr": addr}), (axi.w, {"data": value & 0xFFFFFFFF, "strb": strobe})]
        self.random.shuffle(todo)
        open_channels = []
        for channel, payload in todo:
            await self._send(channel, payload)
            open_channels.append(channel)
            if self.random.random() < 0.5:
                assert not any(ctx.get(one.ready) for one in open_channels) or len(open_channels) == 2
                if len(open_channels) == 1:
                    await ctx.tick()
        while open_channels:
            taken = [channel for channel in open_channels if ctx.get(channel.ready)]
            await ctx.tick()
            for channel in taken:
                ctx.set(channel.valid, 0)
                open_channels.remove(channel)
        answer = await self._receive(axi.b)
        return int(answer.resp.value if hasattr(answer.resp, "value") else answer.resp)

    async def read_at(self, addr):
        """Read; return (value, response)."""
        ctx, axi = self.ctx, self.axi
        await self._send(axi.ar, {"addr": addr})
        while not ctx.get(axi.ar.ready):
            await ctx.tick()
        await ctx.tick()
        ctx.set(axi.ar.valid, 0)
        answer = await self._receive(axi.r)
        return int(answer.data), int(answer.resp.value if hasattr(answer.resp, "value") else answer.resp)

    async def write(self, name, value, index=0, strobe=15):
        assert await self.write_at(MAP.offset(name, index), value, strobe) == OKAY

    async def read(self, name, index=0):
        value, response = await self.read_at(MAP.offset(name, index))
        assert response == OKAY
        return value

    async def read64(self, name):
        low = await self.read(f"{name}_lo")
        return low | await self.read(f"{name}_hi") << 32


def simulate(process, config=CONFIG, seed=0):
    fixture = Fixture(config)
    sim = Simulator(fixture)
    sim.add_clock(1e-6)

    async def bench(ctx):
        await process(ctx, fixture.block, Host(ctx, fixture.block, seed))

    sim.add_testbench(bench)
    sim.run()


def test_identity():
    async def process(ctx, block, host):
        del ctx, block
        assert (await host.read("id")).to_bytes(4, "little") == b"FCAR"
        assert await host.read("version") == 0x10000
        assert await host.read64("config_hash") == CONFIG.hash
        assert await host.read("shape") == 2 | 2 << 8 | 3 << 16
        assert await host.read("widths") == CONFIG.cols | CONFIG.vector_width << 16
        assert await host.read("limits") == 3 | 5 << 8 | CONFIG.topk_max << 16

    simulate(process)


def settings_fields():
    return [(r, f) for r in MAP.registers for f in r.fields if f.access is Access.RW]


@pytest.mark.parametrize("seed", [1, 2])
def test_read_back(seed):
    """Random strobed writes to everything that can be written, against a model in bytes."""

    async def process(ctx, block, host):
        model = {}
        for register in MAP.registers:
            if any(f.access is Access.RW for f in register.fields):
                start = sum((f.reset << f.offset) for f in register.fields)
                mask = sum(f.mask for f in register.fields)
                for number in range(register.words):
                    model[register.offset + 4 * number] = [(start >> 32 * number) & 0xFFFFFFFF,
                                                           (mask >> 32 * number) & 0xFFFFFFFF]  # fmt: skip
        rng = random.Random(seed)
        for addr, (value, _) in model.items():
            assert await host.read_at(addr) == (value, OKAY)
        for _ in range(150):
            addr = rng.choice(list(model))
            value, strobe = rng.getrandbits(32), rng.choice((15, rng.randrange(16)))
            assert await host.write_at(addr, value, strobe) == OKAY
            bits = sum(0xFF << 8 * i for i in range(4) if strobe >> i & 1) & model[addr][1]
            model[addr][0] = (model[addr][0] & ~bits) | (value & bits)
            probe = rng.choice((addr, rng.choice(list(model))))
            assert await host.read_at(probe) == (model[probe][0], OKAY)
        for register, part in settings_fields():
            if part.port:
                value = model[register.offset][0]
                if register.words == 2:
                    value |= model[register.offset + 4][0] << 32
                port = getattr(block, register.port_name(part))
                raw = port.as_value() if hasattr(port, "as_value") else port
                assert ctx.get(raw) == (value & part.mask) >> part.offset, register.name

    simulate(process, seed=seed)


def test_errors_change_nothing():
    """Unknown and unaligned addresses, writes to read-only and to locked registers."""
    known = {register.offset + 4 * i for register in MAP.registers for i in range(register.words)}
    holes = [a for a in range(0, 0x400, 4) if a not in known]
    holes += [0x0400 + 4 * 3, 0x0600 + 4 * 5, 0x5000, 0x4000 + 4 * 9, 0xC000, 0xFFFC]

    async def process(ctx, block, host):
        await host.write("prompt", 0x12345678)
        for addr in (*holes[::7], *holes[-6:]):
            assert (await host.read_at(addr))[1] == SLVERR, hex(addr)
            assert await host.write_at(addr, 1) == SLVERR, hex(addr)
        for name in ("prompt", "thresholds", "control"):
            for extra in (1, 2, 3):
                addr = MAP.offset(name) + extra
                assert (await host.read_at(addr))[1] == SLVERR
                assert await host.write_at(addr, 0xFF) == SLVERR
        for name in ("id", "status", "cycles_lo", "macs_hi", "error_code", "eligible", "replayed"):
            assert await host.write_at(MAP.offset(name), 0xFF) == SLVERR
        ctx.set(block.status_running, 1)
        for name in ("prompt", "gate", "image_base_hi", "seed"):
            assert await host.write_at(MAP.offset(name), 0xFF) == SLVERR
        await host.write("irq_enable", 3)
        await host.write("thresholds", 7, 1)
        ctx.set(block.status_running, 0)
        assert await host.read("prompt") == 0x12345678
        assert await host.read("thresholds", 0) == 100
        assert await host.read("thresholds", 1) == 7
        assert await host.read("gate") == 0

    simulate(process)


def test_arrays():
    async def process(ctx, block, host):
        del ctx, block
        rng = random.Random(5)
        model = {a.name: [100 + i for i in range(a.depth)] for a in MAP.arrays}
        for _ in range(80):
            array = rng.choice(MAP.arrays)
            index = rng.randrange(array.depth)
            if array.writable:
                value, strobe = rng.getrandbits(32), rng.randrange(16)
                await host.write(array.name, value, index, strobe)
                bits = sum(0xFF << 8 * i for i in range(4) if strobe >> i & 1)
                model[array.name][index] = (model[array.name][index] & ~bits) | (value & bits)
            for probe in {index, rng.randrange(array.depth)}:
                assert await host.read(array.name, probe) == model[array.name][probe]

    simulate(process)


def test_pulses():
    """A pulse lasts one cycle, only where its byte is enabled; start is ignored while running."""

    async def process(ctx, block, host):
        log = []

        def sample():
            names = (
                "control_start",
                "control_stop",
                "control_clear_error",
                "control_clear_counters",
                "clear",
            )
            return tuple(ctx.get(getattr(block, name)) for name in names)

        async def push(value, strobe=15):
            ctx.set(host.axi.aw.payload.addr, MAP.offset("control"))
            ctx.set(host.axi.w.payload, {"data": value, "strb": strobe})
            ctx.set(host.axi.aw.valid, 1)
            ctx.set(host.axi.w.valid, 1)
            ctx.set(host.axi.b.ready, 1)
            log.clear()
            await ctx.tick()
            ctx.set(host.axi.aw.valid, 0)
            ctx.set(host.axi.w.valid, 0)
            for _ in range(6):
                log.append(sample())
                await ctx.tick()
            ctx.set(host.axi.b.ready, 0)
            return [entry for entry in log if any(entry)]

        # Counters are cleared a cycle later.
        assert await push(1) == [(1, 0, 0, 0, 0), (0, 0, 0, 0, 1)]
        assert await push(2) == [(0, 1, 0, 0, 0)]
        assert await push(4) == [(0, 0, 1, 0, 0)]
        assert await push(8) == [(0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]
        assert await push(15, strobe=14) == []
        assert await push(0) == []
        ctx.set(block.status_running, 1)
        assert await push(3) == [(0, 1, 0, 0, 0)]
        assert await host.read("control") == 0

    simulate(process)


def test_state_errors_and_interrupts():
    async def process(ctx, block, host):
        async def strobe(port, value=1):
            ctx.set(port, value)
            await ctx.tick()
            ctx.set(port, 0 if port is not block.error else ErrorCode.NONE)

        ctx.set(block.status_busy, 0b101101)
        ctx.set(block.position, 77)
        ctx.set(block.layer, 3)
        ctx.set(block.pc, 0x123)
        assert await host.read("status") == 0b101101 << 8
        assert [await host.read(name) for name in ("position", "layer", "pc")] == [77, 3, 0x123]
        ctx.set(block.status_running, 1)
        assert await host.read("status") == 0b101101 << 8 | 1
        ctx.set(block.status_running, 0)

        await host.write("irq_enable", 1)
        await strobe(block.done)
        assert ctx.get(block.irq)
        assert await host.read("status") & 7 == 2
        assert await host.read("irq_pending") == 1
        await host.write("irq_pending", 2)
        assert ctx.get(block.irq)
        await host.write("irq_pending", 1, strobe=2)
        assert ctx.get(block.irq)
        await host.write("irq_pending", 1)
        assert not ctx.get(block.irq)

        ctx.set(block.error_pc, 0x42)
        ctx.set(block.error_address, 0x98_7654_3210)
        await strobe(block.error, ErrorCode.READ_BUS)
        ctx.set(block.error_pc, 0x43)
        ctx.set(block.error_address, 5)
        await strobe(block.error, ErrorCode.TRAP)
        assert not ctx.get(block.irq)
        assert await host.read("error_code") == ErrorCode.READ_BUS.value
        assert await host.read("error_pc") == 0x42
        assert await host.read64("error_address") == 0x98_7654_3210
        assert await host.read("status") & 7 == 6
        await host.write("irq_enable", 2)
        assert ctx.get(block.irq)
        await host.write("control", 4)
        assert await host.read("error_code") == 0
        assert await host.read("irq_pending") == 2
        await strobe(block.error, ErrorCode.STOPPED)
        assert await host.read("error_code") == ErrorCode.STOPPED.value
        await host.write("control", 1)
        assert await host.read("status") & 7 == 0

    simulate(process)


def test_counters():
    """Every counter counts its own event, exactly, and only while it should."""

    async def process(ctx, block, host):
        ports = {r.name: f"count_{r.name}" for r in MAP.counters if r.fields[0].port}
        cycles = 0
        ctx.set(block.status_running, 1)
        ctx.set(block.status_busy, 0b000110)
        for number, name in enumerate(ports.values()):
            ctx.set(getattr(block, name), 1)
            for _ in range(number + 1):
                await ctx.tick()
                cycles += 1
            ctx.set(getattr(block, name), 0)
        ctx.set(block.count_macs, CONFIG.lanes * CONFIG.cols)
        for _ in range(300):
            await ctx.tick()
            cycles += 1
        ctx.set(block.count_macs, 0)
        ctx.set(block.status_running, 0)
        for number, name in enumerate(ports):
            extra = 300 * CONFIG.lanes * CONFIG.cols if name == "macs" else 0
            assert await host.read64(name) == number + 1 + extra, name
        assert await host.read64("cycles") == cycles
        assert await host.read64("busy_matrix") == await host.read64("busy_vector") == cycles
        assert await host.read64("busy_load") == 0
        await host.write("control", 8)
        for register in MAP.counters:
            assert await host.read64(register.name) == 0
        ctx.set(block.count_dropped, 1)
        await ctx.tick()
        ctx.set(block.count_dropped, 0)
        assert await host.read64("dropped") == 1

    simulate(process)


def test_high_word_is_latched():
    """The two halves of a counter belong together, even when it carries between the two reads."""

    async def process(ctx, block, host):
        index = next(i for i, r in enumerate(MAP.counters) if r.name == "stall_beats")
        for _ in range(block.counters.period):
            await ctx.tick()
        # Nobody waits for 2^32 events.
        ctx.set(block.counters.words[index], (1 << 32) - 100)
        ctx.set(block.count_stall_beats, 1)
        seen = set()
        for _ in range(6):
            low = await host.read("stall_beats_lo")
            for _ in range(60):
                await ctx.tick()
            high = await host.read("stall_beats_hi")
            seen.add(high)
            assert (high, low >> 31) in ((0, 1), (1, 0))
        assert seen == {0, 1}

    simulate(process)


def test_counter_bank_is_exact():
    widths = [1, 4, 9]
    dut = CounterBank(widths)
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def bench(ctx):
        rng = random.Random(3)
        totals, before = [0, 0, 0], [0, 0, 0]
        for cycle in range(2000):
            amounts = [rng.choice((0, (1 << width) - 1, rng.getrandbits(width))) for width in widths]
            ctx.set(dut.amount, {f"c{i}": amount for i, amount in enumerate(amounts)})
            clear = cycle in (0, 500, 501, 1200)
            ctx.set(dut.clear, clear)
            if cycle % 3 == 0:
                ctx.set(dut.select, rng.randrange(3))
            ctx.set(dut.read, 1)
            if ctx.get(dut.done):
                assert ctx.get(dut.value) == before[ctx.get(dut.select)]
            await ctx.tick()
            before = totals
            totals = [0] * 3 if clear else [a + b for a, b in zip(totals, amounts, strict=True)]

    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("name", ACCELERATORS)
def test_maps_of_presets(name):
    """Every preset has a sound map; only depths and constants differ from one to the next."""
    registers = register_map(ACCELERATORS[name])
    assert registers.offsets == MAP.offsets
    assert registers.offset("config_hash_lo") == registers.offset("config_hash") == 8


def test_offsets_are_stable():
    """Hosts are compiled against these; moving one needs another major version."""
    expected = {
        "id": 0x00, "version": 0x04, "config_hash": 0x08, "control": 0x20, "status": 0x24, "error_code": 0x30,
        "error_address_hi": 0x3C, "position": 0x40, "image_base": 0x80, "write_limit_hi": 0xAC,
        "model_hash": 0xB0,
        "lanes": 0xC0, "gate": 0xD4, "topk": 0xE0, "seed": 0xEC, "cycles_lo": 0x100, "busy_load": 0x108,
        "stall_beats": 0x138, "beats_weights": 0x158, "beats_written": 0x180, "dropped_hi": 0x1A4,
        "thresholds": 0x400, "head_weights": 0x600, "eligible": 0x4000, "replayed": 0x8000,
    }  # fmt: skip
    assert {name: MAP.offset(name) for name in expected} == expected
    assert MAP.register("version").fields[0].reset >> 16 == 1


def test_lookup_errors():
    with pytest.raises(KeyError, match="no register is called 'nonsense'"):
        MAP.offset("nonsense")
    with pytest.raises(KeyError, match=r"'thresholds' has entries 0\.\.2, not 3"):
        MAP.offset("thresholds", 3)
    with pytest.raises(KeyError, match="no register"):
        MAP.register("nonsense")


@pytest.mark.parametrize(
    ("registers", "arrays", "message"),
    [
        ([Register(name="a", offset=2, fields=(Field(),))], [], "aligned address"),
        ([Register(name="a", offset=0, fields=(Field(),), words=2),
          Register(name="b", offset=4, fields=(Field(),))], [], "must be free"),
        ([Register(name="a", offset=0, fields=(Field(shape=4), Field(name="x", offset=3)))], [], "free bits"),
        ([Register(name="a", offset=0, fields=(Field(shape=33),))], [], "free bits"),
        ([], [Array(name="t", offset=0x44, depth=5)], "multiple of 32"),
    ],
)  # fmt: skip
def test_bad_maps(registers, arrays, message):
    with pytest.raises(ValueError, match=message):
        RegisterMap(registers=tuple(registers), arrays=tuple(arrays))


def test_json_and_markdown():
    plain = json.loads(export.to_json(MAP))
    assert {r["name"]: r["offset"] for r in plain["registers"]} == {r.name: r.offset for r in MAP.registers}
    assert [a["depth"] for a in plain["arrays"]] == [3, 5, 9, 9]
    text = export.to_markdown(MAP)
    for register in MAP.registers:
        assert f"`{register.name}`" in text
        assert register.doc and all(part.doc for part in register.fields)
    assert len({line.count("|") for line in text.splitlines()[: len(MAP.registers)]}) == 1


def test_c_header(tmp_path):
    """The header compiles without a warning and says what the map says."""
    text = export.to_c_header(MAP)
    values = dict(re.findall(r"#define FASTCAR_(\w+) +0x([0-9a-f]+)u", text))
    for name, offset in MAP.offsets.items():
        if name.upper() in values:
            assert int(values[name.upper()], 16) == offset
    assert {"CONFIG_HASH_LO", "CONTROL", "SEED", "MACS_HI"} <= values.keys()
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "fastcar_registers.h").write_text(text, encoding="utf-8")
    (tmp_path / "main.c").write_text(
        '#include "fastcar_registers.h"\n#include "fastcar_registers.h"\n'
        f'_Static_assert(FASTCAR_THRESHOLDS(2) == {MAP.offset("thresholds", 2)}u, "");\n'
        '_Static_assert(FASTCAR_GATE_DEFINITION_MASK == 1u << FASTCAR_GATE_DEFINITION_SHIFT, "");\n'
        "int main(void) { return FASTCAR_ID_VALUE != 0x52414346u; }\n",
        encoding="utf-8",
    )
    subprocess.run([compiler, "-std=c11", "-Wall", "-Werror", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)
