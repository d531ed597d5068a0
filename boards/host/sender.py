"""Replies: header, payload and checksum, byte by byte."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.crc import catalog
from amaranth.lib.wiring import In, Out

from .protocol import MAX_PAYLOAD, REPLY_START

__all__ = ["ReplySender"]


class ReplySender(wiring.Component):
    """Send a reply.

    Attributes
    ----------
    start : In
        Strobe.
    sequence : In, u8; status : In, u8; length : In
        Header; stable until ``done``.
    read_addr : Out; read_data : In, u8
        Payload, a cycle after its address.
    o : Out, stream of u8
        To the line.
    done : Out
        Strobe: the last byte was handed over.

    Notes
    -----
    At most three cycles a byte beside the line.
    """

    start: In(1)
    sequence: In(8)
    status: In(8)
    length: In(range(MAX_PAYLOAD + 1))
    read_addr: Out(range(MAX_PAYLOAD))
    read_data: In(8)
    o: Out(stream.Signature(8))
    done: Out(1)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.crc = crc = catalog.CRC32_ISO_HDLC(data_width=8).create()
        head = Signal(40)
        count = Signal(range(MAX_PAYLOAD + 1))
        check = Signal(32)
        sent = self.o.valid & self.o.ready
        m.d.comb += [self.read_addr.eq(count), crc.data.eq(self.o.payload)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += [
                    head.eq(Cat(Const(REPLY_START, 8), self.sequence, self.status, self.length, Const(0, 16))),
                    count.eq(0),
                ]
                with m.If(self.start):
                    m.next = "HEAD"
            with m.State("HEAD"):
                # The first byte is no part of the checksum.
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(head[:8]), crc.valid.eq(sent & (count != 0))]
                with m.If(sent):
                    m.d.sync += [head.eq(head >> 8), count.eq(count + 1)]
                    with m.If(count == 4):
                        m.d.sync += count.eq(0)
                        m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "PAYLOAD"
                with m.If(count == self.length):
                    m.d.sync += [check.eq(crc.crc), count.eq(0)]
                    m.next = "CHECKSUM"
            with m.State("PAYLOAD"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(self.read_data), crc.valid.eq(sent)]
                with m.If(sent):
                    m.d.sync += count.eq(count + 1)
                    m.next = "FETCH"
            with m.State("CHECKSUM"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(check[:8])]
                with m.If(sent):
                    m.d.sync += [check.eq(check >> 8), count.eq(count + 1)]
                    with m.If(count == 3):
                        m.d.comb += self.done.eq(1)
                        m.next = "IDLE"
        return m
