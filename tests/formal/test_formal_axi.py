"""Proofs about the memory masters, for all time: rules of AXI, window, bounds of what is in flight."""

import sys

import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from variants import variant

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.errors import ErrorCode
from fastcar_hw.isa import Command, StoreFunc
from fastcar_hw.memory import burst as burst_module
from fastcar_hw.memory.axi import BURST_INCR
from fastcar_hw.memory.master import MasterFrame
from fastcar_hw.memory.prefetcher import Prefetcher
from fastcar_hw.memory.store_unit import StoreUnit
from fastcar_hw.memory.words import StoreWord

CONFIG = AcceleratorConfig(
    name="formal", cols=4, vector_width=2, burst_beats=2, weight_fifo_depth=4, outstanding=2, load_queue=2,
    address_width=20,
)  # fmt: skip
BEAT = CONFIG.derived.beat_bytes
PAGE = 4096


def before(m, value):
    """Return what a value was in the cycle before (not inside of an `If`: it must be kept in every cycle)."""
    value = Value.cast(value)
    old = Signal(value.shape())
    m.d.sync += old.eq(value)
    return old


def held(m, claim, valid, ready, payload):
    """Claim (assert or assume) that what is offered stays, and stays the same, until it is taken."""
    waits, old = before(m, valid & ~ready), before(m, payload)
    with m.If(waits):
        m.d.comb += [claim(valid), claim(Value.cast(payload) == old)]


class MasterProof(wiring.Component):
    """A master among free inputs: what both kinds share.

    ``change`` is (what is changed, old text, new text).
    """

    def __init__(self, config, change=None, **ports):
        self._config, self._change = config, change
        super().__init__(
            {
                "command_valid": In(1),
                "command": In(Command),
                "window_base": In(config.address_width),
                "window_limit": In(config.address_width),
                "halt": In(1),
                "clear": In(1),
            }
            | ports
        )

    def build(self, kind, observe, observe_frame):
        """Return the master; the observers see inner signals of it and of its frame."""
        changed, *texts = self._change or (None,)

        def made(original, **more):
            home = sys.modules[original.__module__]
            return variant(original, tuple(texts) if changed in (original, home) else None, **more)

        if self._change is not None:
            # A broken design must fail by what can be seen from outside.
            observe = observe_frame = None
        names = {
            "MasterFrame": made(MasterFrame, observe=observe_frame, names={"outside": made(burst_module.outside)}),
            "burst_length": made(burst_module.burst_length),
        }
        return made(kind, observe=observe, names=names)(self._config)

    def common(self, m, dut):
        """Connect commands and controls, and state what holds of errors."""
        quiet, clear = dut.quiet, self.clear
        m.d.comb += [
            Assume(~ResetSignal()),
            dut.command.valid.eq(self.command_valid),
            dut.command.payload.eq(self.command),
            dut.window_base.eq(self.window_base),
            dut.window_limit.eq(self.window_limit),
            dut.halt.eq(self.halt),
            dut.clear.eq(clear),
            # What the surroundings promise.
            Assume(~clear | quiet),
        ]
        started, halted, cleared = before(m, 1), before(m, self.halt & ~clear), before(m, clear)
        window = before(m, Cat(self.window_base, self.window_limit))
        m.d.comb += [
            Assume(~started | (window == Cat(self.window_base, self.window_limit))),
            Assume(~halted | self.halt),
        ]
        # An error stays, with its address, until it is cleared.
        error, address = before(m, dut.error), before(m, dut.error_address)
        with m.If(cleared):
            m.d.comb += Assert(dut.error == ErrorCode.NONE)
        with m.Elif(error != ErrorCode.NONE.value):
            m.d.comb += [Assert(dut.error.as_value() == error), Assert(dut.error_address == address)]

    def request(self, m, dut, port):
        """State the rules of a request."""
        c, at = self._config, port.payload
        size = (at.len + 1) * BEAT
        held(m, Assert, port.valid, port.ready, at)
        stopped = before(m, self.halt | (dut.error != ErrorCode.NONE))
        offered = before(m, port.valid)
        with m.If(port.valid):
            m.d.comb += [
                Assert(at.burst == BURST_INCR),
                Assert(1 << at.size == BEAT),
                Assert(at.addr % BEAT == 0),
                Assert(at.len < c.burst_beats),
                Assert((at.addr % PAGE) + size <= PAGE),
                Assert(at.addr >= self.window_base),
                Assert(at.addr + size <= self.window_limit + 1),
                Assert(~dut.quiet),
                # None begins after a halt or an error.
                Assert(offered | ~stopped),
            ]

    def inside(self, addr, beats):
        """Return whether beats from an address stay inside the window."""
        return (addr % BEAT == 0) & (addr >= self.window_base) & (addr + beats * BEAT <= self.window_limit + 1)


