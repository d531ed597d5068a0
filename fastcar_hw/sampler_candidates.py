"""Candidates of the sampler: sorted lists of the largest logits, and their weights."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .config import AcceleratorConfig
from .numerics.exp2neg import Exp2Neg

__all__ = ["TOKEN_BITS", "Candidate", "CandidateList", "CandidateWeights"]

#: Bits of a token.
TOKEN_BITS = 17

#: A candidate of a lane.
Candidate = data.StructLayout({"logit": signed(32), "index": TOKEN_BITS, "valid": 1})


class CandidateList(wiring.Component):
    """Sorted lists of the largest logits: one lane's in registers, the others' in a memory.

    Attributes
    ----------
    lane : In
        Lane of the present operation.
    held, holds : Out
        Whose list is in registers, if any.
    best, last : Out
        First and last entry of the list in registers.
    logit, index, insert : In
        Strobe: put a logit into its place; among equals the earlier one stays first.  One a cycle.
    pending : Out
        A logit is not in its place yet: 2 cycles from ``insert``.  Wait before any other operation.
    drop : In
        Strobe: remove the last entry (and put rubbish before the first).
    swap : In
        Strobe: move the list in registers to memory, fetch that of ``lane``.
    fresh : In
        With ``swap``: begin an empty list for ``lane`` instead of fetching it.
    void, clear : In
        Strobes: forget the list of ``lane``, which is in registers; forget all.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "lane": In(5),
                "held": Out(5),
                "holds": Out(1),
                "best": Out(Candidate),
                "last": Out(Candidate),
                "logit": In(signed(32)),
                "index": In(TOKEN_BITS),
                "pending": Out(1),
                **{name: In(1) for name in ("insert", "drop", "swap", "fresh", "void", "clear")},
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        lanes = self._config.lanes
        layout = data.ArrayLayout(Candidate, self._config.topk_max)
        entries = [Signal(Candidate, name=f"entry_{rank}") for rank in range(self._config.topk_max)]
        m.d.comb += [self.best.eq(entries[0]), self.last.eq(entries[-1])]

        empty = Signal(lanes, init=-1)  # lists in memory that are void
        saved = Signal(layout)
        if lanes > 1:
            # Read and written in the same cycle, so it is a RAM of look-up tables: shallow and wide.
            m.submodules.lists = lists = memory.Memory(shape=layout, depth=lanes, init=[])
            write, read = lists.write_port(), lists.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(self.held),
                Value.cast(write.data).eq(Cat(Value.cast(entry) for entry in entries)),
                write.en.eq(self.swap & self.holds),
                read.addr.eq(self.lane),
                saved.eq(read.data),
            ]

        here = self.holds & (self.held == self.lane)
        fetch = Signal()
        m.d.comb += fetch.eq(self.swap & (~here | self.fresh))
        # A new logit goes before the entries that it exceeds.  It is compared one cycle before it is put
        # there; what it was compared with may have moved meanwhile, to make place for the logit before it.
        size = len(entries)
        new = Signal(Candidate)
        inserting = Signal()
        above = Signal(size)
        exceeds = [~entry.valid | (self.logit > entry.logit) for entry in entries]
        now = Signal(size)
        m.d.comb += self.pending.eq(self.insert | inserting)
        for rank in range(size):
            with m.If(~(inserting & above[rank])):
                m.d.comb += now[rank].eq(exceeds[rank])
            if rank:
                with m.Elif(above[rank - 1]):
                    m.d.comb += now[rank].eq(exceeds[rank - 1])
            with m.Else():
                m.d.comb += now[rank].eq(self.logit > new.logit)
        m.d.sync += [
            inserting.eq(self.insert),
            above.eq(now),
            new.logit.eq(self.logit),
            new.index.eq(self.index),
            new.valid.eq(1),
        ]
        for rank, entry in enumerate(entries):
            with m.If(fetch):
                m.d.sync += [
                    entry.eq(saved[rank]),
                    entry.valid.eq(saved[rank].valid & ~empty.bit_select(self.lane, 1) & ~self.fresh),
                ]
            with m.Elif(self.drop | (inserting & above[rank])):
                m.d.sync += entry.eq(new)
                if rank:
                    with m.If(self.drop | above[rank - 1]):
                        m.d.sync += entry.eq(entries[rank - 1])

        with m.If(self.swap):
            m.d.sync += [self.held.eq(self.lane), self.holds.eq(1)]
        for lane in range(lanes):
            with m.If(self.lane == lane):
                with m.If(self.swap):
                    m.d.sync += empty[lane].eq(0)
                with m.If(self.void):
                    m.d.sync += empty[lane].eq(1)
        with m.If(self.void):
            m.d.sync += self.holds.eq(0)
        with m.If(self.clear):
            m.d.sync += [empty.eq(-1), self.holds.eq(0)]
        return m


