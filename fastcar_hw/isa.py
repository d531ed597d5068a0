"""Instruction set of the sequencer and command format of the units.

An instruction is 128 bits.  Sequencer operations work on sixteen 32-bit scalar registers (``r0`` reads
as zero).  Unit operations are *issued*: their operands are resolved into a `Command` and queued at the
unit, which runs by itself; the ``wait`` mask names the units that must be idle before.  The ``cond``
field lets the DRS dispatcher drop an instruction that the replay decisions made superfluous.

Operands of a unit operation::

    a    = r[ra] + imm      (32 bits)
    b    = r[rb] + n        (32 bits)
    d    = r[rd] + off      (16 bits)
    lane = r[rc]

Source: `docs/architecture.md`, section "Instructions".
"""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Self

from amaranth.hdl import signed, unsigned
from amaranth.lib import data, enum

__all__ = [
    "PROGRAM_BYTES",
    "Command",
    "Cond",
    "CsrIndex",
    "Dest",
    "GateFunc",
    "Instruction",
    "InstructionLayout",
    "LoadClass",
    "Map",
    "MatMode",
    "Op",
    "ProgramError",
    "StoreFunc",
    "Unit",
    "VecFunc",
    "disassemble",
    "sequencer_ops",
    "unit_of",
]

# No `from __future__ import annotations` here: Amaranth reads the annotations of structures as values.

#: Bytes of one instruction in memory (little-endian).
PROGRAM_BYTES = 16


class ProgramError(ValueError):
    """A program word is not an instruction; the message says which and why."""


class Op(enum.Enum, shape=6):
    """Operation codes.  All values that are not listed stop the engine with a program error."""

    NOP = 0
    HALT = 1  #: end of the program
    TRAP = 2  #: stop with error code ``imm``
    SET = 3  #: r[rc] = r[ra] + imm
    ADD = 4  #: r[rc] = r[ra] + r[rb]
    SUB = 5  #: r[rc] = r[ra] - r[rb]
    SHR = 6  #: r[rc] = r[ra] >> n
    MUL = 7  #: r[rc] = r[ra][0:18] * n
    CSR = 8  #: r[rc] = runtime register n (`CsrIndex`)
    POP = 9  #: r[rc] = low 32 bits of the next beat loaded for `Dest.CTRL`; waits for it
    TOK = 10  #: r[rc] = last token sampled for lane r[ra]
    JMP = 11  #: goto imm
    BLT = 12  #: if r[ra] < r[rb] (unsigned): goto imm
    BGE = 13  #: if r[ra] >= r[rb] (unsigned): goto imm
    BEQ = 14  #: if r[ra] == r[rb]: goto imm
    AND = 15  #: r[rc] = r[ra] & imm
    LOAD = 16  #: stream b beats from byte address a; func = dest | class << 2
    MATMUL = 17  #: matrix unit; func = `MatMode`
    VECTOR = 18  #: vector unit; func = `VecFunc`
    STORE = 19  #: store unit; func = `StoreFunc`
    GATE = 20  #: gate and DRS; func = `GateFunc`
    SAMPLE = 21  #: sampler: choose a token for a lane from the logits gathered


class Cond(enum.Enum, shape=3):
    """When an instruction runs; decided at issue by the DRS dispatcher."""

    ALWAYS = 0
    COMPUTE = 1  #: this lane computes its MLP in the present layer
    REPLAY = 2  #: this lane replays
    ANY = 3  #: at least one lane computes
    TAS = 4  #: the token is eligible and the gate needs the TAS
    PAPER = 5  #: as TAS, with the definition `paper`
    RAW = 6  #: as TAS, with the definition `reference-code`
    FORCED = 7  #: the token is eligible and the gate is `forced`


class Unit(enum.Enum, shape=3):
    """Units that the ``wait`` mask names, by bit number."""

    LOAD = 0  #: prefetcher: no descriptor queued (data may still be in its FIFO)
    MATRIX = 1  #: matrix unit: no command queued, array drained, results written
    VECTOR = 2  #: vector unit: no command queued, all passes written
    STORE = 3  #: store unit: no descriptor queued, every write acknowledged
    GATE = 4  #: gate and scheduler idle
    SAMPLE = 5  #: sampler idle


class Dest(enum.Enum, shape=2):
    """Who consumes the beats of a load."""

    MATRIX = 0
    VECTOR = 1
    CTRL = 2


