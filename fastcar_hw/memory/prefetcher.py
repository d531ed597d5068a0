"""The prefetcher: descriptors in, tagged beats out, several bursts in flight."""

from amaranth.hdl import Cat, Module, ResetInserter, Signal, unsigned
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import Command, Dest, LoadClass
from .axi import BURST_INCR, AxiReadSignature, Response
from .beat_fifo import beat_layout
from .burst import burst_length, outside

__all__ = ["Prefetcher"]


class Prefetcher(wiring.Component):
    """Keep the memory bus busy, as far ahead as the beat FIFO has room.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    command : In, stream of `isa.Command`
        LOADs: a = byte address, b = beats, func = dest | class << 2.
    axi : Out, `AxiReadSignature`
        The memory.
    o : Out, stream of {dest, beat}
        To the beat FIFO, which always has room: bursts are only asked for when it can hold them.
    freed_count : In
        Beats that the FIFO freed in this cycle.
    window_base, window_limit : In
        First and last byte that may be read.  A descriptor outside never reaches the bus.
    halt : In
        No further bursts; beats that still arrive are dropped.
    clear : In
        Strobe, allowed while ``quiet``: forget descriptors and the error.
    busy : Out
        Descriptors are queued or being turned into bursts.
    quiet : Out
        Nothing is in flight on the bus.
    error : Out, `ErrorCode`; error_address : Out
        First error since ``clear``.  The unit halts by itself.
    beat_class : Out, `isa.LoadClass`; beat_strobe : Out
        Class of a beat that arrived in this cycle.
    full : Out
        A burst waits for room in the FIFO.

    Notes
    -----
    One beat a cycle with any memory latency up to ``outstanding * burst_beats`` cycles.  A burst takes three cycles to
    set up, hidden behind the beats of the one before.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        c, g = config, config.derived
        super().__init__(
            {
                "command": In(stream.Signature(Command)),
                "axi": Out(AxiReadSignature(c.address_width, g.data_width)),
                "o": Out(stream.Signature(data.StructLayout({"dest": Dest, "beat": beat_layout(c)}))),
                "freed_count": In(range(c.weight_fifo_depth + 1)),
                "window_base": In(c.address_width),
                "window_limit": In(c.address_width),
                "halt": In(1),
                "clear": In(1),
                "busy": Out(1),
                "quiet": Out(1),
                "error": Out(ErrorCode),
                "error_address": Out(c.address_width),
                "beat_class": Out(LoadClass),
                "beat_strobe": Out(1),
                "full": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        depth = c.weight_fifo_depth
        shift = g.beat_bytes.bit_length() - 1

        queue = fifo.SyncFIFOBuffered(width=Command.as_shape().size, depth=c.load_queue)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        descriptor = data.View(Command.as_shape(), queue.r_data)
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
        ]

        # Bursts in flight remember who their beats are for.
        note = data.StructLayout({"dest": Dest, "kind": LoadClass, "addr": unsigned(c.address_width)})
        m.submodules.flight = flight = fifo.SyncFIFOBuffered(width=note.size, depth=c.outstanding + 1)
        landing = data.View(note, flight.r_data)

        addr = Signal(c.address_width)
        left = Signal(32)
        dest, kind = Signal(Dest), Signal(LoadClass)
        length = Signal(range(c.burst_beats + 1))
        room = Signal(range(depth + 1), init=depth)
        halted = Signal()
        stop = halted | self.halt
        in_flight = Signal(range(c.outstanding + 1))
        asked, landed = Signal(), Signal()
        taken = Signal(range(c.burst_beats + 1))
        m.d.sync += [
            room.eq(room + self.freed_count - taken),
            in_flight.eq(in_flight + asked - landed),
        ]

        ar = self.axi.ar
        m.d.comb += [
            ar.payload.addr.eq(addr),
            ar.payload.len.eq(length - 1),
            ar.payload.size.eq(shift),
            ar.payload.burst.eq(BURST_INCR),
        ]
        with m.FSM() as fsm:
            m.d.comb += [
                self.busy.eq(queue.level.any() | ~fsm.ongoing("ACCEPT")),
                self.quiet.eq(~fsm.ongoing("ASK") & (in_flight == 0)),
            ]
            with m.State("ACCEPT"):
                m.d.sync += [
                    addr.eq(descriptor.a),
                    left.eq(descriptor.b),
                    dest.eq(descriptor.func[:2]),
                    kind.eq(descriptor.func[2:]),
                ]
                with m.If(queue.r_rdy & ~stop):
                    m.d.comb += queue.r_en.eq(1)
                    bad = outside(c, descriptor.a, descriptor.b, self.window_base, self.window_limit)
                    with m.If(bad):
                        m.d.sync += [
                            self.error.eq(ErrorCode.READ_WINDOW),
                            self.error_address.eq(descriptor.a),
                            halted.eq(1),
                        ]
                    with m.Elif(descriptor.b != 0):
                        m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += length.eq(burst_length(c, addr, left))
                m.next = "RESERVE"
            with m.State("RESERVE"):
                fits = length <= room
                m.d.comb += self.full.eq(~fits & ~stop)
                with m.If(stop):
                    m.next = "ACCEPT"
                with m.Elif(fits & (in_flight != c.outstanding) & flight.w_rdy):
                    m.d.comb += [taken.eq(length), asked.eq(1), flight.w_en.eq(1)]
                    m.next = "ASK"
            with m.State("ASK"):
                # Once offered, a request stays until it is taken, whatever happens.
                m.d.comb += ar.valid.eq(1)
                with m.If(ar.ready):
                    m.d.sync += [addr.eq(addr + (length << shift)), left.eq(left - length)]
                    m.next = "SIZE"
                    with m.If((left == length) | stop):
                        m.next = "ACCEPT"
        m.d.comb += flight.w_data.eq(Cat(dest, kind, addr))

        r = self.axi.r
        m.d.comb += [
            r.ready.eq(flight.r_rdy),
            self.o.payload.dest.eq(landing.dest),
            self.o.payload.beat.as_value().eq(r.payload.data),
            self.beat_class.eq(landing.kind),
        ]
        with m.If(r.valid & r.ready):
            m.d.comb += [self.o.valid.eq(~stop), self.beat_strobe.eq(~stop)]
            with m.If(r.payload.last):
                m.d.comb += [landed.eq(1), flight.r_en.eq(1)]
            bad_response = (r.payload.resp == Response.SLVERR) | (r.payload.resp == Response.DECERR)
            with m.If(bad_response & ~stop):
                m.d.comb += self.o.valid.eq(0)
                m.d.sync += [
                    self.error.eq(ErrorCode.READ_BUS),
                    self.error_address.eq(landing.addr),
                    halted.eq(1),
                ]
        with m.If(self.clear):
            m.d.sync += [halted.eq(0), self.error.eq(ErrorCode.NONE), room.eq(depth)]
        return m

