"""The rewindable beat FIFO between the prefetcher and its three consumers."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..isa import Dest

__all__ = ["BeatFifo", "BeatPort", "beat_layout"]


def beat_layout(config: AcceleratorConfig) -> data.ArrayLayout:
    """Return the payload of one beat: its bytes, lowest address first."""
    return data.ArrayLayout(unsigned(8), config.derived.beat_bytes)


class BeatPort(wiring.Signature):
    """Beats with read-ahead, seen from the FIFO.

    Members
    -------
    stream : Out
        Beats in order.  A transfer reads a beat but does not free it.
    commit : In
        Strobe: free every beat read so far, a transfer in the same cycle included.
    rewind : In
        Strobe: read again from the first beat that was not freed.  No transfer happens in that cycle (the FIFO holds
        ``valid`` low), and three cycles are lost until the beats come again.  Never together with ``commit``, and not
        after another consumer was offered a beat: whoever takes it frees all beats before it, too.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(
            {
                "stream": Out(stream.Signature(beat_layout(config))),
                "commit": In(1),
                "rewind": In(1),
            }
        )


class BeatFifo(wiring.Component):
    """In-order FIFO whose head is offered only to the consumer that it is for.

    Parameters
    ----------
    config
        The accelerator; the depth is ``weight_fifo_depth`` beats.

    Attributes
    ----------
    i : In, stream of {dest, beat}
        Beats as they arrive.  Whoever fills must have reserved the room: ``ready`` is then always 1.
    matrix : Out, `BeatPort`
        The matrix unit's beats.
    vector, ctrl : Out, streams of beats
        The other consumers; a transfer frees the beat.
    freed_count : Out
        Beats that were freed in the cycle before (for the credits of the prefetcher).
    level : Out
        Beats that are not freed.
    flush : In
        Strobe: forget everything.

    Notes
    -----
    One beat a cycle in and out.  A beat leaves the empty FIFO `LATENCY` cycles after it came, so that many places are
    the least for this rate.  A rewind costs `REWIND` cycles.
    """

    #: Cycles from the transfer of a beat into the empty FIFO to its transfer out of it.
    LATENCY = 3
    #: Cycles without a transfer that a rewind costs, its own included.
    REWIND = 3
    #: Words that wait in front of the memory.
    LOOK_AHEAD = 3

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        self._beat = beat_layout(config)
        self._tagged = data.StructLayout({"dest": Dest, "beat": self._beat})
        super().__init__(
            {
                "i": In(stream.Signature(self._tagged)),
                "matrix": Out(BeatPort(config)),
                "vector": Out(stream.Signature(self._beat)),
                "ctrl": Out(stream.Signature(self._beat)),
                "freed_count": Out(range(config.weight_fifo_depth + 1)),
                "level": Out(range(config.weight_fifo_depth + 1)),
                "flush": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        depth = self._config.weight_fifo_depth
        bits = depth.bit_length() - 1

        m.submodules.storage = storage = memory.Memory(shape=self._tagged, depth=depth, init=[])
        write, read = storage.write_port(), storage.read_port()

        # Pointers carry one bit more than the address, so full and empty differ.
        tail, fetched, head, base = (Signal(bits + 1, name=n) for n in ("tail", "fetched", "head", "base"))
        # tail: next write; fetched: next word to leave the memory; head: next word to be transferred;
        # base: oldest word that is not freed.  base <= head <= fetched <= tail.
        m.d.comb += [
            self.level.eq((tail - base)[: bits + 1]),
            self.i.ready.eq(self.level != depth),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(tail[:bits]),
            write.data.eq(self.i.payload),
        ]
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)

        # Words of look-ahead hide the latency of the memory: one on its way, and up to three waiting, so that a read
        # need not know whether a word leaves in the same cycle.  They wait in a ring: what leaves moves a pointer only.
        m.submodules.ring = ring = memory.Memory(shape=self._tagged, depth=4, init=[])
        waiting, arrival = ring.read_port(domain="comb"), ring.write_port()
        first, place = Signal(2), Signal(2)
        front = waiting.data
        count = Signal(range(self.LOOK_AHEAD + 1))
        coming = Signal()
        transfer = Signal()
        rewind = self.matrix.rewind
        m.d.comb += [
            read.addr.eq(fetched[:bits]),
            read.en.eq((fetched != tail) & (count + coming < self.LOOK_AHEAD)),
        ]
        m.d.sync += coming.eq(read.en)
        with m.If(read.en):
            m.d.sync += fetched.eq(fetched + 1)
        remain = Signal.like(count)
        m.d.comb += remain.eq(count - transfer)
        m.d.sync += count.eq(remain + coming)
        m.d.comb += [
            waiting.addr.eq(first),
            arrival.addr.eq(place),
            arrival.data.eq(read.data),
            arrival.en.eq(coming),
        ]
        with m.If(transfer):
            m.d.sync += first.eq(first + 1)
        with m.If(coming):
            m.d.sync += place.eq(place + 1)

        valid = (count != 0) & ~rewind
        ports = {Dest.MATRIX: self.matrix.stream, Dest.VECTOR: self.vector, Dest.CTRL: self.ctrl}
        for dest, port in ports.items():
            mine = valid & (front.dest == dest)
            m.d.comb += [port.valid.eq(mine), port.payload.eq(front.beat)]
            with m.If(mine & port.ready):
                m.d.comb += transfer.eq(1)
        with m.If(transfer):
            m.d.sync += head.eq(head + 1)

        next_base = Signal.like(base)
        m.d.comb += next_base.eq(base)
        other = transfer & (front.dest != Dest.MATRIX)
        with m.If(self.matrix.commit | other):
            m.d.comb += next_base.eq(head + transfer)
        base_before = Signal.like(base)
        m.d.sync += [base.eq(next_base), base_before.eq(base)]
        m.d.comb += self.freed_count.eq((base - base_before)[: bits + 1])

        with m.If(rewind):
            m.d.sync += [fetched.eq(base), head.eq(base), count.eq(0), coming.eq(0), first.eq(0), place.eq(0)]
        with m.If(self.flush):
            m.d.sync += [signal.eq(0) for signal in (tail, fetched, head, base, count, coming, first, place)]
            m.d.sync += base_before.eq(0)
        return m