class PrefetcherProof(MasterProof):
    """The prefetcher with a memory that answers in order, and a FIFO that frees what it got."""

    def __init__(self, config, change=None):
        super().__init__(
            config, change, ar_ready=In(1), r_valid=In(1), r_data=In(config.derived.data_width), r_resp=In(2),
            freed=In(range(config.weight_fifo_depth + 1)),
        )  # fmt: skip

    def elaborate(self, platform):
        del platform
        m = Module()
        c, most = self._config, self._config.outstanding
        # Beats that bursts in flight still lack, the oldest first; beats in the FIFO, and those dropped since `clear`.
        lacks = [Signal(range(c.burst_beats + 1), name=f"lacks{i}") for i in range(most + 1)]
        in_flight = Signal(range(most + 2))
        stored, dropped = Signal(range(c.weight_fifo_depth + 1)), Signal(range(c.weight_fifo_depth + 1))
        asking = Signal()

        def observe(inside, inner):
            fsm, addr, left, length = (inner[name] for name in ("fsm", "addr", "left", "length"))
            inside.d.comb += asking.eq(fsm.ongoing("ASK"))
            with inside.If(~fsm.ongoing("ACCEPT")):
                inside.d.comb += [Assert(self.inside(addr, left)), Assert(left != 0)]
            with inside.If(fsm.ongoing("RESERVE") | asking):
                inside.d.comb += [
                    Assert((length != 0) & (length <= c.burst_beats) & (length <= left)),
                    Assert(addr % PAGE + length * BEAT <= PAGE),
                ]
            asked = Mux(asking, length, 0)
            inside.d.comb += Assert(inner["room"] + asked + sum(lacks) + stored + dropped == c.weight_fifo_depth)

        def observe_frame(inside, inner):
            inside.d.comb += [
                Assert(inner["flight"].level == in_flight + asking),
                Assert(inner["halted"] == (inner["self"].error != ErrorCode.NONE)),
            ]

        m.submodules.dut = dut = self.build(Prefetcher, observe, observe_frame)
        self.common(m, dut)
        ar, r = dut.axi.ar, dut.axi.r
        self.request(m, dut, ar)
        m.d.comb += [
            ar.ready.eq(self.ar_ready),
            r.valid.eq(self.r_valid),
            r.payload.data.eq(self.r_data),
            r.payload.resp.eq(self.r_resp),
            r.payload.last.eq(lacks[0] == 1),
            dut.o.ready.eq(1),
            dut.freed_count.eq(self.freed),
            Assume(~self.r_valid | (in_flight != 0)),
            Assume(self.freed <= stored),
        ]
        asked, beat, landed = Signal(), Signal(), Signal()
        m.d.comb += [
            asked.eq(ar.valid & ar.ready), beat.eq(r.valid & r.ready), landed.eq(beat & r.payload.last),
            # A beat only goes on when it came.
            Assert(~dut.o.valid | beat),
            Assert(dut.beat_strobe == dut.o.valid),
            # Bounds: bursts in flight with the one that is asked for, beats of them and in the FIFO.
            Assert(in_flight + ar.valid <= most),
            Assert(Mux(ar.valid, ar.payload.len + 1, 0) + sum(lacks) + stored + dropped <= c.weight_fifo_depth),
            Assert(dut.quiet == ((in_flight == 0) & ~ar.valid)),
        ]  # fmt: skip
        m.d.sync += [
            in_flight.eq(in_flight + asked - landed),
            stored.eq(stored + dut.o.valid - self.freed),
            dropped.eq(dropped + (beat & ~dut.o.valid)),
        ]
        for number in range(most):
            m.d.comb += Assert((lacks[number] != 0) == (number < in_flight))
            now = Mux(landed, lacks[number + 1], lacks[number] - (beat if number == 0 else 0))
            m.d.sync += lacks[number].eq(Mux(asked & (number == in_flight - landed), ar.payload.len + 1, now))
        with m.If(self.clear):
            m.d.sync += [stored.eq(0), dropped.eq(0)]
        return m