class LoadClass(enum.Enum, shape=3):
    """Traffic class of a load, for the byte counters."""

    WEIGHTS = 0
    KV = 1
    REPLAY = 2
    PARAMS = 3
    CONTROL = 4


class Map(enum.Enum, shape=2):
    """Which lanes take part, and where they sit."""

    STATIC = 0  #: every active lane, core = lane mod cores, index = lane div cores
    MAPPED = 1  #: the computing lanes, as the DRS mapped them
    LANE = 2  #: only `lane`, at its static place


class MatMode(enum.Enum, shape=5):
    """Modes of the matrix unit.  K = a[0:16], activation offset = a[16:32], tiles = b."""

    LINEAR = 0  #: tile = 2 scale beats + K weight beats; results to Y at word d
    SCORE = 1  #: tile = V-exponent beat, K-exponent beat + K beats; results to S bank; d = T (positions)
    TAS = 2  #: as SCORE, one tile; element b of it goes to the gate with head number d
    PV = 3  #: tile = K beats (positions) of V; scale of the softmax; results to Y at word d
    LOGITS = 4  #: as LINEAR, results to the sampler


class VecFunc(enum.Enum, shape=5):
    """Passes of the vector unit over b elements; see docs/numerics.md for the arithmetic."""

    EMBED = 0  #: X = stream << -shift
    EMBED_ADD = 1  #: X = X + (stream << -shift); notes max |X|
    PARAM = 2  #: P[d] = stream
    SQUARES = 3  #: sum of squares of X, then its reciprocal square root; eps in a
    NORM = 4  #: Y[d] = X * rsqrt * P[0]; notes max |Y|
    AMAX = 5  #: max |Y[d]|
    ROPE = 6  #: Y[a[0:16]] = rotate(Y[d]) by P[a[16:32]]; notes max
    QUANT_ACT = 7  #: Y[d] -> int8 to activation byte a[0:16] of the lane's place; exponent entry eidx
    QUANT_BYTES = 8  #: exponent byte, then Y[d] as int8, to the store unit
    RESIDUAL = 9  #: Y[d] -> 16-bit mantissas; X += mantissa << e; notes max |X|
    RESIDUAL_STORE = 10  #: as RESIDUAL, header and mantissas also to the store unit
    REPLAY = 11  #: header and mantissas from the stream; X += mantissa << e; notes max |X|
    SOFTMAX = 12  #: S[bank] scores -> weights, their sum and maximum
    QUANT_PROB = 13  #: S[bank] weights -> int8 to activation byte a[0:16]; exponent entry eidx with scale
    SWIGLU = 14  #: Y[d] = silu(Y[d]) * Y[a[0:16]]; shifts: gate a[16:23], silu a[24:31], product `shift`


class StoreFunc(enum.Enum, shape=5):
    """Primitives of the store unit.  a = byte address."""

    SCATTER = 0  #: next b bytes, one a beat, each in byte lane d mod beat_bytes of consecutive beats
    PACK = 1  #: next b bytes packed into whole beats, the last one filled with zeros
    WORD = 2  #: one beat: b in the low 32 bits, zeros above (no data from the vector unit)


class GateFunc(enum.Enum, shape=5):
    """Functions of the gate."""

    BEGIN = 0  #: new layer a; b != 0: token is eligible; clears scores and decisions
    DECIDE = 1  #: decide for `lane`; forced decisions in a (bit per lane, 1 = compute)
    SCHEDULE = 2  #: fill index and mapping registers


class CsrIndex(enum.Enum, shape=5):
    """Runtime registers that the program can read."""

    LANES = 0
    PROMPT = 1  #: positions given by the host
    TOTAL = 2  #: positions of the whole video
    WARMUP = 3  #: generated frames that never replay
    HEAD_ALL = 4  #: 1: logits also for prompt positions (teacher forcing)
    IMAGE = 5  #: byte address of the image
    HEAP = 6  #: byte address of the working memory


class InstructionLayout(data.Struct):
    """Bit layout of an instruction, least significant field first."""

    op: unsigned(6)
    cond: Cond
    wait: unsigned(8)
    ra: unsigned(4)
    rb: unsigned(4)
    rc: unsigned(4)
    rd: unsigned(4)
    func: unsigned(5)
    shift: signed(7)
    eidx: unsigned(8)
    tag: unsigned(8)
    bank: unsigned(1)
    map: Map
    imm: unsigned(32)
    n: unsigned(16)
    off: unsigned(16)


