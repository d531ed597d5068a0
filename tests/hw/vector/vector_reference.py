"""What the vector unit must do, in plain integers, written from docs/numerics.md (section numbers in brackets)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Map, VecFunc
from fastcar_hw.numerics.tables import exp2neg_table, rsqrt_table, sigmoid_table

#: Kinds of trace words.
X, Y, WEIGHTS, ACT, BYTES = range(5)

STREAMING = (VecFunc.EMBED, VecFunc.EMBED_ADD, VecFunc.PARAM, VecFunc.REPLAY)
BANKED = (VecFunc.SOFTMAX, VecFunc.QUANT_PROB)


# --- [1] rounding -------------------------------------------------------------------------------------------


def shr(x: int, k: int) -> int:
    return (x + (1 << (k - 1))) >> k if k > 0 else x << -k


def sat(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, x))


def shr_clamped(x: int, k: int) -> int:
    """Shift with the count clamped: what rsat saturates."""
    return shr(x, max(-16, min(47, k)))


def rsat(x: int, k: int, bits: int = 32) -> int:
    return sat(shr_clamped(x, k), bits)


def exponent(largest: int, bits: int) -> int:
    return max(0, largest.bit_length() - (bits - 1))


def quant(y: int, e: int, bits: int) -> int:
    limit = (1 << (bits - 1)) - 1
    return max(-limit, min(limit, shr(y, e)))


def magnitude(values: list[int]) -> int:
    return max((abs(v) for v in values), default=0)


# --- [9] functions ------------------------------------------------------------------------------------------


def exp2neg(d: int) -> int:
    base, slope = exp2neg_table()
    index, r = (d & 4095) >> 6, d & 63
    t = base[index] - shr(slope[index] * r, 6)
    return shr(t, d >> 12) if d >> 12 <= 16 else 0


def sigmoid(z: int) -> int:
    base, slope = sigmoid_table()
    a = min(abs(z), 32767)
    t = base[a >> 7] + shr(slope[a >> 7] * (a & 127), 7)
    return t if z >= 0 else 32768 - t


def rsqrt(v: int) -> tuple[int, int]:
    if v == 0:
        return 65535, 0
    base, slope = rsqrt_table()
    h = (v.bit_length() - 1) >> 1
    fine = (v << 14) // 4**h - (1 << 14)
    return base[fine >> 8] - shr(slope[fine >> 8] * (fine & 255), 8), h


def reciprocal(total: int) -> tuple[int, int]:
    b = total.bit_length()
    return min(65535, (1 << (b + 15)) // total), b


# --- vectors --------------------------------------------------------------------------------------------------


def norm(x: list[int], gains: list[int], e0: int, s: int) -> list[int]:
    """[4]; the largest magnitude is that of the vector itself."""
    e = exponent(magnitude(x), 16)
    mantissas = [quant(v, e, 16) for v in x]
    r, h = rsqrt(sum(v * v for v in mantissas) + (e0 >> (2 * e)))
    return [rsat(rsat(v * r, h - 14) * g, s) for v, g in zip(mantissas, gains, strict=True)]


def rotate(y: list[int], table: list[int]) -> list[int]:
    """[7], before the saturation."""
    out = []
    for i in range(0, len(y), 2):
        c, s = table[i], table[i + 1]
        out += [shr(y[i] * c - y[i + 1] * s, 14), shr(y[i] * s + y[i + 1] * c, 14)]
    return out


def softmax(scores: list[int], ve: list[int]) -> tuple[list[int], int, int]:
    """[8]: weights w, sum of e, vm."""
    m, vm = max(scores), max(ve)
    e = [exp2neg(m - s) for s in scores]
    return [shr(x, vm - v) for x, v in zip(e, ve, strict=True)], sum(e), vm


def swiglu(gate: list[int], up: list[int], s1: int, s2: int, s3: int) -> list[int]:
    """[10], before the last saturation."""
    t = [rsat(g * sigmoid(rsat(g, s1, 16)), s2, 16) for g in gate]
    return [shr_clamped(a * u, s3) for a, u in zip(t, up, strict=True)]


# --- commands -------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A pass over ``elements`` elements; words are counted within the lane."""

    func: VecFunc
    elements: int
    lane: int = 0
    d: int = 0  # first word of Y, or of P for PARAM
    target: int = 0  # ROPE: first word written
    params: int = 0  # ROPE: first word of P
    up: int = 0  # SWIGLU: first word of the second operand
    act: int = 0  # QUANT_ACT, QUANT_PROB: byte of the activation slot
    shift: int = 0
    gate_shift: int = 0
    silu_shift: int = 0
    eps: int = 0
    eidx: int = 0
    bank: int = 0
    map: Map = Map.STATIC
    stream: list[int] = field(default_factory=list)  # 16-bit elements
    e: int = 0  # REPLAY: header
    tag: int = 0
    layer: int = 0

    def command(self) -> dict[str, int]:
        """Fields of `isa.Command`."""
        a = {
            VecFunc.ROPE: self.target | self.params << 16,
            VecFunc.QUANT_ACT: self.act,
            VecFunc.QUANT_PROB: self.act,
            VecFunc.SQUARES: self.eps,
            VecFunc.SWIGLU: self.up | (self.gate_shift & 127) << 16 | (self.silu_shift & 127) << 24,
        }
        return {
            "a": a.get(self.func, 0),
            "b": self.elements,
            "d": self.d,
            "lane": self.lane,
            "func": self.func.value,
            "shift": self.shift,
            "eidx": self.eidx,
            "bank": self.bank,
            "map": self.map,
            "tag": self.tag,
            "layer": self.layer,
        }

    def beats(self, beat_bytes: int) -> Iterator[list[int]]:
        """Memory as docs/architecture.md lays it out; what must not matter is 0xA5."""
        if self.func is VecFunc.REPLAY:
            yield [self.e] + [0xA5] * (beat_bytes - 1)
        raw = [b for v in self.stream for b in (v & 0xFFFF).to_bytes(2, "little")]
        for i in range(0, len(raw), beat_bytes):
            beat = raw[i : i + beat_bytes]
            yield beat + [0xA5] * (beat_bytes - len(beat))