class CandidateWeights(wiring.Component):
    """Turn logits into weights ``2^-((l_0 - l_j) * it >> st)``; keep and sum them.

    Parameters
    ----------
    candidates
        Most candidates.

    Attributes
    ----------
    begin : In; largest : In, signed 32
        Strobe: a new list, and its largest logit.
    feed : In; rank : In; logit : In, signed 32; index : In, 17 bits
        Strobe: a candidate, in any order; its rank is where its weight is kept.
    inv_temperature : In, unsigned 16; temp_shift : In, unsigned 6
        The factor ``it`` and its shift ``st``.
    waiting : Out
        Some weight is still on its way.
    total : Out
        Sum of the weights, once nothing is waiting; 32768 each at most.
    weight : Out, unsigned 16; picked : Out, 17 bits
        Weight and index of the candidate of ``rank`` (combinational).
    scale : In; operand : In, 32 bits; factor : In, 16 bits; product : Out, 48 bits
        The multiplier, lent out while nothing is fed: product two cycles after ``scale``.

    Notes
    -----
    One candidate a cycle; its weight is in the total after `LATENCY` cycles.
    """

    LATENCY = 4 + Exp2Neg.LATENCY + 1
    #: Largest exponent: 25 bits.
    LARGEST = (1 << 25) - 1

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        super().__init__(
            {
                "begin": In(1),
                "largest": In(signed(32)),
                "feed": In(1),
                "rank": In(range(candidates)),
                "logit": In(signed(32)),
                "index": In(TOKEN_BITS),
                "inv_temperature": In(16),
                "temp_shift": In(6),
                "waiting": Out(1),
                "total": Out(range(candidates * 32768 + 1)),
                "weight": Out(16),
                "picked": Out(TOKEN_BITS),
                "scale": In(1),
                "operand": In(32),
                "factor": In(16),
                "product": Out(48),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.submodules.exp = exp = Exp2Neg()
        depth = max(2, self._candidates)
        m.submodules.weights = weights = memory.Memory(shape=16, depth=depth, init=[])
        m.submodules.indices = indices = memory.Memory(shape=TOKEN_BITS, depth=depth, init=[])
        weight_write, weight_read = weights.write_port(), weights.read_port(domain="comb")
        index_write, index_read = indices.write_port(), indices.read_port(domain="comb")

        valid = Signal(self.LATENCY - 1)
        ranks = [Signal(range(depth), name=f"rank_{stage}") for stage in range(self.LATENCY - 1)]
        largest = Signal(signed(32))
        left, right = Signal(32), Signal(16)
        shifted = Signal(49)
        rounded = Signal(49)
        m.d.comb += [
            rounded.eq((shifted + 1) >> 1),
            exp.en.eq(1),
            self.waiting.eq(valid.any()),
            index_write.addr.eq(self.rank),
            index_write.data.eq(self.index),
            index_write.en.eq(self.feed),
            weight_write.addr.eq(ranks[-1]),
            weight_write.data.eq(exp.o),
            weight_write.en.eq(valid[-1]),
            index_read.addr.eq(self.rank),
            weight_read.addr.eq(self.rank),
            self.picked.eq(index_read.data),
            self.weight.eq(weight_read.data),
        ]
        m.d.sync += [
            valid.eq((valid << 1) | self.feed),
            *(late.eq(early) for early, late in zip([self.rank, *ranks], ranks, strict=False)),
            # The difference is never negative.
            left.eq(Mux(self.scale, self.operand, largest - self.logit)),
            right.eq(Mux(self.scale, self.factor, self.inv_temperature)),
            self.product.eq(left * right),
            # One bit below keeps the half for rounding.
            shifted.eq((self.product << 1) >> self.temp_shift),
            exp.d.eq(Mux(rounded > self.LARGEST, self.LARGEST, rounded)),
        ]
        with m.If(valid[-1]):
            m.d.sync += self.total.eq(self.total + exp.o)
        with m.If(self.begin):
            m.d.sync += [largest.eq(self.largest), self.total.eq(0)]
        return m
