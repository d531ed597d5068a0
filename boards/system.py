"""The system of a board: accelerator, host link, and the port of the memory that both share."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from fastcar_hw.accelerator import Accelerator
from fastcar_hw.memory.axi import AxiReadSignature, AxiWriteSignature
from fastcar_hw.registers_map import register_map

from .arbiter import AxiArbiter
from .catalogue import BoardSpec
from .host import HostBridge, Identity
from .host.protocol import PROTOCOL_VERSION

__all__ = ["BoardSystem"]


class BoardSystem(wiring.Component):
    """Everything of a board but clock, pins and memory.

    Parameters
    ----------
    spec
        The board.

    Attributes
    ----------
    rx : In; tx : Out
        Serial line of the host.
    read : Out, `AxiReadSignature`; write : Out, `AxiWriteSignature`
        The memory; its first byte has the address 0.
    leds : Out, 8 bits
        Heartbeat, request at work, read, write, interrupt; the others stay dark.

    Notes
    -----
    One clock domain, `sync`, of ``spec.clock_hz``.
    """

    def __init__(self, spec: BoardSpec) -> None:
        self._spec = spec
        c = spec.config
        width = c.derived.data_width
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "read": Out(AxiReadSignature(c.address_width, width)),
                "write": Out(AxiWriteSignature(c.address_width, width)),
                "leds": Out(8),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        spec, c = self._spec, self._spec.config
        width = c.derived.data_width
        identity = Identity(
            version=PROTOCOL_VERSION, data_width=width, memory_bytes=spec.memory_bytes, clock_hz=spec.clock_hz,
            config_hash=spec.identity,
        )  # fmt: skip
        m.submodules.accelerator = accelerator = Accelerator(c)
        m.submodules.bridge = bridge = HostBridge(
            identity, register_width=register_map(c).addr_width, addr_width=c.address_width, baud=spec.baud
        )
        m.submodules.arbiter = arbiter = AxiArbiter(c.address_width, width, c.outstanding)
        connect(m, bridge.host, accelerator.host)
        connect(m, accelerator.read, arbiter.reads[0])
        connect(m, accelerator.write, arbiter.writes[0])
        connect(m, bridge.read, arbiter.reads[1])
        connect(m, bridge.write, arbiter.writes[1])
        connect(m, arbiter.read, flipped(self.read))
        connect(m, arbiter.write, flipped(self.write))

        # Half a second on, half a second off: the clock runs.
        beat, lit = Signal(range(spec.clock_hz // 2)), Signal()
        m.d.sync += beat.eq(beat + 1)
        with m.If(beat == spec.clock_hz // 2 - 1):
            m.d.sync += [beat.eq(0), lit.eq(~lit)]
        m.d.comb += [
            bridge.rx.eq(self.rx),
            self.tx.eq(bridge.tx),
            bridge.irq.eq(accelerator.irq),
        ]
        # Registered: lamps are far from everything.
        m.d.sync += self.leds.eq(
            Cat(lit, bridge.active, self.read.r.valid, self.write.w.valid, accelerator.irq)
        )
        return m