class StoreProof(MasterProof):
    """The store unit with a vector unit that keeps what it offers, and a memory that answers complete bursts."""

    def __init__(self, config, change=None):
        super().__init__(
            config, change, aw_ready=In(1), w_ready=In(1), b_valid=In(1), b_resp=In(2), bytes_valid=In(1),
            bytes=In(StoreWord(config)),
        )  # fmt: skip

    def elaborate(self, platform):
        del platform
        m = Module()
        c, most = self._config, self._config.outstanding
        # Beats that the last burst still lacks; bursts that lack their answer.
        owed, in_flight = Signal(range(c.burst_beats + 1)), Signal(range(most + 2))

        def observe(inside, inner):
            fsm, addr, left, length, beat = (inner[name] for name in ("fsm", "addr", "beats_left", "length", "beat"))
            asking, sending = fsm.ongoing("ASK"), fsm.ongoing("FILL") | fsm.ongoing("SEND")
            with inside.If(~fsm.ongoing("ACCEPT")):
                # (Behind the last beat the address may wrap.)
                inside.d.comb += Assert(Mux(left == 0, sending, self.inside(addr, left)))
            with inside.If(asking):
                inside.d.comb += [
                    Assert((length != 0) & (length <= c.burst_beats) & (length <= left)),
                    Assert(addr % PAGE + length * BEAT <= PAGE),
                    Assert(beat == 1),
                ]
            inside.d.comb += [
                Assert(owed == Mux(sending, length + 1 - beat, 0)),
                Assert(~sending | ((owed != 0) & (in_flight != 0))),
                # A scattered byte that was offered is still there.
                Assert(~inner["committed"] | (inner["func"] != StoreFunc.SCATTER.value) | dut.bytes.valid),
            ]

        def observe_frame(inside, inner):
            inside.d.comb += [
                Assert(inner["flight"].level == in_flight),
                Assert(inner["halted"] == (inner["self"].error != ErrorCode.NONE)),
            ]

        m.submodules.dut = dut = self.build(StoreUnit, observe, observe_frame)
        # Fewer than in the hardware: the bound is soon reached.
        dut.OUTSTANDING = most
        self.common(m, dut)
        aw, w, b = dut.axi.aw, dut.axi.w, dut.axi.b
        self.request(m, dut, aw)
        held(m, Assert, w.valid, w.ready, w.payload)
        held(m, Assume, dut.bytes.valid, dut.bytes.ready, dut.bytes.payload)
        m.d.comb += [
            aw.ready.eq(self.aw_ready),
            w.ready.eq(self.w_ready),
            b.valid.eq(self.b_valid),
            b.payload.resp.eq(self.b_resp),
            dut.bytes.valid.eq(self.bytes_valid),
            dut.bytes.payload.eq(self.bytes),
            # Only complete bursts are answered.
            Assume(~self.b_valid | (in_flight > (owed != 0))),
        ]
        asked, beat, answered = Signal(), Signal(), Signal()
        m.d.comb += [
            asked.eq(aw.valid & aw.ready), beat.eq(w.valid & w.ready), answered.eq(b.valid & b.ready),
            Assert(in_flight + aw.valid <= most),
            Assert(~(dut.quiet & (in_flight != 0))),
            Assert(~dut.beat_strobe | beat),
        ]  # fmt: skip
        late = (self.halt | (dut.error != ErrorCode.NONE)) & ~before(m, w.valid & ~w.ready)
        with m.If(w.valid):
            # No beat before its request was accepted, none too many, and the last one says so.
            m.d.comb += [Assert(owed != 0), Assert(w.payload.last == (owed == 1))]
            # What begins after a halt or an error writes nothing, and is not counted.
            m.d.comb += [Assert(~late | (w.payload.strb == 0)), Assert(~late | ~dut.beat_strobe)]
        with m.If(asked):
            # A burst is complete before the next one is asked for.
            m.d.comb += Assert(owed == 0)
            m.d.sync += owed.eq(aw.payload.len + 1)
        with m.Elif(beat):
            m.d.sync += owed.eq(owed - 1)
        m.d.sync += in_flight.eq(in_flight + asked - answered)
        return m


