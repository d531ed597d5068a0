"""The serial line: bytes in both directions, eight bits, no parity, one stop bit."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import ConfigError

__all__ = ["UartReceiver", "UartTransmitter", "divider"]


def divider(clock_hz: int, baud: int) -> int:
    """Return the cycles of a bit.

    Raises
    ------
    ConfigError
        When there are fewer than 4, or the rate is missed by more than 2 %: bits at the end of a byte would be lost.
    """
    cycles = round(clock_hz / baud) if baud > 0 else 0
    if cycles < 4 or abs(clock_hz / cycles - baud) > baud / 50:
        raise ConfigError(f"baud must be a rate that clock_hz={clock_hz} gives within 2 % with 4 cycles a bit or more, "
                          f"not {baud!r}")  # fmt: skip
    return cycles


class UartReceiver(wiring.Component):
    """Take bytes from the line.

    Parameters
    ----------
    cycles
        Of a bit, 4 or more.

    Attributes
    ----------
    rx : In
        The line; high when idle.
    valid : Out; data : Out, u8
        Strobe, and the byte.
    error : Out
        Strobe: there was no stop bit.

    Notes
    -----
    A byte is told half a bit after its stop bit began, two cycles late for the synchroniser.
    """

    rx: In(1, init=1)
    valid: Out(1)
    data: Out(8)
    error: Out(1)

    def __init__(self, cycles: int) -> None:
        if cycles < 4:
            raise ConfigError(f"cycles must be at least 4, not {cycles!r}")
        self._cycles = cycles
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.rx, line, init=1)
        left = Signal(range(self._cycles), init=self._cycles - 1)
        bits = Signal(range(8))
        m.d.sync += [self.valid.eq(0), self.error.eq(0), left.eq(left - 1)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += left.eq(self._cycles // 2 - 1)
                with m.If(~line):
                    m.next = "START"
            with m.State("START"):
                # A spike is no start bit.
                with m.If(left == 0):
                    m.d.sync += [left.eq(self._cycles - 1), bits.eq(0)]
                    m.next = "DATA"
                    with m.If(line):
                        m.next = "IDLE"
            with m.State("DATA"):
                with m.If(left == 0):
                    m.d.sync += [left.eq(self._cycles - 1), self.data.eq(Cat(self.data[1:], line)), bits.eq(bits + 1)]
                    with m.If(bits == 7):
                        m.next = "STOP"
            with m.State("STOP"):
                with m.If(left == 0):
                    m.d.sync += [self.valid.eq(line), self.error.eq(~line)]
                    m.next = "WAIT"
            with m.State("WAIT"):
                # After a break, the line comes to rest first.
                with m.If(line):
                    m.next = "IDLE"
        return m


class UartTransmitter(wiring.Component):
    """Put bytes on the line.

    Parameters
    ----------
    cycles
        Of a bit, 4 or more.

    Attributes
    ----------
    i : In, stream of u8
        Bytes; one in ten bits.
    tx : Out
        The line.
    """

    i: In(stream.Signature(8))
    tx: Out(1, init=1)

    def __init__(self, cycles: int) -> None:
        if cycles < 4:
            raise ConfigError(f"cycles must be at least 4, not {cycles!r}")
        self._cycles = cycles
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        shift = Signal(9, init=0x1FF)
        bits = Signal(range(11))
        left = Signal(range(self._cycles))
        m.d.comb += self.i.ready.eq(bits == 0)
        with m.If(bits == 0):
            with m.If(self.i.valid):
                m.d.sync += [self.tx.eq(0), shift.eq(Cat(self.i.payload, 1)), bits.eq(10), left.eq(self._cycles - 1)]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.Else():
            m.d.sync += [
                self.tx.eq(shift[0]), shift.eq(Cat(shift[1:], 1)), bits.eq(bits - 1), left.eq(self._cycles - 1)
            ]  # fmt: skip
        return m
