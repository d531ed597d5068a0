"""Proof about the beat FIFO, for all time: nothing lost, nothing twice, in order, in bounded time."""

import pytest
from amaranth.hdl import Assert, Assume, Module, Mux, ResetSignal, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from variants import variant

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Dest
from fastcar_hw.memory.beat_fifo import BeatFifo

CONFIG = AcceleratorConfig(name="formal", cols=4, vector_width=2, burst_beats=2, weight_fifo_depth=4)


class BeatFifoProof(wiring.Component):
    """A FIFO among free inputs, and a count of what was filled, read and freed.

    One beat, chosen arbitrarily among those that are filled, is followed: what holds for it holds for all.
    """

    def __init__(self, config, change=None):
        self._config, self._change = config, change
        super().__init__(
            {
                "valid": In(1),
                "dest": In(Dest),
                "beat": In(config.derived.data_width),
                "ready": In(len(Dest)),
                "commit": In(1),
                "rewind": In(1),
                "flush": In(1),
                "choose": In(1),
            }
        )

    def elaborate(self, platform):
        del platform
        m = Module()
        depth = self._config.weight_fifo_depth
        # Beats that are not freed, and those of them that were read.
        level, reads = Signal(range(depth + 1)), Signal(range(depth + 1))
        freed_before = Signal(range(depth + 1))
        # The chosen beat: its place behind the oldest one.
        chosen, place = Signal(), Signal(range(depth))
        its_dest, its_beat = Signal(Dest), Signal(unsigned(self._config.derived.data_width))
        # Beats that came at least two and three cycles ago; cycles in which a rewind still excuses.
        older, ripe = Signal(range(depth + 1)), Signal(range(depth + 1))
        excused = Signal(range(BeatFifo.REWIND))

        def observe(inside, inner):
            """State what makes the induction close: pointers agree with counts, the chosen beat is in its place."""
            base, head, fetched, tail = (inner[name] for name in ("base", "head", "fetched", "tail"))
            count, coming, bits = inner["count"], inner["coming"], inner["bits"]
            look, near = (inner[name].read_port(domain="comb") for name in ("storage", "ring"))
            inside.d.comb += [
                Assert((tail - base)[: bits + 1] == level),
                Assert((head - base)[: bits + 1] == reads),
                Assert((fetched - head)[: bits + 1] == count + coming),
                Assert(count + coming <= level - reads),
                Assert((base - inner["base_before"])[: bits + 1] == freed_before),
                Assert((inner["place"] - inner["first"])[:2] == count[:2]),
                Assert((reads <= level) & (ripe <= older) & (older <= level) & (level - older <= 1)),
                look.addr.eq((base + place)[:bits]),
            ]
            waiting = Signal.like(older)
            inside.d.comb += waiting.eq(Mux(older > reads, older - reads, 0))
            with inside.If(excused == 0):
                inside.d.comb += [
                    Assert((count + coming >= Mux(waiting > 2, 2, waiting)) & (count + coming <= 3)),
                    Assert((count != 0) | (ripe <= reads)),
                ]
            with inside.Else():
                inside.d.comb += [Assert(count == 0), Assert(coming == ((excused == 1) & (waiting != 0)))]
            with inside.If(chosen):
                inside.d.comb += Assert((place < level) & (its_dest.as_value() < len(Dest)))
                words = [look.data, near.data, inner["read"].data]
                ahead = place - reads
                inside.d.comb += near.addr.eq((inner["first"] + ahead)[:2])
                where = [1, ahead < count, (ahead == count) & coming]
                for word, there in zip(words, where, strict=True):
                    with inside.If(there):
                        inside.d.comb += [Assert(word.dest == its_dest), Assert(word.beat.as_value() == its_beat)]

        # A broken FIFO must fail by what can be seen from outside.
        kind = variant(BeatFifo, self._change, None if self._change else observe)
        m.submodules.dut = dut = kind(self._config)
        ports = {Dest.MATRIX: dut.matrix.stream, Dest.VECTOR: dut.vector, Dest.CTRL: dut.ctrl}
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(self.dest.as_value() < len(Dest)),
            Assume(~(self.commit & self.rewind)),
            dut.i.valid.eq(self.valid),
            dut.i.payload.dest.eq(self.dest),
            dut.i.payload.beat.as_value().eq(self.beat),
            dut.matrix.commit.eq(self.commit),
            dut.matrix.rewind.eq(self.rewind),
            dut.flush.eq(self.flush),
        ]
        filled, taken, freed = Signal(), Signal(), Signal(range(depth + 1))
        m.d.sync += freed_before.eq(freed)
        m.d.comb += filled.eq(self.valid & dut.i.ready)
        for number, (dest, port) in enumerate(ports.items()):
            m.d.comb += port.ready.eq(self.ready[number])
            with m.If(port.valid & port.ready):
                m.d.comb += taken.eq(1)
            with m.If(port.valid):
                # Offered to one consumer only, and only what exists.
                m.d.comb += Assert(~self.rewind & (reads < level))
                m.d.comb += [Assert(~other.valid) for other in ports.values() if other is not port]
                with m.If(chosen & (reads == place)):
                    m.d.comb += [Assert(its_dest == dest), Assert(port.payload.as_value() == its_beat)]
            with m.If(port.valid & port.ready & (dest != Dest.MATRIX)):
                m.d.comb += freed.eq(reads + 1)
        with m.If(self.commit):
            m.d.comb += freed.eq(reads + taken)

        m.d.comb += [
            Assert(dut.i.ready == (level < depth)),
            Assert(dut.level == level),
            Assert(dut.freed_count == freed_before),
        ]
        m.d.sync += [level.eq(level + filled - freed), reads.eq(Mux(self.rewind, 0, reads + taken - freed))]
        with m.If(chosen):
            m.d.sync += [chosen.eq(place >= freed), place.eq(place - freed)]
        with m.Elif(filled & self.choose):
            m.d.sync += [chosen.eq(1), place.eq(level - freed), its_dest.eq(self.dest), its_beat.eq(self.beat)]

        # A beat a cycle: whatever came `LATENCY` cycles ago is offered, but after a rewind.
        offered = dut.matrix.stream.valid | dut.vector.valid | dut.ctrl.valid
        with m.If(chosen & (place == reads) & (reads < ripe) & ~self.rewind & (excused == 0)):
            m.d.comb += Assert(offered)
        m.d.sync += [older.eq(level - freed), ripe.eq(Mux(older > freed, older - freed, 0))]
        with m.If(self.rewind):
            m.d.sync += excused.eq(BeatFifo.REWIND - 1)
        with m.Elif(excused != 0):
            m.d.sync += excused.eq(excused - 1)
        with m.If(self.flush):
            m.d.sync += freed_before.eq(0)
            m.d.sync += [level.eq(0), reads.eq(0), chosen.eq(0), older.eq(0), ripe.eq(0), excused.eq(0)]
        return m