def test_prefetcher(prove):
    passed, log = prove(PrefetcherProof(CONFIG), depth=2)
    assert passed, log


def test_store_unit(prove):
    passed, log = prove(StoreProof(CONFIG), depth=2)
    assert passed, log


#: Where bounds are soon reached.
TIGHT = CONFIG.replace(burst_beats=1, weight_fifo_depth=2, outstanding=1)
#: Broken masters: what is changed, the text that is replaced, and by what.  What both masters share fails in one.
PREFETCHER = {
    "crosses 4 KiB": (burst_module, "(4096 >> shift) - addr[shift:12]", "(8192 >> shift) - addr[shift:13]"),
    "burst too long": (burst_module, "room > config.burst_beats, config.burst_beats", "room > 3, 3"),
    "before the window": (burst_module, " | (addr < base)", ""),
    "goes on after an error": (MasterFrame, "halted | self.halt | self.clear", "self.halt | self.clear"),
    "one more in flight": (MasterFrame, "flight.level != self._outstanding)", "flight.level <= self._outstanding)"),
    "request withdrawn": (Prefetcher, "m.d.comb += ar.valid.eq(1)", "m.d.comb += ar.valid.eq(~frame.stop)"),
    "one more than there is room": (Prefetcher, "fits = length <= room", "fits = length <= room + 1"),
    "quiet too early": (Prefetcher, "self.quiet.eq(~frame.in_flight)", "self.quiet.eq(~frame.landing.valid)"),
}
STORE = {
    "more than is left": (burst_module, "Mux(left > room, room, left)", "room"),
    "behind the window": (burst_module, "end > limit + 1", "end > limit + 5"),
    "misaligned": (burst_module, "(addr[:shift] != 0) | ", ""),
    "halt ignored": (MasterFrame, "halted | self.halt | self.clear", "halted | self.clear"),
    "request withdrawn": (StoreUnit, "aw.valid.eq(frame.burst.ready)", "aw.valid.eq(frame.burst.ready & ~stop)"),
    "begins after a halt": (StoreUnit, "stop & ~aw.valid", "0"),
    "beat changes": (StoreUnit, "void.eq(stop & ~committed)", "void.eq(stop)"),
    "beat written after a halt": (StoreUnit, "void.eq(stop & ~committed)", "void.eq(0)"),
    "quiet while it asks": (StoreUnit, '~fsm.ongoing("ASK") & ~frame.in_flight', "~frame.in_flight"),
    "beats before the request": (StoreUnit, "with m.If(aw.valid & aw.ready)", "with m.If(aw.valid)"),
    "last too early": (StoreUnit, "w.payload.last.eq(beat == length)", "w.payload.last.eq(beat + 1 == length)"),
    "a beat too many": (StoreUnit, "with m.If(beat == length)", "with m.If(beat > length)"),
}
CONFIGS = {
    "one more in flight": TIGHT,
    "begins after a halt": TIGHT,
    "one more than there is room": TIGHT.replace(outstanding=3),
}


@pytest.mark.parametrize(
    ("proof", "name"),
    [(PrefetcherProof, name) for name in PREFETCHER] + [(StoreProof, name) for name in STORE],
    ids=[f"prefetcher-{name}" for name in PREFETCHER] + [f"store-{name}" for name in STORE],
)
def test_broken_master_fails(prove, proof, name):
    """The proof bites: every broken master has a counterexample, from reset and seen from outside."""
    change = (PREFETCHER if proof is PrefetcherProof else STORE)[name]
    passed, log = prove(proof(CONFIGS.get(name, CONFIG), change), depth=16, mode="bmc")
    assert not passed, log
    assert "Assert failed" in log
