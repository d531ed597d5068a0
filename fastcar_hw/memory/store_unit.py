"""The store unit: bytes of the vector unit to AXI4 writes."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import StoreFunc
from .axi import BURST_INCR, AxiWriteSignature
from .burst import burst_length
from .master import MasterFrame, master_ports
from .words import StoreWord

__all__ = ["StoreUnit"]


class StoreUnit(wiring.Component):
    """Write keys, values, replay slots and tokens.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    command : In, stream of `isa.Command`
        STOREs (`isa.StoreFunc`): a = byte address.  At most 2^17 - 1 bytes each.
    window_base, window_limit, halt, clear, error, error_address
        See `master_ports`.  After ``halt`` no further burst begins; one that was begun ends with beats that write
        nothing, and data are swallowed.
    bytes : In, stream of `StoreWord`
        Data, in the order of the commands.  The words of a command hold its bytes and no more, and those of a PACK do
        not reach across the end of a beat.
    axi : Out, `AxiWriteSignature`
        The memory.
    busy : Out
        Something is queued, or a write is not acknowledged yet.
    quiet : Out
        Nothing is in flight on the bus.
    beat_strobe : Out
        A beat was written in this cycle.

    Notes
    -----
    SCATTER writes a byte a cycle; PACK takes a word of the vector unit a cycle, and a cycle more for each beat: see
    `cycles`.  The first burst is asked for `FIRST` cycles after its command at the earliest.  Acknowledgements are not
    waited for until `OUTSTANDING` bursts lack theirs.
    """

    #: Cycles from the transfer of a command to that of its first request.
    FIRST = 4
    #: Bursts that may be in flight: at five cycles for the shortest, enough for an answer within 80 cycles.
    OUTSTANDING = 16

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        c, g = config, config.derived
        super().__init__(
            master_ports(c)
            | {
                "bytes": In(stream.Signature(StoreWord(c))),
                "axi": Out(AxiWriteSignature(c.address_width, g.data_width)),
                "busy": Out(1),
                "quiet": Out(1),
                "beat_strobe": Out(1),
            }
        )

    @staticmethod
    def cycles(func: StoreFunc, *, beats: int, bursts: int = 1, words: int = 1) -> int:
        """Return the cycles from one command to the next, when neither memory nor data hold it.

        Parameters
        ----------
        func
            The primitive.
        beats, bursts
            Of the command.
        words
            Words of the vector unit that fill a beat of a PACK.
        """
        each = {StoreFunc.SCATTER: 1, StoreFunc.PACK: words + 1, StoreFunc.WORD: 2}[func]
        return 1 + 2 * bursts + each * beats

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        size = g.beat_bytes
        shift = size.bit_length() - 1
        unit = 2 * c.vector_width

        note = data.StructLayout({"addr": unsigned(c.address_width)})
        m.submodules.frame = frame = MasterFrame(
            c, depth=8, outstanding=self.OUTSTANDING, note=note,
            window_error=ErrorCode.WRITE_WINDOW, bus_error=ErrorCode.WRITE_BUS,
        )  # fmt: skip
        frame.serve(m, self)
        cmd, stop = frame.next.payload, frame.stop

        func, lane_byte, word = Signal(5), Signal(shift), Signal(32)
        addr = Signal(c.address_width)
        bytes_left = Signal(17)
        beats_left = Signal(17)
        length, beat = Signal(range(c.burst_beats + 1)), Signal(range(c.burst_beats + 1))
        buffer = Signal(8 * size)
        fill = Signal(range(size + unit + 1))
        position = Signal(range(unit + 1))
        aw, w, b = self.axi.aw, self.axi.w, self.axi.b
        item = self.bytes.payload
        scatter = func == StoreFunc.SCATTER.value
        pack = func == StoreFunc.PACK.value
        m.d.comb += [
            aw.payload.addr.eq(addr),
            aw.payload.len.eq(length - 1),
            aw.payload.size.eq(shift),
            aw.payload.burst.eq(BURST_INCR),
            w.payload.last.eq(beat == length),
            frame.burst.payload.addr.eq(addr),
            b.ready.eq(frame.landing.valid),
            frame.landing.ready.eq(b.valid),
            frame.answered.eq(b.valid & b.ready),
            frame.resp.eq(b.payload.resp),
        ]

        # A beat that was offered stays as it is, whatever happens; others write nothing after a stop.
        committed, void = Signal(), Signal()
        byte = item.data.as_value().word_select(position[: max(1, (unit - 1).bit_length())], 8)
        m.d.comb += void.eq(stop & ~committed)
        m.d.sync += committed.eq(w.valid & ~w.ready & ~void)
        with m.If(void):
            m.d.comb += [w.payload.data.eq(0), w.payload.strb.eq(0)]
        with m.Elif(scatter):
            m.d.comb += [w.payload.data.eq(byte.replicate(size)), w.payload.strb.eq(1 << lane_byte)]
        with m.Else():
            m.d.comb += [w.payload.data.eq(buffer), w.payload.strb.eq((1 << size) - 1)]

        total_beats = Mux(
            cmd.func == StoreFunc.PACK.value, (cmd.b[:17] + (size - 1)) >> shift,
            Mux(cmd.func == StoreFunc.SCATTER.value, cmd.b[:17], 1),
        )  # fmt: skip
        m.d.comb += frame.beats.eq(total_beats)
        with m.FSM() as fsm:
            m.d.comb += [
                self.busy.eq(frame.waiting | ~fsm.ongoing("ACCEPT") | frame.in_flight),
                self.quiet.eq(~fsm.ongoing("ASK") & ~frame.in_flight),
            ]
            with m.State("ACCEPT"):
                m.d.comb += [frame.next.ready.eq(1), self.bytes.ready.eq(stop)]
                m.d.sync += [
                    func.eq(cmd.func), lane_byte.eq(cmd.d), word.eq(cmd.b), addr.eq(cmd.a),
                    bytes_left.eq(cmd.b), beats_left.eq(total_beats), fill.eq(0), position.eq(0),
                ]  # fmt: skip
                with m.If(frame.next.valid & (total_beats != 0)):
                    m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += [length.eq(burst_length(c, addr, beats_left)), beat.eq(1)]
                m.next = "ASK"
                with m.If(stop):
                    m.next = "ACCEPT"
            with m.State("ASK"):
                m.d.comb += [aw.valid.eq(frame.burst.ready), frame.burst.valid.eq(aw.ready)]
                with m.If(aw.valid & aw.ready):
                    m.d.sync += [addr.eq(addr + (length << shift)), beats_left.eq(beats_left - length)]
                    m.next = "FILL"
                    with m.If(scatter):
                        m.next = "SEND"
                # Once offered, a request stays until it is taken; one that waits for its place in flight is given up.
                with m.If(stop & ~aw.valid):
                    m.next = "ACCEPT"
            with m.State("FILL"):
                # Words are gathered until the beat is full or the data end; the rest stays zero.
                with m.If(stop):
                    m.next = "SEND"
                with m.Elif(pack):
                    m.d.comb += self.bytes.ready.eq(1)
                    with m.If(self.bytes.valid):
                        room = (item.count << 3)
                        fresh = Mux(fill == 0, 0, buffer)
                        keep = item.data.as_value() & ((1 << room) - 1)[: 8 * unit]
                        m.d.sync += [
                            buffer.eq(fresh | (keep << (fill << 3))[: 8 * size]),
                            fill.eq(fill + item.count),
                            bytes_left.eq(bytes_left - item.count),
                        ]
                        with m.If((fill + item.count >= size) | (bytes_left <= item.count)):
                            m.d.sync += fill.eq(0)
                            m.next = "SEND"
                with m.Else():
                    m.d.sync += buffer.eq(word)
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += w.valid.eq(~scatter | self.bytes.valid | stop)
                with m.If(w.valid & w.ready):
                    m.d.comb += self.beat_strobe.eq(~void)
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(scatter & ~void):
                        m.d.sync += position.eq(position + 1)
                        with m.If(position + 1 == item.count):
                            m.d.comb += self.bytes.ready.eq(1)
                            m.d.sync += position.eq(0)
                    with m.If(beat == length):
                        m.next = "ACCEPT"
                        with m.If(beats_left != 0):
                            m.next = "SIZE"
                    with m.Elif(~scatter):
                        m.next = "FILL"
        return m
