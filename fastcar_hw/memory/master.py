"""What the two memory masters share beside their data: commands, window, bursts in flight, the first error."""

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Member, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import Command
from .axi import Response
from .burst import outside

__all__ = ["MasterFrame", "master_ports"]


def master_ports(config: AcceleratorConfig) -> dict[str, Member]:
    """Return the ports that every memory master has and its frame serves.

    Attributes
    ----------
    command : In, stream of `isa.Command`
        What to do.
    window_base, window_limit : In
        First and last byte that may be accessed.  A command outside never reaches the bus.
    halt : In
        Stop; once given, it stays until ``clear``.
    clear : In
        Strobe, allowed while the master is quiet: forget commands and the error.
    error : Out, `ErrorCode`; error_address : Out
        First error since ``clear``: address of the command outside, or of the burst that was answered with an error.
        The master stops by itself.
    """
    return {
        "command": In(stream.Signature(Command)),
        "window_base": In(config.address_width),
        "window_limit": In(config.address_width),
        "halt": In(1),
        "clear": In(1),
        "error": Out(ErrorCode),
        "error_address": Out(config.address_width),
    }


class MasterFrame(wiring.Component):
    """Queue of commands and list of bursts in flight of a memory master.

    Parameters
    ----------
    config
        The accelerator.
    depth
        Commands that queue.
    outstanding
        Bursts that may be in flight.
    note
        What is remembered of a burst: a layout with ``addr``, its first byte.
    window_error, bus_error
        Codes of a command outside of the window and of an error response.

    Attributes
    ----------
    command, window_base, window_limit, halt, clear, error, error_address
        See `master_ports`.
    next : Out, stream of `isa.Command`
        The oldest command, if it stays in the window.  None while ``stop``.
    beats : In
        Beats that ``next.payload`` covers, combinationally.
    burst : In, stream of notes
        A burst that is asked for; ready while one more may be in flight.
    landing : Out, stream of notes
        The oldest burst in flight; a transfer ends it.
    answered : In; resp : In, `Response`
        The bus answers to the oldest burst (to a beat of it).
    failed : Out
        It does so with an error, the first one.
    stop : Out
        Nothing more may begin: halted from outside, by an error, or cleared.
    waiting : Out
        Commands are queued.
    in_flight : Out
        So are bursts.

    Notes
    -----
    A command is offered two cycles after its transfer, and so is the note of a burst.
    """

    def __init__(
        self, config: AcceleratorConfig, *, depth: int, outstanding: int, note: data.StructLayout,
        window_error: ErrorCode, bus_error: ErrorCode,
    ) -> None:  # fmt: skip
        self._config, self._depth, self._outstanding, self._note = config, depth, outstanding, note
        self._window_error, self._bus_error = window_error, bus_error
        super().__init__(
            master_ports(config)
            | {
                "next": Out(stream.Signature(Command)),
                "beats": In(32),
                "burst": In(stream.Signature(note)),
                "landing": Out(stream.Signature(note)),
                "answered": In(1),
                "resp": In(Response),
                "failed": Out(1),
                "stop": Out(1),
                "waiting": Out(1),
                "in_flight": Out(1),
            }
        )

    def serve(self, m: Module, master: wiring.Component) -> None:
        """Connect the ports that the master has of `master_ports`."""
        wiring.connect(m, wiring.flipped(master.command), self.command)
        m.d.comb += [
            self.window_base.eq(master.window_base),
            self.window_limit.eq(master.window_limit),
            self.halt.eq(master.halt),
            self.clear.eq(master.clear),
            master.error.eq(self.error),
            master.error_address.eq(self.error_address),
        ]

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()

        halted = Signal()
        m.d.comb += self.stop.eq(halted | self.halt | self.clear)

        queue = fifo.SyncFIFOBuffered(width=Command.as_shape().size, depth=self._depth)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        command = self.next.payload
        bad = outside(self._config, command.a, self.beats, self.window_base, self.window_limit)
        offered = queue.r_rdy & ~self.stop
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
            command.eq(queue.r_data),
            self.next.valid.eq(offered & ~bad),
            queue.r_en.eq(offered & self.next.ready),
            self.waiting.eq(queue.level.any()),
        ]
        with m.If(offered & bad & self.next.ready):
            m.d.sync += [self.error.eq(self._window_error), self.error_address.eq(command.a), halted.eq(1)]

        # One place more than needed: the buffered FIFO takes an entry only while its memory behind the output has room.
        m.submodules.flight = flight = fifo.SyncFIFOBuffered(width=self._note.size, depth=self._outstanding + 1)
        m.d.comb += [
            flight.w_data.eq(self.burst.payload),
            self.burst.ready.eq(flight.level != self._outstanding),
            flight.w_en.eq(self.burst.valid & self.burst.ready),
            self.landing.payload.as_value().eq(flight.r_data),
            self.landing.valid.eq(flight.r_rdy),
            flight.r_en.eq(self.landing.ready),
            self.in_flight.eq(flight.level.any()),
            self.failed.eq(
                self.answered & ((self.resp == Response.SLVERR) | (self.resp == Response.DECERR)) & ~self.stop
            ),
        ]
        with m.If(self.failed):
            m.d.sync += [
                self.error.eq(self._bus_error),
                self.error_address.eq(self.landing.payload.addr),
                halted.eq(1),
            ]
        with m.If(self.clear):
            m.d.sync += [self.error.eq(ErrorCode.NONE), halted.eq(0)]
        return m
