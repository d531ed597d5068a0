"""Everything of a matrix board but clock and pins: host link, registers, engine, memory."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from ..catalogue import BoardSpec
from ..host import HostBridge, Identity
from ..host.protocol import PROTOCOL_VERSION
from .engine import MatrixEngine
from .port import AxiPort, SinglePortMemory
from .registers import ADDRESS_BITS, MatrixRegisters

__all__ = ["MatrixCore"]


class MatrixCore(wiring.Component):
    """A matrix engine behind a serial line.

    Parameters
    ----------
    spec
        The board.
    memory
        Makes the memory, ``(depth, width)``, with the port of `SinglePortMemory`; this one when missing.

    Attributes
    ----------
    rx : In; tx : Out
        Serial line of the host.
    leds : Out, 2 bits
        Request at work; engine at work.

    Notes
    -----
    One clock domain, `sync`, of ``spec.clock_hz``.  While the engine works, accesses to the memory wait.
    """

    rx: In(1, init=1)
    tx: Out(1, init=1)
    leds: Out(2)

    def __init__(self, spec: BoardSpec, memory=SinglePortMemory) -> None:
        self._spec, self._memory = spec, memory
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        spec, c = self._spec, self._spec.config
        width = c.derived.data_width
        depth = spec.memory_bytes * 8 // width
        identity = Identity(
            version=PROTOCOL_VERSION, data_width=width, memory_bytes=spec.memory_bytes, clock_hz=spec.clock_hz,
            config_hash=spec.identity,
        )  # fmt: skip
        m.submodules.bridge = bridge = HostBridge(
            identity, register_width=ADDRESS_BITS, addr_width=c.address_width, baud=spec.baud
        )
        m.submodules.registers = registers = MatrixRegisters(c, depth)
        m.submodules.engine = engine = MatrixEngine(c, depth)
        m.submodules.axi = axi = AxiPort(c.address_width, width, depth)
        m.submodules.memory = memory = self._memory(depth, width)
        connect(m, bridge.host, registers.axi)
        connect(m, bridge.read, axi.read)
        connect(m, bridge.write, axi.write)
        # The engine starts only when the host is between two requests, and the host waits until it has finished.
        working = Signal()
        m.d.comb += [
            working.eq(engine.busy | registers.start),
            axi.grant.eq(~working),
            engine.grant.eq(~axi.active),
            engine.product.eq(registers.product),
            engine.start.eq(registers.start),
            registers.busy.eq(engine.busy),
        ]
        for name in ("en", "write", "addr", "w_data"):
            mine, other = getattr(engine.port, name), getattr(axi.port, name)
            m.d.comb += getattr(memory.port, name).eq(Mux(axi.active, other, mine))
        m.d.comb += [
            engine.port.r_data.eq(memory.port.r_data),
            axi.port.r_data.eq(memory.port.r_data),
            bridge.irq.eq(~working),
            bridge.rx.eq(self.rx),
            self.tx.eq(bridge.tx),
        ]
        m.d.sync += self.leds.eq(Cat(bridge.active, engine.busy))
        return m
