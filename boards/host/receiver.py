"""Requests: frames are found in the bytes of the line, and checked before anybody sees them."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.crc import catalog
from amaranth.lib.wiring import In, Out

from .protocol import MAX_PAYLOAD, REQUEST_START, Command

__all__ = ["RequestHeader", "RequestReceiver"]

#: What comes behind the first byte of a request.
RequestHeader = data.StructLayout({"sequence": 8, "command": 8, "address": 32, "length": 16})


class RequestReceiver(wiring.Component):
    """Collect a request.

    Parameters
    ----------
    timeout
        Cycles of silence within a frame after which it is given up.

    Attributes
    ----------
    valid, error : In; byte : In, u8
        From the line; an ``error`` ends the frame that it is in.
    write_en : Out; write_addr, write_data : Out
        Payload, byte by byte, before it is known to be right.
    header : Out; ready : Out
        A request whose checksum is right; both stay until ``taken``.  Bytes that come meanwhile are lost.
    taken : In
        Strobe: the request was answered.
    dropped : Out
        Strobe: a frame was given up.

    Notes
    -----
    Bytes before the first one of a frame are skipped, so that the next frame after noise is found.  Writes carry
    ``length`` bytes of payload, all others none.
    """

    valid: In(1)
    error: In(1)
    byte: In(8)
    write_en: Out(1)
    write_addr: Out(range(MAX_PAYLOAD))
    write_data: Out(8)
    header: Out(RequestHeader)
    ready: Out(1)
    taken: In(1)
    dropped: Out(1)

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.crc = crc = catalog.CRC32_ISO_HDLC(data_width=8).create()
        header = Signal(RequestHeader)
        size = RequestHeader.size // 8
        count = Signal(range(max(size, MAX_PAYLOAD) + 1))
        silence = Signal(range(self._timeout + 1))
        carries = (header.command == Command.WRITE_REGISTER) | (header.command == Command.WRITE_MEMORY)
        give_up = Signal()
        m.d.comb += [
            self.header.eq(header),
            crc.data.eq(self.byte),
            self.write_addr.eq(count),
            self.write_data.eq(self.byte),
            self.dropped.eq(give_up),
        ]
        # Within a frame: silence for too long, or a byte without a stop bit, ends it.
        inside = Signal()
        m.d.sync += silence.eq(0)
        with m.If(inside & ~self.valid):
            m.d.sync += silence.eq(silence + 1)
        m.d.comb += give_up.eq(inside & (self.error | (silence == self._timeout)))

        def begin() -> None:
            m.d.comb += inside.eq(1)
            with m.If(give_up):
                m.next = "IDLE"

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += count.eq(0)
                with m.If(self.valid & (self.byte == REQUEST_START)):
                    m.next = "HEADER"
            with m.State("HEADER"):
                begin()
                m.d.comb += crc.valid.eq(self.valid)
                with m.If(self.valid):
                    m.d.sync += [header.as_value().eq(Cat(header.as_value()[8:], self.byte)), count.eq(count + 1)]
                    with m.If(count == size - 1):
                        m.d.sync += count.eq(0)
                        m.next = "JUDGE"
            with m.State("JUDGE"):
                # Only one cycle, between bytes that are ten bits apart.
                m.next = "CHECKSUM"
                with m.If(carries & (header.length != 0)):
                    m.next = "PAYLOAD"
                    with m.If(header.length > MAX_PAYLOAD):
                        m.d.comb += self.dropped.eq(1)
                        m.next = "IDLE"
            with m.State("PAYLOAD"):
                begin()
                m.d.comb += [crc.valid.eq(self.valid), self.write_en.eq(self.valid)]
                with m.If(self.valid):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count + 1 == header.length):
                        m.d.sync += count.eq(0)
                        m.next = "CHECKSUM"
            with m.State("CHECKSUM"):
                begin()
                m.d.comb += crc.valid.eq(self.valid)
                with m.If(self.valid):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count == 3):
                        m.next = "DECIDE"
            with m.State("DECIDE"):
                m.next = "READY"
                with m.If(~crc.match_detected):
                    m.d.comb += self.dropped.eq(1)
                    m.next = "IDLE"
            with m.State("READY"):
                m.d.comb += self.ready.eq(1)
                with m.If(self.taken):
                    m.next = "IDLE"
        return m
