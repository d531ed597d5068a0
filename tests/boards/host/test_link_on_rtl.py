"""The driver's link on the bridge itself: its bytes go through a pseudo-terminal into the simulated line and back."""

import os
import pty
import threading
import tty

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from boards.host import HostBridge, Identity
from boards.host.protocol import PROTOCOL_VERSION
from boards.host.uart import UartReceiver, UartTransmitter
from fastcar_hw.config import AcceleratorConfig
from fastcar_sw.engines.device import DeviceLink

CONFIG = AcceleratorConfig(name="rtl", cols=8, vector_width=2, max_hidden=64)
CLOCK, BIT = 1_000_000, 4


class SimulatedBoard:
    """Bridge, memory and four registers in Amaranth's simulator, moved on by a thread."""

    def __init__(self):
        identity = Identity(version=PROTOCOL_VERSION, data_width=64, memory_bytes=4096, clock_hz=CLOCK,
                            config_hash=CONFIG.hash)  # fmt: skip
        self.memory, self.registers = bytearray(4096), [0] * 4
        self.bridge = HostBridge(identity, register_width=12, addr_width=32, baud=CLOCK // BIT, timeout=2000)
        self.out, self.into = UartTransmitter(BIT), UartReceiver(BIT)
        m = Module()
        m.submodules += [self.bridge, self.out, self.into]
        m.d.comb += [self.bridge.rx.eq(self.out.tx), self.into.rx.eq(self.bridge.tx)]
        # Keeps the domain alive in a top that is combinational.
        m.d.sync += Signal().eq(0)
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        os.set_blocking(self.master, False)
        self.port = os.ttyname(self.slave)
        self.sim = Simulator(m)
        self.sim.add_clock(1e-6)
        for bench in (self._pump, self._answers, self._registers, self._read, self._write):
            self.sim.add_testbench(bench, background=True)
        self.stop, self.failure = False, None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self):
        self.stop = True
        self.thread.join(30)
        os.close(self.slave)
        os.close(self.master)
        assert self.failure is None, self.failure

    def _run(self):
        try:
            while not self.stop:
                self.sim.advance()
        except Exception as error:
            self.failure = error

    async def _pump(self, ctx):
        while True:
            try:
                raw = os.read(self.master, 512)
            except BlockingIOError:
                raw = b""
                for _ in range(20):
                    await ctx.tick()
            for byte in raw:
                ctx.set(self.out.i.payload, byte)
                ctx.set(self.out.i.valid, 1)
                taken = 0
                while not taken:
                    _, _, taken = await ctx.tick().sample(self.out.i.ready)
                ctx.set(self.out.i.valid, 0)

    async def _answers(self, ctx):
        async for _, _, valid, byte, error in ctx.tick().sample(self.into.valid, self.into.data, self.into.error):
            assert not error
            if valid:
                os.write(self.master, bytes([byte]))

    async def _registers(self, ctx):
        host = self.bridge.host
        for channel in (host.ar, host.aw, host.w):
            ctx.set(channel.ready, 1)
        address = None
        async for _, _, ar, at, aw, to, w, word, r, b in ctx.tick().sample(
            host.ar.valid, host.ar.payload.addr, host.aw.valid, host.aw.payload.addr, host.w.valid,
            host.w.payload.data, host.r.ready, host.b.ready,
        ):  # fmt: skip
            if r and ctx.get(host.r.valid):
                ctx.set(host.r.valid, 0)
            if b and ctx.get(host.b.valid):
                ctx.set(host.b.valid, 0)
            if ar:
                ctx.set(host.r.payload, {"data": self.registers[at // 4 % 4], "resp": 0})
                ctx.set(host.r.valid, 1)
            address = to if aw else address
            if w:
                self.registers[address // 4 % 4] = word
                ctx.set(host.b.valid, 1)

    async def _read(self, ctx):
        port, beats = self.bridge.read, []
        ctx.set(port.ar.ready, 1)
        async for _, _, asked, request, taken in ctx.tick().sample(port.ar.valid, port.ar.payload, port.r.ready):
            if taken and ctx.get(port.r.valid):
                beats.pop(0)
            if asked:
                beats += [(request.addr + 8 * i, i == request.len) for i in range(request.len + 1)]
            ctx.set(port.r.valid, bool(beats))
            if beats:
                at, last = beats[0]
                value = int.from_bytes(self.memory[at : at + 8], "little")
                ctx.set(port.r.payload, {"data": value, "resp": 0, "last": last})

    async def _write(self, ctx):
        port, address = self.bridge.write, 0
        ctx.set(port.aw.ready, 1)
        ctx.set(port.w.ready, 1)
        async for _, _, asked, request, offered, beat, taken in ctx.tick().sample(
            port.aw.valid, port.aw.payload, port.w.valid, port.w.payload, port.b.ready
        ):
            if taken and ctx.get(port.b.valid):
                ctx.set(port.b.valid, 0)
            if asked:
                address = request.addr
            if offered:
                self.memory[address : address + 8] = beat.data.to_bytes(8, "little")
                address += 8
                if beat.last:
                    ctx.set(port.b.valid, 1)


def test_registers_and_memory_through_the_line():
    board = SimulatedBoard()
    data = bytes(range(3, 80))
    try:
        with DeviceLink(board.port, CONFIG, 115_200, timeout=20.0) as link:
            assert link.memory_bytes == 4096
            link.write(8, 0x12345678)
            assert link.read(8) == 0x12345678
            link.write_memory(0x2FB, data)
            assert link.read_memory(0x2FB, len(data)) == data
            assert link.wait(1) is False
        # The middle of a frame, then nothing: the next session begins after the bridge gave it up.
        os.write(board.slave, b"\xfa\x01\x04\x00")
        with DeviceLink(board.port, CONFIG, 115_200, timeout=2.0) as link:
            assert link.read(8) == 0x12345678
    finally:
        board.close()
    assert board.memory[0x2FB : 0x2FB + len(data)] == data
    assert sum(map(bool, board.memory)) == len(data)
