"""The register block: an AXI4-Lite slave made from the register map."""

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from .config import AcceleratorConfig
from .drs.window import WindowSignature
from .errors import ErrorCode
from .isa import Unit
from .memory.axi import AxiLiteSignature, Response
from .registers_counters import CounterBank
from .registers_map import Access, Array, Field, Register, RegisterMap, register_map

__all__ = ["Access", "Array", "Field", "Register", "RegisterBlock", "RegisterMap", "register_map"]


class RegisterBlock(wiring.Component):
    """Registers, counters and error latch of the engine.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    axi : In, `AxiLiteSignature`
        The host.  One access at a time.
    <register>[_<field>] : Out
        Value of every read/write field, in its own shape; strobe of every pulse field.
    <register>[_<field>] : In
        Value of every read-only field that has a port.
    count_<counter> : In
        Increment of this cycle.
    <array> : Out, `WindowSignature`
        Arrays that units keep.
    clear : Out
        Strobe at ``start`` and ``clear_counters``: counters elsewhere become zero.
    done : In
        Strobe: the program ended.
    error : In, `ErrorCode`; error_pc, error_address : In
        Error of this cycle, or NONE; the first one is kept, with address and program counter.
    irq : Out
        Level: an enabled event is pending.

    Notes
    -----
    An unknown or unaligned address, a write without a writable field behind it, and a write to a locked
    register while the engine runs get SLVERR and change nothing.  Accesses take 3 cycles, reads of counters
    up to the number of counters more.  Start is a strobe only while the engine does not run.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        self.map = register_map(config)
        self.counters = CounterBank([bits_for(r.fields[0].amount) for r in self.map.counters])
        ports = {
            "axi": In(AxiLiteSignature(self.map.addr_width)),
            "clear": Out(1),
            "done": In(1),
            "error": In(ErrorCode),
            "error_pc": In(32),
            "error_address": In(64),
            "irq": Out(1),
        }
        for register in self.map.registers:
            for part in register.fields:
                if not part.port or part.access is Access.CONST:
                    continue
                name = register.port_name(part)
                if part.access is Access.COUNTER:
                    ports[f"count_{name}"] = In(bits_for(part.amount))
                elif part.access is Access.RO:
                    ports[name] = In(part.shape)
                elif part.access is Access.PULSE:
                    ports[name] = Out(1)
                else:
                    ports[name] = Out(part.shape, init=part.reset)
        for array in self.map.arrays:
            ports[array.name] = Out(WindowSignature(array.depth))
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        access = _Access(self.map.addr_width)
        m.submodules.counters = counters = self.counters
        inner = {
            register.port_name(part): Signal(part.shape, init=part.reset, name=register.port_name(part))
            for register in self.map.registers
            for part in register.fields
            if not part.port and part.access is not Access.COUNTER
        }
        self._bus(m, access, counters)
        self._registers(m, access, inner)
        self._arrays(m, access)
        self._events(m, inner)
        self._count(m, access, counters)
        return m

    def _bus(self, m: Module, access: "_Access", counters: CounterBank) -> None:
        """Take accesses one at a time; decode a cycle after they were accepted."""
        axi = self.axi
        word, high, response = Signal(32), Signal(32), Signal(2)
        m.d.comb += [
            access.high.eq(high),
            counters.select.eq(access.counter),
        ]
        # Accesses are legal or not in one cycle and take effect in the next.
        m.d.sync += access.write.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                # A write needs both of its halves; it goes before a read.
                both = axi.aw.valid & axi.w.valid
                m.d.comb += [axi.aw.ready.eq(both), axi.w.ready.eq(both), axi.ar.ready.eq(~both)]
                m.d.sync += [
                    access.addr.eq(Mux(both, axi.aw.payload.addr, axi.ar.payload.addr)),
                    access.data.eq(axi.w.payload.data),
                    access.strobe.eq(axi.w.payload.strb),
                ]
                with m.If(both):
                    m.next = "WRITE"
                with m.Elif(axi.ar.valid):
                    m.next = "READ"
            with m.State("WRITE"):
                m.d.sync += access.write.eq(access.writable)
                m.d.sync += response.eq(Mux(access.writable, Response.OKAY, Response.SLVERR))
                m.next = "WRITTEN"
            with m.State("WRITTEN"):
                m.d.comb += [axi.b.valid.eq(1), axi.b.payload.resp.eq(response)]
                with m.If(axi.b.ready):
                    m.next = "IDLE"
            with m.State("READ"):
                m.d.comb += counters.read.eq(access.slow)
                m.d.sync += [
                    response.eq(Mux(access.readable, Response.OKAY, Response.SLVERR)),
                    word.eq(Mux(access.slow, counters.value[:32], access.word)),
                ]
                with m.If(counters.done):
                    m.d.sync += high.eq(counters.value[32:])
                with m.If(~access.slow | counters.done):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                # Arrays answer a cycle after their address, which does not change here.
                m.d.comb += [
                    axi.r.valid.eq(1),
                    axi.r.payload.data.eq(word | access.array_word),
                    axi.r.payload.resp.eq(response),
                ]
                with m.If(axi.r.ready):
                    m.next = "IDLE"

    def _registers(self, m: Module, access: "_Access", inner: dict[str, Signal]) -> None:
        """Decode reads and writes of everything that is not an array."""
        for register in self.map.registers:
            for part in register.fields:
                name = register.port_name(part)
                if part.access in (Access.RW, Access.W1C, Access.PULSE):
                    target = getattr(self, name) if part.port else inner[name]
                    self._write_field(m, access, register, part, Value.cast(target))
        with m.If(self.status_running):
            m.d.comb += self.control_start.eq(0)
        with m.Switch(access.addr):
            for register in self.map.registers:
                value = self._read_value(register, inner)
                for number in range(register.words):
                    with m.Case(register.offset + 4 * number):
                        m.d.comb += [access.readable.eq(1), access.word.eq(value[32 * number :][:32])]
                        if register.writable:
                            m.d.comb += access.writable.eq(~self.status_running if register.locked else 1)
                        if register in self.map.counters:
                            m.d.comb += [
                                access.counter.eq(self.map.counters.index(register)),
                                access.slow.eq(number == 0),
                                access.word.eq(access.high),
                            ]

    def _read_value(self, register: Register, inner: dict[str, Signal]) -> Value:
        """Return all bits of a register."""
        value: Value = Const(0, 32 * register.words)
        for part in register.fields:
            if part.access is Access.CONST:
                bits = Const(part.reset, part.width)
            elif part.access in (Access.PULSE, Access.COUNTER):
                continue
            else:
                name = register.port_name(part)
                bits = Value.cast(getattr(self, name) if part.port else inner[name])
            value = value | (bits << part.offset)
        return value

    @staticmethod
    def _write_field(m: Module, access: "_Access", register: Register, part: Field, target: Value) -> None:
        """Apply a write to the bits of a field, byte by byte."""
        for byte in range(4 * register.words):
            low, high = max(part.offset, 8 * byte), min(part.offset + part.width, 8 * byte + 8)
            if low >= high:
                continue
            bits = target[low - part.offset : high - part.offset]
            base = 8 * byte - 8 * (byte % 4)
            data = access.data[low - base : high - base]
            with m.If(access.write & access.strobe[byte % 4] & (access.addr == register.offset + 4 * (byte // 4))):
                if part.access is Access.PULSE:
                    m.d.comb += bits.eq(data)
                elif part.access is Access.W1C:
                    m.d.sync += bits.eq(bits & ~data)
                else:
                    m.d.sync += bits.eq(data)

    def _arrays(self, m: Module, access: "_Access") -> None:
        """Pass accesses to the arrays on to their units."""
        for array in self.map.arrays:
            window = getattr(self, array.name)
            index = access.addr[2 : array.size.bit_length() - 1]
            inside = (access.addr & ~(array.size - 1) & ~3) == array.offset
            m.d.comb += [window.addr.eq(index), window.w_data.eq(access.data)]
            with m.If(inside & (access.addr[:2] == 0) & (index < array.depth)):
                m.d.comb += [
                    access.readable.eq(1),
                    access.writable.eq(int(array.writable)),
                    access.array_word.eq(window.r_data),
                    window.w_strobe.eq(Mux(access.write, access.strobe, 0)),
                ]

    def _events(self, m: Module, inner: dict[str, Signal]) -> None:
        """Start, end, first error, interrupt."""
        code, failed = inner["error_code"], self.error != ErrorCode.NONE
        start = self.control_start
        m.d.sync += self.clear.eq(start | self.control_clear_counters)
        m.d.comb += [
            inner["status_error"].eq(code != ErrorCode.NONE),
            self.irq.eq(
                (inner["irq_pending_done"] & inner["irq_enable_done"])
                | (inner["irq_pending_error"] & inner["irq_enable_error"])
            ),
        ]
        with m.If(start):
            m.d.sync += inner["status_done"].eq(0)
        with m.If(self.done):
            m.d.sync += [inner["status_done"].eq(1), inner["irq_pending_done"].eq(1)]
        with m.If(start | self.control_clear_error):
            m.d.sync += code.eq(ErrorCode.NONE)
        with m.Elif(failed & (code == ErrorCode.NONE)):
            m.d.sync += [
                code.eq(self.error),
                inner["error_pc"].eq(self.error_pc),
                inner["error_address"].eq(self.error_address),
                inner["irq_pending_error"].eq(1),
            ]

    def _count(self, m: Module, access: "_Access", counters: CounterBank) -> None:
        """Feed the counters; those without a port are known here."""
        own = {"cycles": Const(1)} | {f"busy_{unit.name.lower()}": self.status_busy[unit.value] for unit in Unit}
        m.d.comb += counters.clear.eq(self.clear)
        for number, register in enumerate(self.map.counters):
            if register.fields[0].port:
                amount = getattr(self, f"count_{register.name}")
            else:
                amount = own[register.name] & self.status_running
            m.d.comb += counters.amount[f"c{number}"].eq(amount)


class _Access:
    """Signals of the access at hand."""

    def __init__(self, addr_width: int) -> None:
        self.addr = Signal(addr_width)
        self.data = Signal(32)
        self.strobe = Signal(4)
        self.write = Signal()  # strobe: a legal write takes effect
        self.readable, self.writable = Signal(), Signal()
        self.slow = Signal()  # a counter: wait for its turn
        self.counter = Signal(8)
        self.word = Signal(32)
        self.high = Signal(32)  # high word latched with the last low word of a counter
        self.array_word = Signal(32)
