"""What the matrix unit must produce, in numpy, from docs/numerics.md sections 1, 6, 8, 11."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.isa import Map, MatMode


def rsat(x: np.ndarray, k: np.ndarray | int, bits: int) -> np.ndarray:
    """Round, shift and saturate; |x| < 2**46, so that a shift left by 16 fits int64."""
    k = np.clip(np.asarray(k, dtype=np.int64), -16, 47)
    right, left = np.maximum(k, 0), np.maximum(-k, 0)
    half = np.where(k > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    shifted = ((x.astype(np.int64) << left) + half) >> right
    return np.clip(shifted, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def clamps(x: np.ndarray, k: np.ndarray | int, bits: int) -> np.ndarray:
    """Which elements `rsat` clamps."""
    return rsat(x, k, bits) != rsat(x, k, 63)


@dataclass
class Job:
    """A command with the contents of its beats (tiles x K x cols; parameters as the mode wants them)."""

    mode: MatMode
    weights: np.ndarray
    scales: np.ndarray | None = None  # LINEAR, LOGITS: tiles x cols
    ve: np.ndarray | None = None  # SCORE, TAS: tiles x cols
    ke: np.ndarray | None = None
    map: Map = Map.STATIC
    lane: int = 0
    offset: int = 0
    shift: int = 0
    eidx: int = 0
    d: int = 0
    element: int = 0
    bank: int = 0
    tag: int = 0
    layer: int = 0

    @property
    def tiles(self) -> int:
        return self.weights.shape[0]

    @property
    def steps(self) -> int:
        return self.weights.shape[1]

    def command(self) -> dict[str, int]:
        """Fields of `isa.Command`."""
        return {
            "a": self.steps | self.offset << 16,
            "b": self.element if self.mode is MatMode.TAS else self.tiles,
            "d": self.d,
            "lane": self.lane,
            "func": self.mode.value,
            "shift": self.shift,
            "eidx": self.eidx,
            "bank": self.bank,
            "map": self.map,
            "tag": self.tag,
            "layer": self.layer,
        }

    def beats(self) -> Iterator[list[int]]:
        """Bytes of the beats, in memory order."""
        for tile in range(self.tiles):
            if self.scales is not None:
                raw = self.scales[tile].astype("<u2").tobytes()
                half = len(raw) // 2
                yield list(raw[:half])
                yield list(raw[half:])
            if self.ke is not None:
                yield [int(v) for v in self.ve[tile]]
                yield [int(v) for v in self.ke[tile]]
            for step in self.weights[tile].astype(np.int8).view(np.uint8):
                yield [int(v) for v in step]


@dataclass
class World:
    """What surrounds the unit: activation slots, places of lanes, exponent file."""

    config: AcceleratorConfig
    act: np.ndarray  # cores x slots x act_depth
    exponents: np.ndarray  # lanes x entries
    scales: np.ndarray
    lanes: int  # active ones
    mapped: list[list[int]] = field(default_factory=list)  # lanes of each core, by index

    @classmethod
    def random(cls, config: AcceleratorConfig, rng: np.random.Generator, lanes: int | None = None) -> "World":
        g = config.derived
        lanes = int(rng.integers(1, config.lanes + 1)) if lanes is None else lanes
        shape = (config.cores, g.slots, g.act_depth)
        computing = rng.permutation(np.flatnonzero(rng.random(lanes) < 0.7))
        mapped: list[list[int]] = [[] for _ in range(config.cores)]
        for lane in computing:
            # Any core that has room: the static placement of computing lanes is not balanced either.
            room = [core for core in range(config.cores) if len(mapped[core]) < g.slots]
            mapped[rng.choice(room)].append(int(lane))
        return cls(
            config,
            act=rng.integers(-127, 128, shape),
            exponents=rng.integers(-6, 12, (config.lanes, g.ex_slots)),
            scales=rng.integers(0, 1 << 16, (config.lanes, g.ex_slots)),
            lanes=lanes,
            mapped=mapped,
        )

    def static(self, core: int) -> list[int]:
        return list(range(core, self.lanes, self.config.cores))

    def places(self, job: Job) -> list[tuple[int, int, int]]:
        """(core, index, lane) of the lanes that take part."""
        c = self.config
        if job.map is Map.LANE:
            return [(job.lane % c.cores, job.lane // c.cores, job.lane)]
        lists = [self.static(core) for core in range(c.cores)] if job.map is Map.STATIC else self.mapped
        return [(core, index, lane) for core in range(c.cores) for index, lane in enumerate(lists[core])]

    def passes(self, job: Job) -> int:
        """How often each tile is read."""
        if job.map is Map.LANE:
            return 1
        return max(1, -(-max(index + 1 for _, index, _ in self.places(job) or [(0, 0, 0)]) // self.config.rows))


@dataclass
class Expected:
    """Words of each port, and the totals of the counters."""

    y: list[tuple] = field(default_factory=list)
    s: list[tuple] = field(default_factory=list)
    tas: list[tuple] = field(default_factory=list)
    logits: list[tuple] = field(default_factory=list)
    trace: list[tuple] = field(default_factory=list)
    macs: int = 0
    saturated: int = 0


def expected(world: World, jobs: list[Job]) -> Expected:
    """Compute all results."""
    c = world.config
    width, words = c.vector_width, c.cols // c.vector_width
    out = Expected()
    for job in jobs:
        for core, index, lane in world.places(job):
            act = world.act[core, index, job.offset : job.offset + job.steps].astype(np.int64)
            exponent = int(world.exponents[lane, job.eidx])
            out.macs += job.weights.size
            for tile in range(job.tiles):
                acc = job.weights[tile].astype(np.int64).T @ act
                k, bits = job.shift - exponent, 32
                if job.scales is not None:
                    acc = acc * job.scales[tile].astype(np.int64)
                elif job.ke is not None:
                    k, bits = k - job.ke[tile].astype(np.int64), 24
                else:
                    acc = acc * int(world.scales[lane, job.eidx])
                values, clamped = rsat(acc, k, bits), clamps(acc, k, bits)
                if job.mode is MatMode.TAS:
                    score = int(values[job.element])
                    out.tas.append((lane, job.d, score))
                    out.trace.append((job.tag, job.layer, lane, 2, job.d, (score,)))
                    out.saturated += bool(clamped[job.element])
                    continue
                for word in range(words):
                    part = slice(word * width, (word + 1) * width)
                    data = tuple(int(v) for v in values[part])
                    number = tile * words + word
                    labels = (job.tag, job.layer)
                    if job.mode is MatMode.SCORE:
                        exists = np.arange(width) + number * width < job.d
                        mask = sum(int(e) << i for i, e in enumerate(exists))
                        ve = tuple(int(v) for v in job.ve[tile][part])
                        out.s.append((job.bank, number, data, ve, mask, int(number == 0), *labels, lane))
                        out.trace.append((*labels, lane, 1, number, data))
                        out.saturated += bool((clamped[part] & exists).any())
                    else:
                        logits = job.mode is MatMode.LOGITS
                        (out.logits if logits else out.y).append((lane, job.d + number, data, *labels))
                        out.trace.append((*labels, lane, 3 if logits else 0, job.d + number, data))
                        out.saturated += bool(clamped[part].any())
    return out
