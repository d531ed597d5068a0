"""A memory with one port, and how the host's AXI4 reaches it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import ConfigError
from fastcar_hw.memory.axi import AxiReadSignature, AxiWriteSignature, Response, whole_beats

__all__ = ["AxiPort", "PortSignature", "SinglePortMemory"]


class PortSignature(wiring.Signature):
    """One access a cycle, seen from the user.

    Parameters
    ----------
    depth, width
        Words, and bits of a word.

    Members
    -------
    en : Out
        Access in this cycle.
    write : Out, a bit a byte
        Bytes to write; none reads.
    addr : Out; w_data : Out
        Word, and what is written.
    r_data : In
        The word, from the cycle after a read until the next access.
    """

    def __init__(self, depth: int, width: int) -> None:
        super().__init__(
            {
                "en": Out(1),
                "write": Out(width // 8),
                "addr": Out(range(depth)),
                "w_data": Out(width),
                "r_data": In(width),
            }
        )


class SinglePortMemory(wiring.Component):
    """The memory in block RAM or in a simulator; a family's own primitive has the same port.

    Parameters
    ----------
    depth, width
        Words, and bits of a word (whole bytes).

    Attributes
    ----------
    port : In, `PortSignature`
    """

    def __init__(self, depth: int, width: int) -> None:
        self._depth, self._width = depth, width
        super().__init__({"port": In(PortSignature(depth, width))})

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.words = words = memory.Memory(shape=self._width, depth=self._depth, init=[])
        read, write = words.read_port(), words.write_port(granularity=8)
        port = self.port
        m.d.comb += [
            read.en.eq(port.en & (port.write == 0)),
            read.addr.eq(port.addr),
            write.en.eq(Mux(port.en, port.write, 0)),
            write.addr.eq(port.addr),
            write.data.eq(port.w_data),
            port.r_data.eq(read.data),
        ]
        return m


class AxiPort(wiring.Component):
    """AXI4 slave in front of a memory with one port; simple rather than fast, since a serial line feeds it.

    Parameters
    ----------
    addr_width, data_width
        Bits of the bus.
    depth
        Words of the memory; a word is a beat.

    Attributes
    ----------
    read : In, `AxiReadSignature`; write : In, `AxiWriteSignature`
        Bursts of whole beats with incrementing addresses; others, and those that leave the memory, are answered with
        SLVERR and change nothing.
    port : Out, `PortSignature`
        The memory.
    grant : In
        A burst may begin.
    active : Out
        A burst is under way: the port is in use, and its read data must stay.

    Raises
    ------
    ConfigError
        When the memory is larger than the bus reaches.

    Notes
    -----
    A read takes 2 cycles a beat and 1 more, a write 1 cycle a beat and 2 more.
    """

    def __init__(self, addr_width: int, data_width: int, depth: int) -> None:
        beat = data_width // 8
        if not 0 < depth * beat <= 1 << addr_width:
            raise ConfigError(f"depth must be in 1..{(1 << addr_width) // beat} words, not {depth!r}")
        self._beat, self._depth = beat, depth
        super().__init__(
            {
                "read": In(AxiReadSignature(addr_width, data_width)),
                "write": In(AxiWriteSignature(addr_width, data_width)),
                "port": Out(PortSignature(depth, data_width)),
                "grant": In(1),
                "active": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        ar, r, aw, w, b = self.read.ar, self.read.r, self.write.aw, self.write.w, self.write.b
        port = self.port
        shift = self._beat.bit_length() - 1
        place, left, good = Signal(range(self._depth)), Signal(8), Signal()
        response = Mux(good, Response.OKAY.value, Response.SLVERR.value)

        def begin(request) -> None:
            first = request.addr >> shift
            legal = whole_beats(request, 8 * self._beat)
            m.d.sync += [
                place.eq(first), left.eq(request.len), good.eq(legal & (first + request.len < self._depth)),
            ]  # fmt: skip

        m.d.comb += [
            port.addr.eq(place),
            port.w_data.eq(w.payload.data),
            r.payload.data.eq(port.r_data),
            r.payload.resp.eq(response),
            r.payload.last.eq(left == 0),
            b.payload.resp.eq(response),
        ]
        with m.FSM() as fsm:
            m.d.comb += self.active.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.comb += [aw.ready.eq(self.grant), ar.ready.eq(self.grant & ~aw.valid)]
                with m.If(self.grant & aw.valid):
                    begin(aw.payload)
                    m.next = "TAKE"
                with m.Elif(self.grant & ar.valid):
                    begin(ar.payload)
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += port.en.eq(1)
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += r.valid.eq(1)
                with m.If(r.ready):
                    m.d.sync += [place.eq(place + 1), left.eq(left - 1)]
                    m.next = "FETCH"
                    with m.If(left == 0):
                        m.next = "IDLE"
            with m.State("TAKE"):
                m.d.comb += [
                    w.ready.eq(1),
                    port.en.eq(w.valid & good & (w.payload.strb != 0)),
                    port.write.eq(w.payload.strb),
                ]
                with m.If(w.valid):
                    m.d.sync += place.eq(place + 1)
                    with m.If(w.payload.last):
                        m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += b.valid.eq(1)
                with m.If(b.ready):
                    m.next = "IDLE"
        return m