@dataclass
class Effects:
    """What leaves the unit, in order."""

    trace: list[tuple] = field(default_factory=list)  # tag, layer, lane, kind, addr, values
    act: list[tuple] = field(default_factory=list)  # core, index, address, values
    bytes: list[tuple] = field(default_factory=list)  # values of an item
    saturated: int = 0  # words


class Reference:
    """Memories and scalars of the unit, and what every pass does to them.

    ``places`` maps (lane, mapped) to (core, index).
    """

    def __init__(self, config: AcceleratorConfig, places: dict[tuple[int, int], tuple[int, int]]) -> None:
        g, self.w = config.derived, config.vector_width
        self.places = places
        self.x = [[0] * config.max_hidden for _ in range(config.lanes)]
        self.y = [[0] * (g.y_words * self.w) for _ in range(config.lanes)]
        self.p = [0] * (g.p_words * self.w)
        self.scores = [[0] * config.max_seq for _ in range(2)]
        self.ve = [[0] * config.max_seq for _ in range(2)]
        self.weights: list[list[int]] = [[], []]
        self.entries = {(lane, i): (0, 0) for lane in range(config.lanes) for i in range(g.ex_slots)}
        self.x_largest = [0] * config.lanes  # XMAX
        self.largest = 0  # A
        self.root = (0, 0)
        self.sum = self.vm = 0
        self.effects = Effects()

    def write_y(self, lane: int, addr: int, data: list[int]) -> None:
        """Take a word of the matrix unit."""
        self.y[lane][addr * self.w : (addr + 1) * self.w] = data

    def write_scores(self, bank: int, addr: int, data: list[int], ve: list[int]) -> None:
        """Take a word of scores."""
        part = slice(addr * self.w, (addr + 1) * self.w)
        self.scores[bank][part], self.ve[bank][part] = data, ve

    def run(self, jobs: list[Job]) -> Effects:
        """Do passes; return all effects since the last call."""
        self.effects = Effects()
        for job in jobs:
            getattr(self, "_" + job.func.name.lower())(job)
        return self.effects

    # What several passes share.

    def _word_list(self, values: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        for word in range(-(-len(values) // self.w)):
            part = values[word * self.w : (word + 1) * self.w]
            yield word, (*part, *[0] * (self.w - len(part)))

    def _trace(self, job: Job, kind: int, addr: int, values: tuple[int, ...]) -> None:
        self.effects.trace.append((job.tag, job.layer, job.lane, kind, addr, values))

    def _saturate(self, exact: list[int]) -> list[int]:
        """Saturate to 32 bits; words in which that changed something are counted."""
        self.effects.saturated += sum(
            any(v != sat(v, 32) for v in word) for _, word in self._word_list(exact)
        )
        return [sat(v, 32) for v in exact]

    def _read_y(self, job: Job, first: int) -> list[int]:
        return self.y[job.lane][first * self.w : first * self.w + job.elements]

    def _store_y(self, job: Job, first: int, exact: list[int]) -> None:
        values = self._saturate(exact)
        self.y[job.lane][first * self.w : first * self.w + job.elements] = values
        self.largest = magnitude(values)
        for word, part in self._word_list(values):
            self._trace(job, Y, word, part)

    def _store_x(self, job: Job, exact: list[int]) -> None:
        values = self._saturate(exact)
        self.x[job.lane][: job.elements] = values
        self.x_largest[job.lane] = magnitude(values)
        for word, part in self._word_list(values):
            self._trace(job, X, word, part)

    def _store_act(self, job: Job, values: list[int], mapped: bool) -> None:
        for word, part in self._word_list(values):
            self.effects.act.append((*self.places[job.lane, mapped], job.act + word * self.w, part))
            self._trace(job, ACT, word, part)

    # [3] embedding

    def _embed(self, job: Job) -> None:
        self._store_x(job, [rsat(v, job.shift) for v in job.stream])

    def _embed_add(self, job: Job) -> None:
        old = self.x[job.lane]
        self._store_x(job, [x + rsat(v, job.shift) for x, v in zip(old, job.stream, strict=False)])

    def _param(self, job: Job) -> None:
        self.p[job.d * self.w : job.d * self.w + job.elements] = job.stream

    # [4] RMSNorm

    def _mantissas(self, job: Job) -> tuple[list[int], int]:
        e = exponent(self.x_largest[job.lane], 16)
        return [quant(v, e, 16) for v in self.x[job.lane][: job.elements]], e

    def _squares(self, job: Job) -> None:
        mantissas, e = self._mantissas(job)
        e0 = job.eps << job.eidx
        self.root = rsqrt(sum(v * v for v in mantissas) + (e0 >> (2 * e)))

    def _norm(self, job: Job) -> None:
        mantissas, _ = self._mantissas(job)
        r, h = self.root
        u = [rsat(v * r, h - 14) for v in mantissas]
        self._store_y(job, job.d, [shr_clamped(a * g, job.shift) for a, g in zip(u, self.p, strict=False)])

    # [5] quantization

    def _amax(self, job: Job) -> None:
        self.largest = magnitude(self._read_y(job, job.d))

    def _quant_act(self, job: Job) -> None:
        e = exponent(self.largest, 8)
        self._store_act(job, [quant(v, e, 8) for v in self._read_y(job, job.d)], job.map is Map.MAPPED)
        self.entries[job.lane, job.eidx] = (e, 0)

    def _quant_bytes(self, job: Job) -> None:
        e = exponent(self.largest, 8)
        self.effects.bytes.append((e,))
        self._trace(job, BYTES, 0, (e,))
        for word, part in self._word_list([quant(v, e, 8) for v in self._read_y(job, job.d)]):
            self.effects.bytes.append(tuple(v & 255 for v in part))
            self._trace(job, BYTES, word, part)

    # [7] rotary positions

    def _rope(self, job: Job) -> None:
        first = job.params * self.w
        self._store_y(job, job.target, rotate(self._read_y(job, job.d), self.p[first : first + job.elements]))

    # [8] attention, residual

    def _softmax(self, job: Job) -> None:
        scores, ve = (values[job.bank][: job.elements] for values in (self.scores, self.ve))
        weights, self.sum, self.vm = softmax(scores, ve)
        self.weights[job.bank] = weights
        self.largest = max(weights)
        for word, part in self._word_list(weights):
            self._trace(job, WEIGHTS, word, part)

    def _quant_prob(self, job: Job) -> None:
        e = exponent(self.largest, 8)
        self._store_act(job, [min(127, shr(v, e)) for v in self.weights[job.bank]], False)
        rc, b = reciprocal(self.sum)
        self.entries[job.lane, job.eidx] = (e + self.vm - b, rc)

    def _residual(self, job: Job) -> None:
        e = exponent(self.largest, 16)
        self._add(job, [quant(v, e, 16) for v in self._read_y(job, job.d)], e)

    def _add(self, job: Job, mantissas: list[int], e: int) -> None:
        self._store_x(job, [x + (v << e) for x, v in zip(self.x[job.lane], mantissas, strict=False)])

    # [10] SwiGLU, replay slots

    def _residual_store(self, job: Job) -> None:
        e = exponent(self.largest, 16)
        mantissas = [quant(v, e, 16) for v in self._read_y(job, job.d)]
        self.effects.bytes.append((e,))
        for _, part in self._word_list(mantissas):
            self.effects.bytes.append(tuple(b for v in part for b in (v & 0xFFFF).to_bytes(2, "little")))
        self._add(job, mantissas, e)

    def _replay(self, job: Job) -> None:
        self._add(job, job.stream, job.e)

    def _swiglu(self, job: Job) -> None:
        gate, up = self._read_y(job, job.d), self._read_y(job, job.up)
        self._store_y(job, job.d, swiglu(gate, up, job.gate_shift, job.silu_shift, job.shift))
