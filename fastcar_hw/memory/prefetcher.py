"""The prefetcher: descriptors in, tagged beats out, several bursts in flight."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import Dest, LoadClass
from .axi import BURST_INCR, AxiReadSignature
from .beat_fifo import beat_layout
from .burst import burst_length
from .master import MasterFrame, master_ports

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
    window_base, window_limit, halt, clear, error, error_address
        See `master_ports`.  After ``halt`` no further burst is asked for, and beats that still arrive are dropped.
    axi : Out, `AxiReadSignature`
        The memory.
    o : Out, stream of {dest, beat}
        To the beat FIFO, which always has room: bursts are only asked for when it can hold them.
    freed_count : In
        Beats that the FIFO freed in this cycle.
    busy : Out
        Descriptors are queued or being turned into bursts.
    quiet : Out
        Nothing is in flight on the bus.
    beat_class : Out, `isa.LoadClass`; beat_strobe : Out
        Class of a beat that arrives in this cycle and goes to the FIFO.
    full : Out
        A burst waits for room in the FIFO.

    Notes
    -----
    One beat a cycle with any memory latency up to `hidden_latency`, if bursts have `SETUP` beats or more.  The first
    request is accepted `FIRST` cycles after its command at the earliest; further bursts follow in `SETUP` cycles,
    further commands in ``SETUP + 1``, hidden behind the beats of those before.
    """

    #: Cycles from the transfer of a command to that of its first request.
    FIRST = 5
    #: Cycles that a burst takes to set up.
    SETUP = 3

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        c, g = config, config.derived
        super().__init__(
            master_ports(c)
            | {
                "axi": Out(AxiReadSignature(c.address_width, g.data_width)),
                "o": Out(stream.Signature(data.StructLayout({"dest": Dest, "beat": beat_layout(c)}))),
                "freed_count": In(range(c.weight_fifo_depth + 1)),
                "busy": Out(1),
                "quiet": Out(1),
                "beat_class": Out(LoadClass),
                "beat_strobe": Out(1),
                "full": Out(1),
            }
        )

    @staticmethod
    def hidden_latency(config: AcceleratorConfig) -> int:
        """Return the longest latency at which beats come in every cycle.

        It counts from the transfer of a request to that of its first beat, and supposes consumers that keep up.

        Parameters
        ----------
        config
            The accelerator.
        """
        # A request follows two cycles after the last beat of the burst whose place in flight it takes.
        in_flight = (config.outstanding - 1) * config.burst_beats - 1
        # Room is reserved a burst at a time, a cycle before the request, and free again five cycles after the beat.
        room = config.weight_fifo_depth - config.burst_beats - 5
        return min(in_flight, room)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        depth = c.weight_fifo_depth
        shift = g.beat_bytes.bit_length() - 1

        # Bursts in flight remember who their beats are for.
        note = data.StructLayout({"dest": Dest, "kind": LoadClass, "addr": unsigned(c.address_width)})
        m.submodules.frame = frame = MasterFrame(
            c, depth=c.load_queue, outstanding=c.outstanding, note=note,
            window_error=ErrorCode.READ_WINDOW, bus_error=ErrorCode.READ_BUS,
        )  # fmt: skip
        frame.serve(m, self)
        descriptor = frame.next.payload
        m.d.comb += frame.beats.eq(descriptor.b)

        addr = Signal(c.address_width)
        left = Signal(32)
        dest, kind = Signal(Dest), Signal(LoadClass)
        length, taken = Signal(range(c.burst_beats + 1)), Signal(range(c.burst_beats + 1))
        # Beats that the FIFO can hold beside those that were asked for.
        room = Signal(range(depth + 1), init=depth)
        m.d.sync += room.eq(room + self.freed_count - taken)

        ar = self.axi.ar
        m.d.comb += [
            ar.payload.addr.eq(addr),
            ar.payload.len.eq(length - 1),
            ar.payload.size.eq(shift),
            ar.payload.burst.eq(BURST_INCR),
            frame.burst.payload.dest.eq(dest),
            frame.burst.payload.kind.eq(kind),
            frame.burst.payload.addr.eq(addr),
        ]
        with m.FSM() as fsm:
            m.d.comb += [
                self.busy.eq(frame.waiting | ~fsm.ongoing("ACCEPT")),
                # A burst counts from the cycle before its request is offered.
                self.quiet.eq(~frame.in_flight),
            ]
            with m.State("ACCEPT"):
                m.d.comb += frame.next.ready.eq(1)
                m.d.sync += [
                    addr.eq(descriptor.a),
                    left.eq(descriptor.b),
                    dest.eq(descriptor.func[:2]),
                    kind.eq(descriptor.func[2:]),
                ]
                with m.If(frame.next.valid & (descriptor.b != 0)):
                    m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += length.eq(burst_length(c, addr, left))
                m.next = "RESERVE"
                with m.If(frame.stop):
                    m.next = "ACCEPT"
            with m.State("RESERVE"):
                fits = length <= room
                m.d.comb += self.full.eq(~fits & ~frame.stop)
                with m.If(frame.stop):
                    m.next = "ACCEPT"
                with m.Elif(fits):
                    m.d.comb += frame.burst.valid.eq(1)
                    with m.If(frame.burst.ready):
                        m.d.comb += taken.eq(length)
                        m.next = "ASK"
            with m.State("ASK"):
                # Once offered, a request stays until it is taken, whatever happens.
                m.d.comb += ar.valid.eq(1)
                with m.If(ar.ready):
                    m.d.sync += [addr.eq(addr + (length << shift)), left.eq(left - length)]
                    m.next = "SIZE"
                    with m.If(left == length):
                        m.next = "ACCEPT"

        r = self.axi.r
        m.d.comb += [
            r.ready.eq(frame.landing.valid),
            frame.landing.ready.eq(r.valid & r.payload.last),
            frame.answered.eq(r.valid & r.ready),
            frame.resp.eq(r.payload.resp),
            self.o.payload.dest.eq(frame.landing.payload.dest),
            self.o.payload.beat.as_value().eq(r.payload.data),
            self.o.valid.eq(frame.answered & ~frame.stop & ~frame.failed),
            self.beat_class.eq(frame.landing.payload.kind),
            self.beat_strobe.eq(self.o.valid),
        ]
        with m.If(self.clear):
            m.d.sync += room.eq(depth)
        return m
