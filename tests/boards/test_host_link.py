"""The host link: hardware bridge and driver, each against the other and against a bad line."""

import gc
import random
import struct
import zlib

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from boards.host import Command, HostBridge, Identity, Status
from boards.host.protocol import MAX_PAYLOAD, REPLY_START, REQUEST_START
from boards.host.uart import divider
from boards.onchip import OnChipMemory
from fastcar_hw.config import ConfigError
from fastcar_hw.memory.axi import Response

IDENTITY = Identity(version=1, data_width=64, memory_bytes=4096, clock_hz=1_000_000, config_hash=0x0123456789ABCDEF)
BAUD, CYCLES, TIMEOUT = 250_000, 4, 400


def frame(sequence, command, address=0, length=0, payload=b""):
    body = struct.pack("<BBIH", sequence, command, address, length) + payload
    return bytes([REQUEST_START]) + body + struct.pack("<I", zlib.crc32(body))


class Bench:
    """A bridge with a memory, registers that remember, and a line of bits."""

    def __init__(self, register_error=frozenset()):
        self.bridge = HostBridge(IDENTITY, register_width=12, addr_width=20, baud=BAUD, timeout=TIMEOUT)
        self.memory = OnChipMemory(20, 64, 4096)
        self.registers, self.writes, self.register_error = {}, [], register_error
        m = Module()
        m.submodules.bridge, m.submodules.memory = self.bridge, self.memory
        wiring.connect(m, self.bridge.read, self.memory.read)
        wiring.connect(m, self.bridge.write, self.memory.write)
        self.sim = Simulator(m)
        self.sim.add_clock(1e-6)
        self.sim.add_testbench(self._registers, background=True)
        self.replies = bytearray()

    async def _registers(self, ctx):
        """Answer AXI4-Lite, with pauses."""
        host, rng = self.bridge.host, random.Random(7)
        while True:
            await ctx.tick()
            if ctx.get(host.ar.valid):
                for _ in range(rng.randrange(3)):
                    await ctx.tick()
                address = ctx.get(host.ar.payload.addr)
                ctx.set(host.ar.ready, 1)
                await ctx.tick()
                ctx.set(host.ar.ready, 0)
                bad = address in self.register_error
                ctx.set(host.r.payload.data, self.registers.get(address, 0))
                ctx.set(host.r.payload.resp, Response.SLVERR if bad else Response.OKAY)
                ctx.set(host.r.valid, 1)
                await ctx.tick().until(host.r.ready)
                ctx.set(host.r.valid, 0)
            elif ctx.get(host.aw.valid):
                address, value = ctx.get(host.aw.payload.addr), ctx.get(host.w.payload.data)
                # The two halves are taken one after the other.
                ctx.set(host.aw.ready, 1)
                await ctx.tick()
                ctx.set(host.aw.ready, 0)
                assert ctx.get(host.w.valid) and not ctx.get(host.aw.valid)
                ctx.set(host.w.ready, 1)
                await ctx.tick()
                ctx.set(host.w.ready, 0)
                self.registers[address] = value
                self.writes.append((address, value))
                bad = address in self.register_error
                ctx.set(host.b.payload.resp, Response.SLVERR if bad else Response.OKAY)
                ctx.set(host.b.valid, 1)
                await ctx.tick().until(host.b.ready)
                ctx.set(host.b.valid, 0)

    def run(self, script):
        """Run ``script(bench, ctx)`` and return when it has ended."""
        done = []

        async def listen(ctx):
            while True:
                while ctx.get(self.bridge.tx):
                    await ctx.tick()
                await ctx.tick().repeat(CYCLES // 2)
                byte = 0
                for bit in range(8):
                    await ctx.tick().repeat(CYCLES)
                    byte |= ctx.get(self.bridge.tx) << bit
                await ctx.tick().repeat(CYCLES)
                assert ctx.get(self.bridge.tx), "no stop bit"
                self.replies.append(byte)

        async def main(ctx):
            await script(self, ctx)
            done.append(True)

        self.sim.add_testbench(main)
        self.sim.add_testbench(listen, background=True)
        # Every wait of a script is bounded.
        self.sim.run()
        assert done

    async def send(self, ctx, data, cycles=CYCLES):
        for byte in data:
            for bit in (0, *((byte >> n) & 1 for n in range(8)), 1):
                ctx.set(self.bridge.rx, bit)
                await ctx.tick().repeat(cycles)

    async def reply(self, ctx, limit=40_000):
        """Return (sequence, status, payload) of the next reply."""
        for _ in range(limit):
            if len(self.replies) >= 5:
                assert self.replies[0] == REPLY_START
                sequence, status, length = struct.unpack("<BBH", self.replies[1:5])
                if len(self.replies) == 9 + length:
                    content = bytes(self.replies[5 : 5 + length])
                    assert zlib.crc32(self.replies[1 : 5 + length]) == struct.unpack("<I", self.replies[-4:])[0]
                    self.replies.clear()
                    return sequence, status, content
            await ctx.tick()
        raise AssertionError("no reply")

    async def ask(self, ctx, *arguments):
        await self.send(ctx, frame(*arguments))
        return await self.reply(ctx)


def run(script, **options):
    bench = Bench(**options)
    bench.run(script)
    return bench


def test_identity_registers_and_interrupt():
    async def script(bench, ctx):
        sequence, status, content = await bench.ask(ctx, 9, Command.IDENTIFY)
        assert (sequence, status) == (9, Status.OK) and Identity.from_bytes(content) == IDENTITY
        bench.registers[0x124] = 0xDEADBEEF
        assert await bench.ask(ctx, 10, Command.READ_REGISTER, 0x124, 4) == (10, 0, bytes.fromhex("efbeadde"))
        assert await bench.ask(ctx, 11, Command.WRITE_REGISTER, 0x10, 4, b"\1\2\3\4") == (11, 0, b"")
        assert await bench.ask(ctx, 12, Command.STATUS) == (12, 0, b"\0")
        ctx.set(bench.bridge.irq, 1)
        assert await bench.ask(ctx, 13, Command.STATUS) == (13, 0, b"\1")

    assert run(script).writes == [(0x10, 0x04030201)]


@pytest.mark.parametrize("size", [8, 16, 40, MAX_PAYLOAD])
def test_memory_comes_back_as_it_was_written(size):
    content = random.Random(size).randbytes(size)

    async def script(bench, ctx):
        assert await bench.ask(ctx, 1, Command.WRITE_MEMORY, 0x100, size, content) == (1, 0, b"")
        assert await bench.ask(ctx, 2, Command.READ_MEMORY, 0x100, size) == (2, 0, content)
        # Neighbours stay.
        assert await bench.ask(ctx, 3, Command.READ_MEMORY, 0x200, 8) == (3, 0, bytes(8))

    run(script)


def test_a_repeated_write_is_answered_but_not_done_again():
    async def script(bench, ctx):
        for sequence in (5, 5, 6):
            assert await bench.ask(ctx, sequence, Command.WRITE_REGISTER, 4, 4, bytes(4)) == (sequence, 0, b"")
        # A new session may begin with any number.
        await bench.ask(ctx, 6, Command.IDENTIFY)
        await bench.ask(ctx, 6, Command.WRITE_REGISTER, 4, 4, bytes(4))

    assert len(run(script).writes) == 3


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ((1, 77), Status.BAD_COMMAND),
        ((1, Command.WRITE_REGISTER, 0, 3, bytes(3)), Status.BAD_COMMAND),
        ((1, Command.READ_MEMORY, 4, 8), Status.BAD_ADDRESS),
        ((1, Command.READ_MEMORY, 0, 12), Status.BAD_ADDRESS),
        ((1, Command.READ_MEMORY, 0, 0), Status.BAD_ADDRESS),
        ((1, Command.READ_MEMORY, 0xF8, 16), Status.BAD_ADDRESS),
        ((1, Command.READ_MEMORY, 0, 512), Status.BAD_ADDRESS),
        ((1, Command.WRITE_MEMORY, 0xF8, 16, bytes(16)), Status.BAD_ADDRESS),
        ((1, Command.READ_MEMORY, 8192, 8), Status.BUS_ERROR),
        ((1, Command.WRITE_MEMORY, 8192, 8, bytes(8)), Status.BUS_ERROR),
        ((1, Command.READ_REGISTER, 0x40, 4), Status.BUS_ERROR),
        ((1, Command.WRITE_REGISTER, 0x40, 4, bytes(4)), Status.BUS_ERROR),
    ],
)
def test_requests_that_cannot_be_done_say_why(request_, status):
    async def script(bench, ctx):
        assert await bench.ask(ctx, *request_) == (1, status, b"")
        # And the next one works.
        assert await bench.ask(ctx, 2, Command.STATUS) == (2, 0, b"\0")

    run(script, register_error={0x40})


