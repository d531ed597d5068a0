"""Block RAM behind an AXI4 port: the memory of boards whose own memory is out of reach."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In

from fastcar_hw.config import ConfigError
from fastcar_hw.memory.axi import AxiReadSignature, AxiWriteSignature, Response, whole_beats

__all__ = ["OnChipMemory"]


class OnChipMemory(wiring.Component):
    """A memory of whole beats.

    Parameters
    ----------
    addr_width, data_width
        Bits of the port.
    size
        Bytes, a multiple of the beat's.

    Attributes
    ----------
    read : In, `AxiReadSignature`; write : In, `AxiWriteSignature`
        Bursts of whole beats with incrementing addresses; others, and those that leave the memory, are answered with
        SLVERR and change nothing.

    Raises
    ------
    ConfigError
        When ``size`` is no positive multiple of the beat.

    Notes
    -----
    The first beat comes `LATENCY` cycles after its request, the others follow in every cycle.  A burst of writes takes
    a cycle a beat and two more.  A read that is accepted after a write's response sees what was written.
    """

    #: Cycles from the transfer of a read request to that of its first beat.
    LATENCY = 2

    def __init__(self, addr_width: int, data_width: int, size: int) -> None:
        beat = data_width // 8
        if size <= 0 or size % beat:
            raise ConfigError(f"size must be a positive multiple of {beat} bytes, not {size!r}")
        if size > 1 << addr_width:
            raise ConfigError(f"size must be at most 2^addr_width={1 << addr_width} bytes, not {size!r}")
        self._data_width, self._beats = data_width, size // beat
        super().__init__(
            {
                "read": In(AxiReadSignature(addr_width, data_width)),
                "write": In(AxiWriteSignature(addr_width, data_width)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.words = words = memory.Memory(shape=self._data_width, depth=self._beats, init=[])
        self._reads(m, words.read_port())
        self._writes(m, words.write_port(granularity=8))
        return m

    def _judge(self, request):
        """Return the first beat of a request, and whether all of it is in the memory."""
        shift = (self._data_width // 8).bit_length() - 1
        first = request.addr >> shift
        return first, whole_beats(request, self._data_width) & (first + request.len < self._beats)

    def _reads(self, m: Module, port) -> None:
        ar, r = self.read.ar, self.read.r
        first, legal = self._judge(ar.payload)
        place, left, good = Signal(range(self._beats)), Signal(8), Signal()
        m.d.comb += [
            port.addr.eq(place),
            r.payload.data.eq(port.data),
            r.payload.resp.eq(Mux(good, Response.OKAY.value, Response.SLVERR.value)),
            r.payload.last.eq(left == 0),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [ar.ready.eq(1), port.en.eq(0)]
                m.d.sync += [place.eq(first), left.eq(ar.payload.len), good.eq(legal)]
                with m.If(ar.valid):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += port.en.eq(1)
                m.d.sync += place.eq(place + 1)
                m.next = "SEND"
            with m.State("SEND"):
                # The next beat leaves the memory while this one is transferred.
                m.d.comb += [r.valid.eq(1), port.en.eq(r.ready)]
                with m.If(r.ready):
                    m.d.sync += [place.eq(place + 1), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.next = "IDLE"

    def _writes(self, m: Module, port) -> None:
        aw, w, b = self.write.aw, self.write.w, self.write.b
        first, legal = self._judge(aw.payload)
        place, good = Signal(range(self._beats)), Signal()
        m.d.comb += [
            port.addr.eq(place),
            port.data.eq(w.payload.data),
            b.payload.resp.eq(Mux(good, Response.OKAY.value, Response.SLVERR.value)),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += aw.ready.eq(1)
                m.d.sync += [place.eq(first), good.eq(legal)]
                with m.If(aw.valid):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += [w.ready.eq(1), port.en.eq(Mux(w.valid & good, w.payload.strb, 0))]
                with m.If(w.valid):
                    m.d.sync += place.eq(place + 1)
                    with m.If(w.payload.last):
                        m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += b.valid.eq(1)
                with m.If(b.ready):
                    m.next = "IDLE"
