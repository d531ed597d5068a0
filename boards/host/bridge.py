"""The bridge: requests of the host become accesses to the accelerator's registers and to the memory."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out, connect

from fastcar_hw.config import ConfigError
from fastcar_hw.memory.axi import BURST_INCR, AxiLiteSignature, AxiReadSignature, AxiWriteSignature, Response

from .protocol import MAX_PAYLOAD, Command, Identity, Status
from .receiver import RequestReceiver
from .sender import ReplySender
from .uart import UartReceiver, UartTransmitter, divider

__all__ = ["HostBridge"]


class HostBridge(wiring.Component):
    """A serial line, master of the registers and of the memory.

    Parameters
    ----------
    identity
        What IDENTIFY answers; ``clock_hz`` and ``data_width`` of the design are taken from it.
    register_width, addr_width
        Address bits of the registers and of the memory.
    baud
        Rate of the line.
    timeout
        Cycles of silence within a frame after which it is given up; a tenth of a second when missing, since a USB
        bridge may pause within a frame.

    Attributes
    ----------
    rx : In; tx : Out
        The line.
    irq : In
        Interrupt of the accelerator, for STATUS.
    host : Out, `AxiLiteSignature`; read : Out, `AxiReadSignature`; write : Out, `AxiWriteSignature`
        Registers and memory.
    active : Out
        A request is at work.

    Raises
    ------
    ConfigError
        When the rate cannot be made, or a beat is no power of two of 4 to 64 bytes.

    Notes
    -----
    One request at a time.  It has no effect before its checksum was found right.  A WRITE_REGISTER with the sequence
    number of the request before it is a repetition: it is answered again, and not done again; everything else may be
    done twice.
    """

    def __init__(self, identity: Identity, *, register_width: int, addr_width: int, baud: int,
                 timeout: int | None = None) -> None:  # fmt: skip
        width = identity.data_width
        if width not in (32, 64, 128, 256, 512):
            raise ConfigError(f"data_width must be one of 32, 64, 128, 256, 512, not {width!r}")
        self._identity, self._width = identity, width
        self._cycles = divider(identity.clock_hz, baud)
        self._timeout = identity.clock_hz // 10 if timeout is None else timeout
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "irq": In(1),
                "host": Out(AxiLiteSignature(register_width)),
                "read": Out(AxiReadSignature(addr_width, width)),
                "write": Out(AxiWriteSignature(addr_width, width)),
                "active": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.line_in = line_in = UartReceiver(self._cycles)
        m.submodules.line_out = line_out = UartTransmitter(self._cycles)
        m.submodules.receiver = receiver = RequestReceiver(self._timeout)
        m.submodules.sender = sender = ReplySender()
        m.submodules.buffer = buffer = memory.Memory(shape=8, depth=MAX_PAYLOAD, init=[])
        fill, take = buffer.write_port(), buffer.read_port()
        connect(m, sender.o, line_out.i)
        request = receiver.header
        status, length = Signal(8), Signal(range(MAX_PAYLOAD + 1))
        m.d.comb += [
            line_in.rx.eq(self.rx),
            self.tx.eq(line_out.tx),
            receiver.valid.eq(line_in.valid),
            receiver.error.eq(line_in.error),
            receiver.byte.eq(line_in.data),
            self.active.eq(receiver.ready),
            fill.en.eq(receiver.write_en),
            fill.addr.eq(receiver.write_addr),
            fill.data.eq(receiver.write_data),
            take.addr.eq(sender.read_addr),
            sender.read_data.eq(take.data),
            sender.sequence.eq(request.sequence),
            sender.status.eq(status),
            sender.length.eq(length),
            receiver.taken.eq(sender.done),
        ]
        self._execute(m, request, receiver, sender, fill, take, status, length)
        return m

    def _execute(self, m, request, receiver, sender, fill, take, status, length) -> None:
        """Add the machine that does what requests say."""
        beat_bytes = self._width // 8
        shift = beat_bytes.bit_length() - 1
        host, read, write = self.host, self.read, self.write
        position = Signal(range(MAX_PAYLOAD + 1))
        #: Bytes on their way between the buffer and a bus.
        word = Signal(self._width)
        part = Signal(range(beat_bytes + 1))
        failed = Signal()
        last_sequence, last_valid = Signal(8), Signal()
        address_sent, data_sent = Signal(), Signal()
        raw = self._identity.to_bytes()
        identity = Signal(8 * len(raw))

        offset = request.address[: MAX_PAYLOAD.bit_length() - 1]
        aligned = (request.address[:shift] == 0) & (request.length[:shift] == 0)
        fits = aligned & (offset + request.length <= MAX_PAYLOAD)
        sane = (request.length != 0) & (request.length <= MAX_PAYLOAD)
        beats = request.length[: MAX_PAYLOAD.bit_length()] >> shift
        for port in (read.ar, write.aw):
            m.d.comb += [
                port.payload.addr.eq(request.address),
                port.payload.len.eq(beats - 1),
                port.payload.size.eq(shift),
                port.payload.burst.eq(BURST_INCR),
            ]
        m.d.comb += [
            host.aw.payload.addr.eq(request.address),
            host.ar.payload.addr.eq(request.address),
            host.w.payload.data.eq(word[-32:]),
            host.w.payload.strb.eq(15),
            write.w.payload.data.eq(word),
            write.w.payload.strb.eq((1 << beat_bytes) - 1),
            write.w.payload.last.eq(position == request.length),
        ]

        def reply(code: Status | None = None) -> None:
            if code is not None:
                m.d.sync += status.eq(code)
            m.next = "REPLY"

        def store(byte, following: str) -> None:
            """Put a byte into the buffer; go on with ``following`` when ``length`` are there."""
            m.d.comb += [fill.en.eq(1), fill.addr.eq(position), fill.data.eq(byte)]
            m.d.sync += position.eq(position + 1)
            with m.If(position + 1 == length):
                m.next = following

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    position.eq(0), part.eq(0), failed.eq(0), length.eq(0), status.eq(Status.OK),
                    address_sent.eq(0), data_sent.eq(0), identity.eq(int.from_bytes(raw, "little")),
                ]  # fmt: skip
                with m.If(receiver.ready):
                    m.d.sync += [last_sequence.eq(request.sequence), last_valid.eq(1)]
                    with m.Switch(request.command):
                        with m.Case(Command.IDENTIFY):
                            m.d.sync += [length.eq(len(raw)), last_valid.eq(0)]
                            m.next = "IDENTIFY"
                        with m.Case(Command.STATUS):
                            m.d.sync += length.eq(1)
                            m.next = "STATUS"
                        with m.Case(Command.READ_REGISTER):
                            m.d.sync += length.eq(4)
                            m.next = "ASK_REGISTER"
                        with m.Case(Command.WRITE_REGISTER):
                            m.next = "GATHER"
                            with m.If(request.length != 4):
                                reply(Status.BAD_COMMAND)
                            with m.Elif(last_valid & (last_sequence == request.sequence)):
                                reply()
                        with m.Case(Command.READ_MEMORY):
                            m.d.sync += length.eq(request.length)
                            m.next = "ASK_MEMORY"
                            with m.If(~sane | ~fits):
                                m.d.sync += length.eq(0)
                                reply(Status.BAD_ADDRESS)
                        with m.Case(Command.WRITE_MEMORY):
                            m.next = "OFFER"
                            with m.If(~sane | ~fits):
                                reply(Status.BAD_ADDRESS)
                        with m.Default():
                            reply(Status.BAD_COMMAND)
            with m.State("IDENTIFY"):
                m.d.sync += identity.eq(identity >> 8)
                store(identity[:8], "REPLY")
            with m.State("STATUS"):
                store(self.irq, "REPLY")

            with m.State("ASK_REGISTER"):
                m.d.comb += host.ar.valid.eq(1)
                with m.If(host.ar.ready):
                    m.next = "REGISTER"
            with m.State("REGISTER"):
                m.d.comb += host.r.ready.eq(1)
                with m.If(host.r.valid):
                    m.d.sync += [word.eq(host.r.payload.data), failed.eq(host.r.payload.resp != Response.OKAY)]
                    m.next = "SPREAD"
            with m.State("SPREAD"):
                m.d.sync += word.eq(word >> 8)
                store(word[:8], "JUDGE")
            with m.State("GATHER"):
                # Bytes of the buffer come a cycle after their address, and enter the word from above.
                m.d.comb += take.addr.eq(position)
                m.d.sync += [position.eq(position + 1), part.eq(part + 1)]
                with m.If(part != 0):
                    m.d.sync += word.eq(Cat(word[8:], take.data))
                with m.If(part == 4):
                    m.next = "WRITE_REGISTER"
            with m.State("WRITE_REGISTER"):
                m.d.comb += [host.aw.valid.eq(~address_sent), host.w.valid.eq(~data_sent), host.b.ready.eq(1)]
                with m.If(host.aw.ready):
                    m.d.sync += address_sent.eq(1)
                with m.If(host.w.ready):
                    m.d.sync += data_sent.eq(1)
                with m.If(host.b.valid):
                    m.d.sync += failed.eq(host.b.payload.resp != Response.OKAY)
                    m.next = "JUDGE"

            with m.State("ASK_MEMORY"):
                m.d.comb += read.ar.valid.eq(1)
                with m.If(read.ar.ready):
                    m.next = "BEAT"
            with m.State("BEAT"):
                m.d.comb += read.r.ready.eq(1)
                m.d.sync += part.eq(0)
                with m.If(read.r.valid):
                    m.d.sync += [
                        word.eq(read.r.payload.data),
                        failed.eq(failed | (read.r.payload.resp != Response.OKAY)),
                    ]
                    m.next = "UNPACK"
            with m.State("UNPACK"):
                m.d.sync += [word.eq(word >> 8), part.eq(part + 1)]
                with m.If(part == beat_bytes - 1):
                    m.next = "BEAT"
                store(word[:8], "JUDGE")
            with m.State("OFFER"):
                m.d.comb += write.aw.valid.eq(1)
                with m.If(write.aw.ready):
                    m.next = "PACK"
            with m.State("PACK"):
                m.d.comb += take.addr.eq(position)
                m.d.sync += part.eq(part + 1)
                with m.If(part != beat_bytes):
                    m.d.sync += position.eq(position + 1)
                with m.If(part != 0):
                    m.d.sync += word.eq(Cat(word[8:], take.data))
                with m.If(part == beat_bytes):
                    m.next = "WRITE_MEMORY"
            with m.State("WRITE_MEMORY"):
                m.d.comb += write.w.valid.eq(1)
                m.d.sync += part.eq(0)
                with m.If(write.w.ready):
                    m.next = "PACK"
                    with m.If(write.w.payload.last):
                        m.next = "WRITTEN"
            with m.State("WRITTEN"):
                m.d.comb += write.b.ready.eq(1)
                with m.If(write.b.valid):
                    m.d.sync += failed.eq(write.b.payload.resp != Response.OKAY)
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                with m.If(failed):
                    m.d.sync += [status.eq(Status.BUS_ERROR), length.eq(0)]
                m.next = "REPLY"
            with m.State("REPLY"):
                m.d.comb += sender.start.eq(1)
                m.next = "SENDING"
            with m.State("SENDING"):
                with m.If(sender.done):
                    m.next = "IDLE"