def damaged():
    """Bytes that must be survived without an effect or an answer."""
    good = frame(1, Command.WRITE_REGISTER, 0x20, 4, b"abcd")
    rng = random.Random(3)
    yield "noise", rng.randbytes(60).replace(bytes([REQUEST_START]), b"\0")
    yield "wrong checksum", good[:-1] + bytes([good[-1] ^ 1])
    yield "wrong payload", good[:9] + b"x" + good[10:]
    yield "too long", frame(1, Command.WRITE_MEMORY, 0, 300, bytes(300))[:40]
    for cut in (1, 5, 9, 11, len(good) - 1):
        yield f"cut after {cut}", good[:cut]


@pytest.mark.parametrize(("name", "data"), list(damaged()))
def test_damaged_requests_have_no_effect_and_the_next_one_works(name, data):
    async def script(bench, ctx):
        await bench.send(ctx, data)
        await ctx.tick().repeat(TIMEOUT + 60)
        assert not bench.replies
        assert await bench.ask(ctx, 1, Command.STATUS) == (1, 0, b"\0")

    assert run(script).writes == []


@pytest.mark.parametrize("cycles", [3, 6, 9])
def test_a_wrong_rate_does_nothing(cycles):
    async def script(bench, ctx):
        await bench.send(ctx, frame(1, Command.WRITE_REGISTER, 0x20, 4, b"abcd"), cycles)
        await ctx.tick().repeat(TIMEOUT + 60)
        assert not bench.replies
        assert await bench.ask(ctx, 2, Command.STATUS) == (2, 0, b"\0")

    assert run(script).writes == []


def test_a_break_is_survived():
    async def script(bench, ctx):
        ctx.set(bench.bridge.rx, 0)
        await ctx.tick().repeat(500)
        ctx.set(bench.bridge.rx, 1)
        await ctx.tick().repeat(20)
        assert await bench.ask(ctx, 1, Command.STATUS) == (1, 0, b"\0")

    run(script)


@pytest.mark.parametrize(("clock", "baud"), [(1_000_000, 300_000), (1_000_000, 0), (50_000_000, 21_000_000)])
def test_a_rate_that_cannot_be_made_is_refused(clock, baud):
    with pytest.raises(ConfigError, match="baud must be"):
        divider(clock, baud)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_a_width_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="data_width"):
        HostBridge(Identity(version=1, data_width=48, memory_bytes=1, clock_hz=1_000_000, config_hash=0),
                   register_width=12, addr_width=20, baud=BAUD)  # fmt: skip
    # What was never finished is collected while nobody minds.
    gc.collect()
