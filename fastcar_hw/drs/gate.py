"""The gate: gathers temporal attention scores and decides, lane by lane, between replay and compute."""

from amaranth.hdl import Const, Module, Mux, Shape, Signal, signed
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..config import AcceleratorConfig
from ..isa import Command, Cond, GateFunc
from ..systolic.matrix_unit import TasScore
from ..systolic.places import PlacesSignature
from .dispatcher import Dispatcher
from .policy import Definition, GateKind
from .scheduler import Scheduler
from .window import WindowSignature

__all__ = ["Gate", "GateTrace"]

#: A decision, as traced.
GateTrace = data.StructLayout({"valid": 1, "layer": 7, "lane": 5, "score": signed(32), "eligible": 1, "compute": 1})


class Gate(wiring.Component):
    """Replay decisions (docs/numerics.md, section 11), with scheduler and dispatcher that act on them.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    command : In, stream of `isa.Command`; busy : Out
        `isa.GateFunc`.  BEGIN takes a cycle, DECIDE two, SCHEDULE ``lanes + 1``.  A command waits until the
        scores that arrived before it are summed (at most two cycles).
    tas : In, stream of `TasScore`
        Scores; always ready, one a cycle.
    kind, definition, static_map, lanes : In
        Registers; stable while the engine runs.
    clear : In
        Strobe: clear the decision counters; busy for max_layers * lanes cycles.
    thresholds, head_weights : In, `WindowSignature`
        Threshold of each layer (signed 32 bits), weight of each head (unsigned 8 bits; they must sum to at
        most 255).
    eligible_count, replayed_count : In, `WindowSignature`, read-only
        Tokens that were eligible, and that were replayed, at entry layer * ``config.lanes`` + lane.
    cond, cond_lane : In; run : Out
        Dispatcher, for the sequencer (combinational).
    compute : Out, bit per lane
        Index register.
    eligible : Out
        The present token may replay.
    places, place_lane, place_mapped, place_core, place_index
        Look-ups; see `Scheduler`.
    scheduling : Out
        1 from the acceptance of SCHEDULE until the mapping can be used: what DRS costs.
    trace : Out, `GateTrace`
        Only with ``config.trace``.

    Notes
    -----
    A lane without scores has score 0.  Decisions are visible two cycles after their command was accepted, in
    the counters of decisions one cycle later.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g = config.derived
        entries = config.max_layers * config.lanes
        ports = {
            "command": In(stream.Signature(Command)),
            "busy": Out(1),
            "tas": In(stream.Signature(TasScore)),
            "kind": In(GateKind),
            "definition": In(Definition),
            "static_map": In(1),
            "lanes": In(range(config.lanes + 1)),
            "clear": In(1),
            "thresholds": In(WindowSignature(config.max_layers)),
            "head_weights": In(WindowSignature(config.max_heads)),
            "eligible_count": In(WindowSignature(entries)),
            "replayed_count": In(WindowSignature(entries)),
            "cond": In(Cond),
            "cond_lane": In(5),
            "run": Out(1),
            "compute": Out(config.lanes),
            "eligible": Out(1),
            "places": In(PlacesSignature(config)),
            "place_lane": In(5),
            "place_mapped": In(1),
            "place_core": Out(g.core_bits),
            "place_index": Out(g.slot_bits),
            "scheduling": Out(1),
        }
        if config.trace:
            ports["trace"] = Out(GateTrace)
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        m.submodules.scheduler = scheduler = Scheduler(c)
        m.submodules.dispatcher = dispatcher = Dispatcher(c)
        connect(m, flipped(self.places), scheduler.places)
        m.d.comb += [
            scheduler.lanes.eq(self.lanes),
            scheduler.static_map.eq(self.static_map),
            scheduler.place_lane.eq(self.place_lane),
            scheduler.place_mapped.eq(self.place_mapped),
            self.place_core.eq(scheduler.place_core),
            self.place_index.eq(scheduler.place_index),
            self.compute.eq(scheduler.compute),
            dispatcher.cond.eq(self.cond),
            dispatcher.lane.eq(self.cond_lane),
            dispatcher.compute.eq(scheduler.compute),
            dispatcher.any_compute.eq(scheduler.any_compute),
            dispatcher.eligible.eq(self.eligible),
            dispatcher.kind.eq(self.kind),
            dispatcher.definition.eq(self.definition),
            self.run.eq(dispatcher.run),
        ]

        layer = Signal(7)
        lane = Signal(5)
        forced = Signal()
        judging, clearing = Signal(), Signal()
        summing, scored, score = self._gather(m)

        # Commands: all but SCHEDULE and the second cycle of DECIDE are done when they are accepted.
        command = self.command.payload
        accept = Signal()
        idle = ~judging & ~clearing & ~scheduler.busy
        m.d.comb += [
            self.command.ready.eq(idle & ~summing),
            accept.eq(self.command.valid & self.command.ready),
            self.busy.eq(~idle | summing),
            self.scheduling.eq(scheduler.start | scheduler.busy),
        ]
        m.d.sync += judging.eq(0)
        with m.If(accept), m.Switch(command.func):
            with m.Case(GateFunc.BEGIN):
                m.d.comb += scheduler.begin.eq(1)
                m.d.sync += [layer.eq(command.a), self.eligible.eq(command.b.any()), scored.eq(0)]
            with m.Case(GateFunc.DECIDE):
                m.d.sync += [
                    judging.eq(1),
                    lane.eq(command.lane),
                    forced.eq(command.a.bit_select(command.lane, 1)),
                ]
            with m.Case(GateFunc.SCHEDULE):
                m.d.comb += scheduler.start.eq(1)

        m.submodules.thresholds = thresholds = memory.Memory(
            shape=32, depth=max(2, c.max_layers), init=[(1 << 31) - 1] * c.max_layers
        )
        threshold = thresholds.read_port()
        m.d.comb += threshold.addr.eq(layer)
        self._host_port(m, thresholds, self.thresholds)

        replay = Signal()
        above = score > threshold.data.as_signed()
        equal = score == threshold.data.as_signed()
        with m.Switch(self.kind):
            with m.Case(GateKind.ALWAYS):
                m.d.comb += replay.eq(self.eligible)
            with m.Case(GateKind.TAS):
                m.d.comb += replay.eq(self.eligible & (above | (equal & (self.definition == Definition.PAPER))))
            with m.Case(GateKind.FORCED):
                m.d.comb += replay.eq(self.eligible & ~forced)
        m.d.comb += [
            scheduler.decide.eq(judging),
            scheduler.decide_lane.eq(lane),
            scheduler.decide_compute.eq(~replay),
        ]
        self._count(m, layer, lane, judging, clearing, replay)
        if c.trace:
            m.d.comb += [
                self.trace.valid.eq(judging),
                self.trace.layer.eq(layer),
                self.trace.lane.eq(lane),
                self.trace.score.eq(score),
                self.trace.eligible.eq(self.eligible),
                self.trace.compute.eq(~replay),
            ]
        return m

    def _gather(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Sum weighted scores; return (still summing, lanes with a sum, score of the last command's lane)."""
        c = self._config
        m.submodules.weights = weights = memory.Memory(shape=8, depth=max(2, c.max_heads), init=[1] * c.max_heads)
        m.submodules.sums = sums = memory.Memory(shape=signed(32), depth=max(2, c.lanes), init=[])
        weight = weights.read_port()
        read, write = sums.read_port(domain="comb"), sums.write_port()
        self._host_port(m, weights, self.head_weights)

        # Stage 1: the weight leaves its memory.  Stage 2: the product is added to the lane's sum.
        valid = Signal(2)
        lane1, lane2 = Signal(5), Signal(5)
        raw = Signal(signed(24))
        product = Signal(signed(32))
        scored = Signal(c.lanes)
        # Commands are accepted only while nothing is summed: one port serves both.
        place = Signal(5)
        m.d.comb += place.eq(Mux(valid[1], lane2, self.command.payload.lane))
        m.d.comb += [
            self.tas.ready.eq(1),
            weight.addr.eq(self.tas.payload.head),
            read.addr.eq(place),
            write.addr.eq(lane2),
            write.en.eq(valid[1]),
        ]
        m.d.sync += [
            valid.eq((valid << 1) | self.tas.valid),
            lane1.eq(self.tas.payload.lane),
            raw.eq(self.tas.payload.score),
            lane2.eq(lane1),
            product.eq(raw * weight.data),
        ]
        present, score = Signal(signed(32)), Signal(signed(32))
        m.d.comb += [
            # A lane's first score replaces what the layer before has left.
            present.eq(Mux(scored.bit_select(place, 1), read.data, Const(0, signed(32)))),
            write.data.eq(present + product),
        ]
        m.d.sync += score.eq(present)
        with m.If(valid[1]):
            for number in range(c.lanes):
                with m.If(lane2 == number):
                    m.d.sync += scored[number].eq(1)
        summing = Signal()
        m.d.comb += summing.eq(valid.any())
        return summing, scored, score

    def _count(self, m: Module, layer: Signal, lane: Signal, judging: Signal, clearing: Signal,
               replay: Signal) -> None:  # fmt: skip
        """Keep the decision counters: read in the cycle of the decision, written back a cycle later."""
        c = self._config
        depth = c.max_layers * c.lanes
        address, sweep = Signal(range(depth)), Signal(range(depth))
        now, counting = Signal(range(depth)), Signal()
        m.d.comb += now.eq(layer * c.lanes + lane)
        m.d.sync += [address.eq(now), counting.eq(judging)]
        with m.If(self.clear):
            m.d.sync += [clearing.eq(1), sweep.eq(0)]
        with m.Elif(clearing):
            m.d.sync += [sweep.eq(sweep + 1), clearing.eq(sweep != depth - 1)]

        for name, window, step in (
            ("eligible", self.eligible_count, self.eligible),
            ("replayed", self.replayed_count, replay),
        ):
            counters = memory.Memory(shape=32, depth=max(2, depth), init=[])
            m.submodules[f"count_{name}"] = counters
            read, write, host = counters.read_port(), counters.write_port(), counters.read_port()
            one = Signal(name=f"one_{name}")
            m.d.sync += one.eq(step)
            m.d.comb += [
                read.addr.eq(now),
                write.addr.eq(Mux(clearing, sweep, address)),
                write.data.eq(Mux(clearing, 0, read.data + one)),
                write.en.eq(clearing | counting),
                host.addr.eq(window.addr),
                window.r_data.eq(host.data),
            ]

    @staticmethod
    def _host_port(m: Module, target: memory.Memory, window: wiring.PureInterface) -> None:
        """Give the host a read and a byte-wise write port of a memory."""
        width = Shape.cast(target.shape).width
        write, read = target.write_port(granularity=8), target.read_port()
        m.d.comb += [
            write.addr.eq(window.addr),
            write.data.eq(window.w_data[:width]),
            write.en.eq(window.w_strobe[: width // 8]),
            read.addr.eq(window.addr),
            window.r_data.eq(read.data),
        ]
