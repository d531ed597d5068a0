"""Two masters on one memory."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.memory.axi import AxiReadSignature, AxiWriteSignature

__all__ = ["AxiArbiter"]


class AxiArbiter(wiring.Component):
    """Let two AXI4 masters share a slave, burst by burst, in turns.

    Parameters
    ----------
    addr_width, data_width
        Bits.
    outstanding
        Read bursts that may be in flight.

    Attributes
    ----------
    reads : 2 x In, `AxiReadSignature`; writes : 2 x In, `AxiWriteSignature`
        The masters.
    read : Out, `AxiReadSignature`; write : Out, `AxiWriteSignature`
        The slave, which answers in order.

    Notes
    -----
    A request takes a cycle more than without the arbiter: the choice is made in one cycle and stays until the request
    is taken.  Beats that are read pass without delay, those that are written through a queue.  A burst of writes ends
    with its response before the next one begins.
    """

    def __init__(self, addr_width: int, data_width: int, outstanding: int = 8) -> None:
        self._outstanding = outstanding
        super().__init__(
            {
                "reads": In(AxiReadSignature(addr_width, data_width)).array(2),
                "writes": In(AxiWriteSignature(addr_width, data_width)).array(2),
                "read": Out(AxiReadSignature(addr_width, data_width)),
                "write": Out(AxiWriteSignature(addr_width, data_width)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        self._reads(m)
        self._writes(m)
        return m

    def _reads(self, m: Module) -> None:
        ar, r = self.read.ar, self.read.r
        # Owners of the bursts in flight, oldest first.
        m.submodules.owners = owners = fifo.SyncFIFO(width=1, depth=self._outstanding)
        turn, chosen, asking = Signal(), Signal(), Signal()
        with m.If(~asking):
            m.d.sync += [
                asking.eq((self.reads[0].ar.valid | self.reads[1].ar.valid) & owners.w_rdy),
                # The one whose turn it is, unless only the other one asks.
                chosen.eq(Mux(turn, self.reads[1].ar.valid, ~self.reads[0].ar.valid)),
            ]
        m.d.comb += [owners.w_data.eq(chosen), owners.w_en.eq(ar.valid & ar.ready)]
        with m.If(owners.w_en):
            m.d.sync += [asking.eq(0), turn.eq(~chosen)]
        for number, master in enumerate(self.reads):
            with m.If(asking & (chosen == number)):
                m.d.comb += [
                    ar.valid.eq(1),
                    ar.payload.eq(master.ar.payload),
                    master.ar.ready.eq(ar.ready),
                ]
            m.d.comb += master.r.payload.eq(r.payload)
            with m.If(owners.r_rdy & (owners.r_data == number)):
                m.d.comb += [master.r.valid.eq(r.valid), r.ready.eq(master.r.ready)]
        m.d.comb += owners.r_en.eq(r.valid & r.ready & r.payload.last)

    def _writes(self, m: Module) -> None:
        slave = self.write
        # Whether the memory takes a beat must not reach into the masters within a cycle.
        beat = slave.w.payload
        m.submodules.beats = beats = fifo.SyncFIFOBuffered(width=len(beat.as_value()), depth=4)
        m.d.comb += [
            beat.as_value().eq(beats.r_data),
            slave.w.valid.eq(beats.r_rdy),
            beats.r_en.eq(slave.w.ready),
        ]
        turn, chosen = Signal(), Signal()
        with m.FSM():
            with m.State("CHOOSE"):
                m.d.sync += chosen.eq(Mux(turn, self.writes[1].aw.valid, ~self.writes[0].aw.valid))
                with m.If(self.writes[0].aw.valid | self.writes[1].aw.valid):
                    m.next = "ASK"
            with m.State("ASK"):
                for number, master in enumerate(self.writes):
                    with m.If(chosen == number):
                        m.d.comb += [
                            slave.aw.valid.eq(1),
                            slave.aw.payload.eq(master.aw.payload),
                            master.aw.ready.eq(slave.aw.ready),
                        ]
                with m.If(slave.aw.ready):
                    m.next = "SEND"
            with m.State("SEND"):
                for number, master in enumerate(self.writes):
                    with m.If(chosen == number):
                        m.d.comb += [
                            beats.w_en.eq(master.w.valid),
                            beats.w_data.eq(master.w.payload),
                            master.w.ready.eq(beats.w_rdy),
                        ]
                        with m.If(master.w.valid & beats.w_rdy & master.w.payload.last):
                            m.next = "ANSWER"
            with m.State("ANSWER"):
                for number, master in enumerate(self.writes):
                    m.d.comb += master.b.payload.eq(slave.b.payload)
                    with m.If(chosen == number):
                        m.d.comb += [master.b.valid.eq(slave.b.valid), slave.b.ready.eq(master.b.ready)]
                with m.If(slave.b.valid & slave.b.ready):
                    m.d.sync += turn.eq(~chosen)
                    m.next = "CHOOSE"