def test_beat_fifo(prove):
    passed, log = prove(BeatFifoProof(CONFIG), depth=2)
    assert passed, log


#: Broken FIFOs: text that is replaced, and by what.
MUTATIONS = {
    "overflows": ("self.i.ready.eq(self.level != depth)", "self.i.ready.eq(1)"),
    "reads what was not written": ("(fetched != tail) & ", ""),
    "fetches one ahead": ("count + coming < self.LOOK_AHEAD", "count + coming < 2"),
    "rewinds too little": ("fetched.eq(base), head.eq(base), count", "fetched.eq(head), head.eq(base), count"),
    "word on its way survives a rewind": ("head.eq(base), count.eq(0), coming.eq(0),", "head.eq(base), count.eq(0),"),
    "commit forgets its own transfer": ("next_base.eq(head + transfer)", "next_base.eq(head)"),
    "others free nothing": ("self.matrix.commit | other", "self.matrix.commit"),
    "offered to a stranger": ("mine = valid & (front.dest == dest)", "mine = valid & (read.data.dest == dest)"),
    "flush forgets a word": ("head, base, count, coming, first, place)", "head, base, count, first, place)"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_beat_fifo_fails(prove, name):
    """The proof bites: every broken FIFO has a counterexample."""
    passed, log = prove(BeatFifoProof(CONFIG, MUTATIONS[name]), depth=10, mode="bmc")
    assert not passed, log
    assert "Assert failed" in log
