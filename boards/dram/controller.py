"""SDR SDRAM controller: AXI4 bursts as single-word accesses to open rows, one a cycle."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import ConfigError
from fastcar_hw.memory.axi import AxiReadSignature, AxiWriteSignature, Response, whole_beats

from .part import SdramPart
from .pins import SdramPins

__all__ = ["SdramController"]

#: ras_n, cas_n and we_n of the commands, most significant first, with cs_n low.
_NOP, _ACTIVATE, _READ, _WRITE, _PRECHARGE, _REFRESH, _MODE = 0b111, 0b011, 0b101, 0b100, 0b010, 0b001, 0b000
#: Address bit that makes a precharge one of all banks.
_ALL = 10
#: Refreshes of the power-up sequence.
_POWER_UP_REFRESHES = 8


class SdramController(wiring.Component):
    """Memory of a board.

    Parameters
    ----------
    part
        The memory.
    clock_hz
        Frequency of `sync`.
    addr_width, data_width
        Bits of the AXI port; a beat is ``data_width / 16`` words.
    read_delay
        Cycles that data take from the memory to ``dq_i`` and commands take to it, beside the latency of the memory:
        what the board's I/O registers add.

    Attributes
    ----------
    read : In, `AxiReadSignature`; write : In, `AxiWriteSignature`
        Bursts of whole beats with incrementing addresses, in order; others, and those that leave the memory, are
        answered with SLVERR and have no effect.
    pins : Out, `SdramPins`
        Registered.

    Raises
    ------
    ConfigError
        When a parameter breaks its rule.

    Notes
    -----
    A word a cycle in an open row, for reads and writes; rows stay open, one a bank, until another one of the bank is
    needed or a refresh is due.  A change of row costs ``rp + rcd`` cycles and what is left of ``ras``.  A refresh comes
    every ``refi`` cycles, between two words, and costs ``rp + rfc + rcd`` and a few.  Reads go before writes, bursts
    are not mixed.  Bits of an address: word, bank above the column, row on top, so that the next row of a long stream
    is in another bank.
    """

    #: Beats that wait for the master: the reads that are under way always have room.
    QUEUE = 16

    def __init__(
        self, part: SdramPart, clock_hz: int, *, addr_width: int, data_width: int, read_delay: int = 1
    ) -> None:
        if data_width not in (32, 64, 128, 256):
            raise ConfigError(f"data_width must be one of 32, 64, 128, 256, not {data_width!r}")
        if part.size > 1 << addr_width:
            raise ConfigError(f"addr_width must be at least {(part.size - 1).bit_length()} for {part.name}, "
                              f"not {addr_width!r}")  # fmt: skip
        if not 0 <= read_delay <= 4:
            raise ConfigError(f"read_delay must be in 0..4, not {read_delay!r}")
        self._part, self._times = part, part.cycles(clock_hz)
        self._width, self._delay = data_width, read_delay
        super().__init__(
            {
                "read": In(AxiReadSignature(addr_width, data_width)),
                "write": In(AxiWriteSignature(addr_width, data_width)),
                "pins": Out(SdramPins(part)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        part, times = self._part, self._times
        words = self._width // 16
        banks = 1 << part.bank_bits
        pins = self.pins
        address = data.StructLayout({"column": part.column_bits, "bank": part.bank_bits, "row": part.row_bits})

        command = Signal(3, init=_NOP)
        m.d.comb += Cat(pins.we_n, pins.cas_n, pins.ras_n).eq(command)
        m.d.sync += [command.eq(_NOP), pins.cs_n.eq(0), pins.dqm.eq(0), pins.dq_oe.eq(0)]

        # The burst at work: address of its next word, words left.
        place, left = Signal(address), Signal(range(256 * words + 1))
        writing, good, answering = Signal(), Signal(), Signal()
        # What is open in each bank, and since when.
        opened = Signal(banks)
        rows = Signal(data.ArrayLayout(part.row_bits, banks))
        until_precharge = Signal(data.ArrayLayout(range(times.ras + times.wr + 2), banks))
        until_activate = Signal(range(times.rrd + 1))
        for bank in range(banks):
            with m.If(until_precharge[bank] != 0):
                m.d.sync += until_precharge[bank].eq(until_precharge[bank] - 1)
        with m.If(until_activate != 0):
            m.d.sync += until_activate.eq(until_activate - 1)
        # Registered comparison with the open row: decided in the cycle in which the place changes.
        hit = Signal()

        refresh_in, refresh_due = Signal(range(times.refi), init=times.refi - 1), Signal()
        with m.If(refresh_in == 0):
            m.d.sync += [refresh_in.eq(times.refi - 1), refresh_due.eq(1)]
        with m.Else():
            m.d.sync += refresh_in.eq(refresh_in - 1)

        # Reads under way; their data come at the end of the line.
        flight = Signal(times.cas + self._delay + 1)
        read_now, arrived = Signal(), Signal()
        m.d.sync += flight.eq(Cat(read_now, flight))
        m.d.comb += arrived.eq(flight[-1])
        m.submodules.beats = beats = fifo.SyncFIFOBuffered(width=self._width + 2, depth=self.QUEUE)
        gathered, filled = Signal(self._width), Signal(range(words))
        # A bit a beat under way says whether it is the last one.
        room = Signal(range(self.QUEUE + 1), init=self.QUEUE)
        reserve, freed = Signal(), Signal()
        m.d.sync += room.eq(room - reserve + freed)

        self._answer_reads(m, beats, gathered, filled, arrived, freed)

        wait = Signal(range(max(times.power_up, times.rfc, times.rp, times.rcd) + 1), init=times.power_up)
        with m.If(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        refreshes = Signal(range(_POWER_UP_REFRESHES + 1))
        mode = times.cas << 4  # single words, sequential
        part_of_beat = Signal(range(words))
        ar, aw, w, b = self.read.ar, self.write.aw, self.write.w, self.write.b
        bank = place.bank
        may_precharge = Signal()
        m.d.comb += may_precharge.eq(until_precharge[bank] == 0)
        all_may_precharge = Signal()
        m.d.comb += all_may_precharge.eq(~Cat(until_precharge[n] != 0 for n in range(banks)).any())
        last_beat = left <= words

        def accept(request, is_write: int) -> None:
            shift = (self._width // 8).bit_length() - 1
            legal = whole_beats(request, self._width)
            inside = (request.addr + ((request.len + 1) << shift)) <= part.size
            m.d.sync += [
                place.as_value().eq(request.addr[1:]),
                left.eq((request.len + 1) * words),
                good.eq(legal & inside),
                writing.eq(is_write),
                part_of_beat.eq(0),
            ]

        def issue(code: int, row_or_column, in_bank=None) -> None:
            m.d.sync += [command.eq(code), pins.a.eq(row_or_column)]
            if in_bank is not None:
                m.d.sync += pins.ba.eq(in_bank)

        with m.FSM():
            with m.State("POWER_UP"):
                m.d.sync += pins.cke.eq(1)
                with m.If(wait == 0):
                    issue(_PRECHARGE, 1 << _ALL)
                    m.d.sync += wait.eq(times.rp)
                    m.next = "POWER_UP_REFRESH"
            with m.State("POWER_UP_REFRESH"):
                with m.If(wait == 0):
                    issue(_REFRESH, 0)
                    m.d.sync += [wait.eq(times.rfc), refreshes.eq(refreshes + 1)]
                    with m.If(refreshes == _POWER_UP_REFRESHES - 1):
                        m.next = "MODE"
            with m.State("MODE"):
                with m.If(wait == 0):
                    issue(_MODE, mode, 0)
                    m.d.sync += wait.eq(times.mrd)
                    m.next = "IDLE"
            with m.State("IDLE"):
                with m.If(wait == 0):
                    with m.If(refresh_due):
                        m.next = "CLOSE"
                    with m.Elif(ar.valid):
                        m.d.comb += ar.ready.eq(1)
                        accept(ar.payload, 0)
                        m.next = "LOOK"
                    with m.Elif(aw.valid):
                        m.d.comb += aw.ready.eq(1)
                        accept(aw.payload, 1)
                        m.next = "LOOK"
            with m.State("LOOK"):
                m.d.sync += hit.eq(opened.bit_select(bank, 1) & (rows[bank] == place.row))
                m.next = "OPEN"
                with m.If(~good):
                    m.next = "REFUSE_READ"
                    with m.If(writing):
                        m.next = "REFUSE_WRITE"
            with m.State("OPEN"):
                with m.If(wait == 0):
                    with m.If(hit):
                        m.next = "READ"
                        with m.If(writing):
                            m.next = "WRITE"
                    with m.Elif(opened.bit_select(bank, 1)):
                        with m.If(may_precharge):
                            issue(_PRECHARGE, 0, bank)
                            m.d.sync += [opened.bit_select(bank, 1).eq(0), wait.eq(times.rp - 1)]
                    with m.Elif(until_activate == 0):
                        issue(_ACTIVATE, place.row, bank)
                        m.d.sync += [
                            opened.bit_select(bank, 1).eq(1),
                            rows[bank].eq(place.row),
                            until_precharge[bank].eq(max(times.ras, times.rc - times.rp) - 1),
                            until_activate.eq(times.rrd - 1),
                            wait.eq(times.rcd - 1),
                            hit.eq(1),
                        ]

            def advance(following: str) -> None:
                """Go to the next word; look again where the column ends."""
                m.d.sync += [place.as_value().eq(place.as_value() + 1), left.eq(left - 1)]
                m.d.sync += part_of_beat.eq(Mux(part_of_beat == words - 1, 0, part_of_beat + 1))
                with m.If(left == 1):
                    m.next = following
                with m.Elif(place.column.all()):
                    m.next = "LOOK"

            with m.State("READ"):
                # A refresh comes between beats, and a beat begins only if there is room for it.
                begins = part_of_beat == 0
                with m.If(begins & refresh_due):
                    m.next = "CLOSE"
                with m.Elif(~begins | (room != 0)):
                    issue(_READ, place.column, bank)
                    m.d.comb += [read_now.eq(1), reserve.eq(begins)]
                    advance("IDLE")
            with m.State("WRITE"):
                begins = part_of_beat == 0
                with m.If(begins & refresh_due):
                    m.next = "CLOSE"
                with m.Elif(w.valid & ~flight.any()):
                    # The bus turns around: data of reads are out of the way.
                    issue(_WRITE, place.column, bank)
                    m.d.sync += [
                        pins.dq_o.eq(w.payload.data.word_select(part_of_beat, 16)),
                        pins.dqm.eq(~w.payload.strb.word_select(part_of_beat, 2)),
                        pins.dq_oe.eq(1),
                    ]
                    with m.If(until_precharge[bank] < times.wr):
                        m.d.sync += until_precharge[bank].eq(times.wr)
                    m.d.comb += w.ready.eq(part_of_beat == words - 1)
                    advance("ANSWER")
            with m.State("ANSWER"):
                m.d.comb += b.valid.eq(1)
                m.d.comb += b.payload.resp.eq(Mux(good, Response.OKAY.value, Response.SLVERR.value))
                with m.If(b.ready):
                    m.next = "IDLE"
            with m.State("REFUSE_WRITE"):
                m.d.comb += w.ready.eq(1)
                m.d.sync += left.eq(0)
                with m.If(w.valid & w.payload.last):
                    m.next = "ANSWER"
            with m.State("REFUSE_READ"):
                # Behind the data of the bursts before, beats of the length that was asked for.
                with m.If(~flight.any() & (room != 0)):
                    m.d.comb += [answering.eq(1), reserve.eq(1)]
                    m.d.sync += left.eq(left - words)
                    with m.If(last_beat):
                        m.next = "IDLE"
            with m.State("CLOSE"):
                with m.If((wait == 0) & all_may_precharge):
                    issue(_PRECHARGE, 1 << _ALL)
                    m.d.sync += [opened.eq(0), wait.eq(times.rp - 1)]
                    m.next = "REFRESH"
            with m.State("REFRESH"):
                with m.If(wait == 0):
                    issue(_REFRESH, 0)
                    m.d.sync += [refresh_due.eq(0), wait.eq(times.rfc - 1)]
                    m.next = "IDLE"
                    with m.If(left != 0):
                        m.next = "LOOK"
        # Which beat is the last of its burst is known when its first word is asked for.
        m.submodules.ends = ends = fifo.SyncFIFOBuffered(width=1, depth=self.QUEUE + 2)
        m.d.comb += [
            ends.w_data.eq(last_beat),
            ends.w_en.eq(reserve & ~answering),
        ]
        complete = Signal()
        m.d.comb += [
            complete.eq(arrived & (filled == words - 1)),
            ends.r_en.eq(complete),
            beats.w_en.eq(complete | answering),
            beats.w_data.eq(Cat(gathered[16:], pins.dq_i, ends.r_data, Const(0, 1))),
        ]
        with m.If(answering):
            m.d.comb += beats.w_data.eq(Cat(Const(0, self._width), last_beat, Const(1, 1)))
        return m

    def _answer_reads(self, m, beats, gathered, filled, arrived, freed) -> None:
        """Gather words into beats, and hand these to the master."""
        words = self._width // 16
        r = self.read.r
        with m.If(arrived):
            m.d.sync += [
                gathered.eq(Cat(gathered[16:], self.pins.dq_i)),
                filled.eq(Mux(filled == words - 1, 0, filled + 1)),
            ]
        m.d.comb += [
            r.valid.eq(beats.r_rdy),
            r.payload.data.eq(beats.r_data[: self._width]),
            r.payload.last.eq(beats.r_data[self._width]),
            r.payload.resp.eq(Mux(beats.r_data[self._width + 1], Response.SLVERR.value, Response.OKAY.value)),
            beats.r_en.eq(r.ready),
            freed.eq(beats.r_rdy & r.ready),
        ]
