"""The sampler: greedy or seeded top-k with temperature, in integers (docs/numerics.md, section 12)."""

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import AcceleratorConfig
from .isa import Command
from .numerics.exp2neg import Exp2Neg
from .sampler_candidates import TOKEN_BITS, CandidateList, CandidateWeights
from .systolic.matrix_unit import LogitWord

__all__ = ["Sampler", "TokenTrace"]

#: A sampled token, as traced.
TokenTrace = data.StructLayout({"valid": 1, "lane": 5, "token": TOKEN_BITS})

_GOLDEN = 0x9E3779B9
_WORD = (1 << 32) - 1


class Sampler(wiring.Component):
    """Keep the largest logits of every lane while they arrive; choose a token on command.

    Parameters
    ----------
    config
        The accelerator; W = ``vector_width``, candidates at most ``topk_max``.

    Attributes
    ----------
    logits : In, stream of `LogitWord`
        Words of W logits.  The words of a lane arrive in the order of their addresses; lanes may interleave.
        Word 0 begins a new list.
    command : In, stream of `isa.Command`; busy : Out
        SAMPLE: choose for ``lane`` from the logits that arrived since its last token.  Words that were
        accepted before a command are part of its choice.
    topk : In, 0..``topk_max``; inv_temperature : In, unsigned 16; temp_shift : In, unsigned 6
        Candidates (0 = greedy), inverse temperature and its shift; stable while the engine runs.
    seed : In, 32 bits; start : In
        Strobe: drop all logits and load the random states of the lanes from ``seed``; busy for a cycle a
        lane.
    token_lane : In, 5 bits; token : Out, 17 bits
        Last token of a lane (combinational).
    trace : Out, `TokenTrace`
        Only with ``config.trace``.

    Notes
    -----
    A word takes W + 1 cycles (one logit a cycle), and 2 more when its lane differs from the previous word's.
    A token takes at most `latency` cycles.  One list of candidates is in registers, the others rest in a
    memory: a wide word a lane.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        ports = {
            "logits": In(stream.Signature(LogitWord(config))),
            "command": In(stream.Signature(Command)),
            "busy": Out(1),
            "topk": In(range(config.topk_max + 1)),
            "inv_temperature": In(16),
            "temp_shift": In(6),
            "seed": In(32),
            "start": In(1),
            "token_lane": In(5),
            "token": Out(TOKEN_BITS),
        }
        if config.trace:
            ports["trace"] = Out(TokenTrace)
        super().__init__(ports)

    @staticmethod
    def latency(topk: int, topk_max: int) -> int:
        """Most cycles from the acceptance of a command to the end of ``busy``, when no logits arrive."""
        return 5 if topk == 0 else 9 + CandidateWeights.LATENCY + topk_max + topk

    # The law in Python.

    @staticmethod
    def seed_state(seed: int, lane: int) -> int:
        """Return the random state with which a lane starts."""
        return (seed ^ (_GOLDEN * (lane + 1) & _WORD)) or 1

    @staticmethod
    def advance(state: int) -> int:
        """Return the next random state (xorshift32)."""
        state ^= state << 13 & _WORD
        state ^= state >> 17
        return state ^ (state << 5 & _WORD)

    @classmethod
    def model(
        cls, logits: Sequence[int], topk: int, inv_temperature: int, temp_shift: int, state: int
    ) -> tuple[int, int]:
        """Return the token chosen from all logits of a lane, and the lane's next random state."""
        order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
        if topk == 0:
            return order[0], state
        weights = []
        for index in order[:topk]:
            product = (logits[order[0]] - logits[index]) * inv_temperature
            d = (product + (1 << (temp_shift - 1))) >> temp_shift if temp_shift else product
            weights.append(Exp2Neg.model(min(d, (1 << 25) - 1)))
        state = cls.advance(state)
        r = state * sum(weights) >> 32
        total = 0
        for index, weight in zip(order, weights, strict=False):
            total += weight
            if total > r:
                return index, state
        raise AssertionError("r is always below the total")

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        w = c.vector_width
        depth = max(2, c.lanes)

        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=5, depth=4)
        m.submodules.states = states = memory.Memory(shape=32, depth=depth, init=[])
        m.submodules.tokens = tokens = memory.Memory(shape=TOKEN_BITS, depth=depth, init=[])
        m.submodules.weights = weights = CandidateWeights(c.topk_max)
        m.submodules.candidates = candidates = CandidateList(c)
        state_read, state_write = states.read_port(domain="comb"), states.write_port()
        token_read, token_write = tokens.read_port(domain="comb"), tokens.write_port()
        best = candidates.best

        lane = Signal(5)  # at work
        command_next = Signal()  # what a swap of lists is for
        word = Signal(data.ArrayLayout(signed(32), w))
        number = Signal(range(w))
        addr = Signal(16)
        token = Signal(TOKEN_BITS)
        rank = Signal(range(c.topk_max))
        random, limit = Signal(32), Signal.like(weights.total)
        partial = Signal(48)
        reached = Signal(range(c.topk_max * 32768 + 1))
        finish = Signal()
        starting = Signal()
        seeded, golden = Signal(range(c.lanes + 1)), Signal(32)
        moved, first_state = Signal(32), Signal(32)

        m.d.comb += [
            queue.w_data.eq(self.command.payload.lane),
            queue.w_en.eq(self.command.valid),
            self.command.ready.eq(queue.w_rdy),
            token_read.addr.eq(self.token_lane),
            self.token.eq(token_read.data),
            token_write.addr.eq(lane),
            token_write.data.eq(token),
            token_write.en.eq(finish),
            candidates.lane.eq(lane),
            weights.inv_temperature.eq(self.inv_temperature),
            weights.temp_shift.eq(self.temp_shift),
            weights.largest.eq(best.logit),
            weights.logit.eq(candidates.last.logit),
            weights.index.eq(candidates.last.index),
            weights.rank.eq(rank),
            weights.operand.eq(random),
            state_read.addr.eq(lane),
            moved.eq(_xorshift(state_read.data)),
            state_write.addr.eq(lane),
            state_write.data.eq(moved),
            first_state.eq(self.seed ^ golden),
        ]
        m.d.sync += [
            # Words are taken apart, one logit a cycle; it is inserted a cycle later.
            candidates.logit.eq(word[number]),
            candidates.index.eq(Cat(number, addr)),
            candidates.insert.eq(0),
        ]
        with m.If(self.start):
            m.d.sync += starting.eq(1)

        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE") | queue.level.any() | starting)
            with m.State("IDLE"):
                m.d.sync += [
                    word.eq(self.logits.payload.data),
                    addr.eq(self.logits.payload.addr),
                    number.eq(0),
                    seeded.eq(0),
                    golden.eq(_GOLDEN),
                ]
                # Logits go first: whatever was handed over before a command belongs to it.
                with m.If(starting):
                    m.d.sync += starting.eq(0)
                    m.next = "SEED"
                with m.Elif(self.logits.valid):
                    m.d.comb += self.logits.ready.eq(1)
                    m.d.sync += [lane.eq(self.logits.payload.lane), command_next.eq(0)]
                    m.next = "SWAP"
                    here = candidates.holds & (candidates.held == self.logits.payload.lane)
                    with m.If(here & (self.logits.payload.addr != 0)):
                        m.next = "INSERT"
                with m.Elif(queue.r_rdy):
                    m.d.comb += queue.r_en.eq(1)
                    m.d.sync += [lane.eq(queue.r_data), command_next.eq(1)]
                    m.next = "SWAP"
            with m.State("SEED"):
                m.d.comb += [
                    candidates.clear.eq(1),
                    state_write.addr.eq(seeded),
                    state_write.data.eq(Mux(first_state == 0, 1, first_state)),
                    state_write.en.eq(1),
                ]
                m.d.sync += [seeded.eq(seeded + 1), golden.eq(golden + _GOLDEN)]
                with m.If(seeded == c.lanes - 1):
                    m.next = "IDLE"

            with m.State("SWAP"):
                # Word 0 begins a new list: no token was drawn from logits that a prompt position left.
                m.d.comb += [candidates.swap.eq(~candidates.pending), candidates.fresh.eq(~command_next & (addr == 0))]
                with m.If(candidates.swap & command_next):
                    m.next = "SAMPLE"
                with m.Elif(candidates.swap):
                    m.next = "INSERT"
            with m.State("INSERT"):
                m.d.sync += [candidates.insert.eq(1), number.eq(number + 1)]
                with m.If(number == w - 1):
                    m.next = "IDLE"

            with m.State("SAMPLE"):
                m.d.comb += weights.begin.eq(1)
                m.d.sync += [token.eq(best.index), rank.eq(c.topk_max - 1), reached.eq(0)]
                m.next = "WEIGH"
                with m.If((self.topk == 0) | ~best.valid):
                    m.next = "FINISH"
            with m.State("WEIGH"):
                # The list leaves by its end: the least candidate comes first.
                m.d.comb += [
                    candidates.drop.eq(1),
                    weights.feed.eq(candidates.last.valid & (rank < self.topk)),
                ]
                m.d.sync += rank.eq(rank - 1)
                with m.If(rank == 0):
                    m.next = "TOTAL"
            with m.State("TOTAL"):
                m.d.sync += [random.eq(moved), rank.eq(0)]
                with m.If(~weights.waiting):
                    m.d.comb += state_write.en.eq(1)
                    m.next = "LOW"
            # r = random * total >> 32, in two halves of the total.
            with m.State("LOW"):
                m.d.comb += [weights.scale.eq(1), weights.factor.eq(weights.total[:16])]
                m.next = "HIGH"
            with m.State("HIGH"):
                m.d.comb += [weights.scale.eq(1), weights.factor.eq(weights.total >> 16)]
                m.next = "PARTIAL"
            with m.State("PARTIAL"):
                m.d.sync += partial.eq(weights.product)
                m.next = "LIMIT"
            with m.State("LIMIT"):
                m.d.sync += limit.eq((partial + (weights.product << 16)) >> 32)
                m.next = "PICK"
            with m.State("PICK"):
                beyond = reached + weights.weight
                m.d.sync += [reached.eq(beyond), rank.eq(rank + 1), token.eq(weights.picked)]
                with m.If(beyond > limit):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += [finish.eq(1), candidates.void.eq(1)]
                m.next = "IDLE"
        if c.trace:
            m.d.comb += [self.trace.valid.eq(finish), self.trace.lane.eq(lane), self.trace.token.eq(token)]
        return m


def _xorshift(state: Value) -> Value:
    """Return the next random state (xorshift32), combinationally."""
    state = state ^ (state << 13)[:32]
    state = state ^ (state >> 17)
    return state ^ (state << 5)[:32]