class Command(data.Struct):
    """A resolved unit operation, as queued at a unit."""

    a: unsigned(32)
    b: unsigned(32)
    d: unsigned(16)
    lane: unsigned(5)
    func: unsigned(5)
    shift: signed(7)
    eidx: unsigned(8)
    bank: unsigned(1)
    map: Map
    tag: unsigned(8)
    layer: unsigned(7)




assert InstructionLayout.as_shape().size == 8 * PROGRAM_BYTES


def sequencer_ops() -> frozenset[Op]:
    """Operations that the sequencer runs by itself."""
    return frozenset(op for op in Op if op.value < Op.LOAD.value)


def unit_of(op: Op) -> Unit:
    """Return the unit that a unit operation goes to."""
    return Unit(op.value - Op.LOAD.value)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction in Python; field names and widths are those of `InstructionLayout`."""

    op: Op
    cond: Cond = Cond.ALWAYS
    wait: int = 0
    ra: int = 0
    rb: int = 0
    rc: int = 0
    rd: int = 0
    func: int = 0
    shift: int = 0
    eidx: int = 0
    tag: int = 0
    bank: int = 0
    map: Map = Map.STATIC
    imm: int = 0
    n: int = 0
    off: int = 0

    def encode(self) -> int:
        """Return the 128-bit word.

        Raises
        ------
        ProgramError
            When a field does not fit its width.
        """
        word, position = 0, 0
        for name in InstructionLayout.as_shape().members:
            width = InstructionLayout.as_shape()[name].width
            value = getattr(self, name)
            number = value.value if isinstance(value, enum.Enum) else int(value)
            low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if name == "shift" else (0, (1 << width) - 1)
            if name == "imm" and -(1 << 31) <= number < 0:
                number += 1 << 32
            if not low <= number <= high:
                raise ProgramError(f"field {name} of {self.op.name} must be in {low}..{high}, not {number}")
            word |= (number & ((1 << width) - 1)) << position
            position += width
        return word

    @classmethod
    def decode(cls, word: int) -> Self:
        """Return the instruction of a 128-bit word; raise `ProgramError` for one that is none."""
        values: dict[str, object] = {}
        for name in (f.name for f in dataclass_fields(cls)):
            member = InstructionLayout.as_shape()[name]
            raw = (word >> member.offset) & ((1 << member.width) - 1)
            if name == "shift" and raw >> (member.width - 1):
                raw -= 1 << member.width
            values[name] = raw
        try:
            values["op"] = Op(values["op"])
            values["cond"] = Cond(values["cond"])
            values["map"] = Map(values["map"])
        except ValueError:
            raise ProgramError(f"word {word:#034x} is no instruction") from None
        return cls(**values)  # type: ignore[arg-type]


_FUNCS: dict[Op, type[enum.Enum]] = {
    Op.MATMUL: MatMode,
    Op.VECTOR: VecFunc,
    Op.STORE: StoreFunc,
    Op.GATE: GateFunc,
}


def disassemble(word: int) -> str:
    """Return one readable line for an instruction word.

    Raises
    ------
    ProgramError
        When it is none.
    """
    ins = Instruction.decode(word)
    parts = [ins.op.name.lower()]
    try:
        if ins.op in _FUNCS:
            parts[0] += "." + _FUNCS[ins.op](ins.func).name.lower()
        elif ins.op is Op.LOAD:
            parts[0] += f".{Dest(ins.func & 3).name.lower()}.{LoadClass(ins.func >> 2).name.lower()}"
        elif ins.op is Op.CSR:
            parts.append(CsrIndex(ins.n).name.lower())
    except ValueError:
        raise ProgramError(f"{ins.op.name} has no function {ins.n if ins.op is Op.CSR else ins.func}") from None
    for name in ("ra", "rb", "rc", "rd"):
        if getattr(ins, name):
            parts.append(f"{name}=r{getattr(ins, name)}")
    for name in ("imm", "n", "off", "shift", "eidx", "bank", "tag"):
        if getattr(ins, name):
            value = getattr(ins, name)
            parts.append(f"{name}={value:#x}" if name == "imm" else f"{name}={value}")
    if ins.map is not Map.STATIC:
        parts.append(f"map={ins.map.name.lower()}")
    if ins.cond is not Cond.ALWAYS:
        parts.append(f"if={ins.cond.name.lower()}")
    if ins.wait:
        units = [u.name.lower() for u in Unit if ins.wait >> u.value & 1]
        parts.append("wait=" + "+".join(units))
    return " ".join(parts)
