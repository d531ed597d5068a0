"""Dynamic resource scheduling: which computing lane sits on which core."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..systolic.places import PlacesSignature

__all__ = ["Scheduler"]


class Scheduler(wiring.Component):
    """Index register, mapping registers, and the round-robin that fills the latter.

    The *index register* has a bit a lane: 0 = replay, 1 = compute.  The *mapping registers* give the core of
    each computing lane and its index inside the core (pass * rows + row).  They live in distributed RAM, with
    an inverse table beside them, because the units look them up one at a time.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    lanes : In, 0..``config.lanes``
        Active lanes: those below.  Stable while ``busy``.
    static_map : In
        1: computing lanes keep core = lane mod cores.  0: round-robin over the computing lanes.  Stable while
        ``busy``.
    begin : In
        Strobe: every lane computes.
    decide : In; decide_lane : In, 5 bits; decide_compute : In
        Strobe: write one bit of the index register.
    start : In
        Strobe: fill the mapping registers.  ``begin``, ``decide`` and ``start`` exclude one another and
        ``busy``.
    busy : Out
        1 in the ``lanes`` cycles after ``start``.
    compute : Out, bit per lane
        The index register.
    any_compute : Out
        At least one active lane computes.
    places : In, `PlacesSignature`
        For the matrix unit.  The mapped side changes only while ``busy``.
    place_lane : In, 5 bits; place_mapped : In; place_core, place_index : Out
        Where a lane sits (combinational); meaningless for a lane that does not take part.

    Notes
    -----
    One lane a cycle: the tables are complete ``latency(lanes)`` cycles after ``start``.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g = config.derived
        super().__init__(
            {
                "lanes": In(range(config.lanes + 1)),
                "static_map": In(1),
                "begin": In(1),
                "decide": In(1),
                "decide_lane": In(5),
                "decide_compute": In(1),
                "start": In(1),
                "busy": Out(1),
                "compute": Out(config.lanes, init=-1),
                "any_compute": Out(1),
                "places": In(PlacesSignature(config)),
                "place_lane": In(5),
                "place_mapped": In(1),
                "place_core": Out(g.core_bits),
                "place_index": Out(g.slot_bits),
            }
        )

    @staticmethod
    def latency(lanes: int) -> int:
        """Cycles from ``start`` to the first cycle that can use the tables."""
        return lanes + 1

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        active = Cat(self.lanes > lane for lane in range(c.lanes))
        m.d.comb += self.any_compute.eq((self.compute & active).any())

        with m.If(self.begin):
            m.d.sync += self.compute.eq(-1)
        with m.Elif(self.decide):
            for lane in range(c.lanes):
                with m.If(self.decide_lane == lane):
                    m.d.sync += self.compute[lane].eq(self.decide_compute)

        place = data.StructLayout({"core": g.core_bits, "index": g.slot_bits})
        # At least two entries: a memory of one has no address, which some tools dislike.
        m.submodules.mapping = mapping = memory.Memory(shape=place, depth=max(2, c.lanes), init=[])
        m.submodules.inverse = inverse = memory.Memory(shape=g.lane_bits, depth=c.cores << g.slot_bits, init=[])
        write, read = mapping.write_port(), mapping.read_port(domain="comb")
        inverse_write, inverse_read = inverse.write_port(), inverse.read_port(domain="comb")
        counts = self.places.mapped_count

        lane = Signal(g.lane_bits)
        home = Signal(g.core_bits)  # lane mod cores
        turn = Signal(g.core_bits)  # core that the next computing lane gets
        core = Signal(g.core_bits)
        index = Signal(g.slot_bits)
        takes = Signal()
        m.d.comb += [
            core.eq(Mux(self.static_map, home, turn)),
            index.eq(counts[core]),
            takes.eq(self.busy & self.compute.bit_select(lane, 1)),
            write.addr.eq(lane),
            write.data.core.eq(core),
            write.data.index.eq(index),
            write.en.eq(takes),
            inverse_write.addr.eq(Cat(index, core)),
            inverse_write.data.eq(lane),
            inverse_write.en.eq(takes),
        ]

        def after(value: Value) -> Value:
            return Mux(value == c.cores - 1, 0, value + 1)

        with m.If(self.start):
            m.d.sync += [
                self.busy.eq(self.lanes != 0),
                lane.eq(0),
                home.eq(0),
                turn.eq(0),
                counts.eq(Const(0, counts.shape().size)),
            ]
        with m.Elif(self.busy):
            m.d.sync += [lane.eq(lane + 1), home.eq(after(home)), self.busy.eq(lane + 1 < self.lanes)]
            with m.If(takes):
                m.d.sync += turn.eq(after(turn))
                for number in range(c.cores):
                    with m.If(core == number):
                        m.d.sync += counts[number].eq(counts[number] + 1)

        self._look_up(m, read, inverse_read)
        return m

    def _look_up(self, m: Module, read: memory.ReadPort, inverse_read: memory.ReadPort) -> None:
        """Answer both lookups, and count the lanes of the static map."""
        c, g = self._config, self._config.derived
        for core in range(c.cores):
            mine = [self.lanes > lane for lane in range(core, c.lanes, c.cores)]
            # Registered: the number of lanes does not change during a run, and the adders are deep.
            m.d.sync += self.places.static_count[core].eq(sum(mine[1:], mine[0]))

        m.d.comb += read.addr.eq(self.place_lane)
        with m.If(self.place_mapped):
            m.d.comb += [self.place_core.eq(read.data.core), self.place_index.eq(read.data.index)]
        with m.Else(), m.Switch(self.place_lane):
            for lane in range(c.lanes):
                with m.Case(lane):
                    m.d.comb += [self.place_core.eq(lane % c.cores), self.place_index.eq(lane // c.cores)]

        places = self.places
        m.d.comb += [
            inverse_read.addr.eq(Cat(places.index, places.core)),
            places.lane.eq(
                Mux(places.mapped, inverse_read.data, (places.index * c.cores + places.core)[: g.lane_bits])
            ),
        ]
