"""The store unit: bytes of the vector unit to AXI4 writes."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import Command, StoreFunc
from .axi import BURST_INCR, AxiWriteSignature, Response
from .burst import burst_length, outside
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
        STOREs (`isa.StoreFunc`): a = byte address.
    bytes : In, stream of `StoreWord`
        Data, in the order of the commands.
    axi : Out, `AxiWriteSignature`
        The memory.
    window_base, window_limit : In
        First and last byte that may be written.  A command outside never reaches the bus.
    halt : In
        No further bursts.  A burst that was begun ends with beats that write nothing; data are swallowed.
    clear : In
        Strobe, allowed while ``quiet``: forget commands and the error.
    busy : Out
        Something is queued, or a write is not acknowledged yet.
    quiet : Out
        Nothing is in flight on the bus.
    error : Out, `ErrorCode`; error_address : Out
        First error since ``clear``.  The unit halts by itself.
    beat_strobe : Out
        A beat was written in this cycle.

    Notes
    -----
    SCATTER writes a byte a cycle, PACK a word of the vector unit a cycle; four cycles a burst are added.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        c, g = config, config.derived
        super().__init__(
            {
                "command": In(stream.Signature(Command)),
                "bytes": In(stream.Signature(StoreWord(c))),
                "axi": Out(AxiWriteSignature(c.address_width, g.data_width)),
                "window_base": In(c.address_width),
                "window_limit": In(c.address_width),
                "halt": In(1),
                "clear": In(1),
                "busy": Out(1),
                "quiet": Out(1),
                "error": Out(ErrorCode),
                "error_address": Out(c.address_width),
                "beat_strobe": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        size = g.beat_bytes
        shift = size.bit_length() - 1
        unit = 2 * c.vector_width

        queue = fifo.SyncFIFOBuffered(width=Command.as_shape().size, depth=8)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        cmd = data.View(Command.as_shape(), queue.r_data)
        m.d.comb += [
            queue.w_data.eq(self.command.payload),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
        ]

        func, lane_byte, word = Signal(5), Signal(shift), Signal(32)
        addr = Signal(c.address_width)
        bytes_left = Signal(17)
        beats_left = Signal(17)
        length, beat = Signal(range(c.burst_beats + 1)), Signal(range(c.burst_beats + 1))
        buffer = Signal(8 * size)
        fill = Signal(range(size + unit + 1))
        position = Signal(range(unit + 1))
        pending = Signal(8)
        halted = Signal()
        stop = halted | self.halt
        acknowledged, asked = Signal(), Signal()
        m.d.sync += pending.eq(pending + asked - acknowledged)

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
            b.ready.eq(1),
            acknowledged.eq(b.valid),
            self.quiet.eq(pending == 0),
        ]

        m.d.comb += [w.payload.data.eq(buffer), w.payload.strb.eq((1 << size) - 1)]
        with m.If(scatter):
            byte = item.data.as_value().word_select(position[: max(1, (unit - 1).bit_length())], 8)
            m.d.comb += [w.payload.data.eq(byte.replicate(size)), w.payload.strb.eq(1 << lane_byte)]
        with m.If(stop):
            m.d.comb += w.payload.strb.eq(0)

        total_beats = Mux(
            cmd.func == StoreFunc.PACK.value, (cmd.b[:17] + (size - 1)) >> shift,
            Mux(cmd.func == StoreFunc.SCATTER.value, cmd.b[:17], 1),
        )  # fmt: skip
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(queue.level.any() | ~fsm.ongoing("ACCEPT") | (pending != 0))
            with m.State("ACCEPT"):
                m.d.sync += [
                    func.eq(cmd.func), lane_byte.eq(cmd.d), word.eq(cmd.b), addr.eq(cmd.a),
                    bytes_left.eq(cmd.b), beats_left.eq(total_beats), fill.eq(0), position.eq(0),
                ]  # fmt: skip
                with m.If(stop):
                    m.d.comb += self.bytes.ready.eq(1)
                with m.Elif(queue.r_rdy):
                    m.d.comb += queue.r_en.eq(1)
                    with m.If(outside(c, cmd.a, total_beats, self.window_base, self.window_limit)):
                        m.d.sync += [
                            self.error.eq(ErrorCode.WRITE_WINDOW),
                            self.error_address.eq(cmd.a),
                            halted.eq(1),
                        ]
                    with m.Elif(total_beats != 0):
                        m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += [length.eq(burst_length(c, addr, beats_left)), beat.eq(1)]
                m.next = "ASK"
                with m.If(stop):
                    m.next = "ACCEPT"
            with m.State("ASK"):
                m.d.comb += aw.valid.eq(pending != 255)
                with m.If(aw.valid & aw.ready):
                    m.d.comb += asked.eq(1)
                    m.d.sync += [addr.eq(addr + (length << shift)), beats_left.eq(beats_left - length)]
                    m.next = "FILL"
                    with m.If(scatter):
                        m.next = "SEND"
            with m.State("FILL"):
                # Words are gathered until the beat is full or the data end; the rest stays zero.
                with m.If(stop):
                    m.d.comb += self.bytes.ready.eq(1)
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
                with m.If(stop):
                    m.d.comb += self.bytes.ready.eq(1)
                with m.If(w.valid & w.ready):
                    m.d.comb += self.beat_strobe.eq(1)
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(scatter):
                        m.d.sync += position.eq(position + 1)
                        with m.If(position + 1 == item.count):
                            m.d.comb += self.bytes.ready.eq(1)
                            m.d.sync += position.eq(0)
                    with m.If(beat == length):
                        m.next = "ACCEPT"
                        with m.If((beats_left != 0) & ~stop):
                            m.next = "SIZE"
                    with m.Elif(~scatter):
                        m.next = "FILL"
        bad = (b.payload.resp == Response.SLVERR) | (b.payload.resp == Response.DECERR)
        with m.If(b.valid & bad & ~stop):
            m.d.sync += [self.error.eq(ErrorCode.WRITE_BUS), self.error_address.eq(addr), halted.eq(1)]
        with m.If(self.clear):
            m.d.sync += [halted.eq(0), self.error.eq(ErrorCode.NONE)]
        return m
