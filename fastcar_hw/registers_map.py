"""The one description of the AXI4-Lite register map.

`register_map` lists every register of an accelerator.  `registers.RegisterBlock` turns the list into
hardware, `export.registers` into documentation and headers, and the Python driver looks its offsets up in it.
Offsets do not depend on the configuration; only depths of arrays and constants do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from amaranth.hdl import Shape, ShapeLike

from .config import AcceleratorConfig
from .drs.policy import Definition, GateKind
from .errors import ErrorCode
from .isa import LoadClass, Unit

__all__ = ["Access", "Array", "Field", "Register", "RegisterMap", "register_map"]

#: "FCAR", little-endian: what the first register reads.
MAGIC = int.from_bytes(b"FCAR", "little")
#: Version of this map, major << 16 | minor; drivers refuse another major number.
VERSION = 1 << 16


class Access(enum.Enum):
    """What the host may do with a field."""

    CONST = "constant"  #: read; fixed in the hardware
    RO = "read-only"  #: read
    RW = "read/write"
    W1C = "write 1 to clear"
    PULSE = "pulse"  #: writing 1 gives a strobe of one cycle; reads 0
    COUNTER = "counter"  #: 64 bits; reading the low word latches the high word


@dataclass(frozen=True, kw_only=True)
class Field:
    """Part of a register.

    Parameters
    ----------
    name
        Name within the register; empty when the field is the whole register.
    shape
        Amaranth shape of its port.
    access, reset, doc
        What the host may do; value after reset (or of a constant); meaning.
    offset
        Lowest bit.
    port
        False: the block itself knows the value, so there is no port.
    amount
        Of a counter: the largest increment a cycle.
    """

    name: str = ""
    shape: ShapeLike = 1
    access: Access = Access.RW
    reset: int = 0
    offset: int = 0
    port: bool = True
    amount: int = 1
    doc: str = ""

    @property
    def width(self) -> int:
        """Bits of the field."""
        return Shape.cast(self.shape).width

    @property
    def mask(self) -> int:
        """Bits of the field, in place."""
        return ((1 << self.width) - 1) << self.offset


@dataclass(frozen=True, kw_only=True)
class Register:
    """One 32-bit register, or a pair of them (low word first) when ``words`` is 2.

    Parameters
    ----------
    name, offset, doc
        Name, byte offset of the first word, meaning.
    fields
        The fields; bits without one read 0 and ignore writes.
    words
        1 or 2.
    locked
        Writes are refused while the engine runs.
    """

    name: str
    offset: int
    fields: tuple[Field, ...]
    words: int = 1
    locked: bool = False
    doc: str = ""

    def port_name(self, part: Field) -> str:
        """Return the name of a field's port."""
        return f"{self.name}_{part.name}" if part.name else self.name

    @property
    def writable(self) -> bool:
        """Whether the host may write it."""
        return any(f.access in (Access.RW, Access.W1C, Access.PULSE) for f in self.fields)

    def word_names(self) -> tuple[str, ...]:
        """Return the name of each word."""
        return (self.name,) if self.words == 1 else (f"{self.name}_lo", f"{self.name}_hi")


@dataclass(frozen=True, kw_only=True)
class Array:
    """Registers that a unit keeps in a memory: ``depth`` words from ``offset`` on.

    Parameters
    ----------
    name, offset, depth, doc
        Name, byte offset of entry 0 (a multiple of the size), entries, meaning.
    shape
        Of an entry.
    writable
        Whether the host may write it.
    """

    name: str
    offset: int
    depth: int
    shape: ShapeLike = 32
    writable: bool = True
    doc: str = ""

    @property
    def size(self) -> int:
        """Bytes of the address range, a power of two."""
        return 4 << (self.depth - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class RegisterMap:
    """All registers of an accelerator.

    Parameters
    ----------
    registers, arrays
        In the order of their offsets.
    addr_width
        Bits of an address.
    """

    registers: tuple[Register, ...]
    arrays: tuple[Array, ...]
    addr_width: int = field(default=16)

    def __post_init__(self) -> None:
        used: dict[int, str] = {}
        for offset, name in self._words():
            if offset % 4 or not 0 <= offset < 1 << self.addr_width:
                raise ValueError(
                    f"offset of {name} must be an aligned address of {self.addr_width} bits, not {offset:#x}"
                )
            if offset in used:
                raise ValueError(f"offset of {name} must be free, not {offset:#x} of {used[offset]}")
            used[offset] = name
        for register in self.registers:
            bits = 0
            for part in register.fields:
                if part.mask & bits or part.mask >> (32 * register.words):
                    raise ValueError(f"field {part.name!r} of {register.name} must lie on free bits of the register")
                bits |= part.mask
        for array in self.arrays:
            if array.offset % array.size:
                raise ValueError(f"offset of {array.name} must be a multiple of {array.size}, not {array.offset:#x}")

    def _words(self) -> Iterator[tuple[int, str]]:
        for register in self.registers:
            for number, name in enumerate(register.word_names()):
                yield register.offset + 4 * number, name
        for array in self.arrays:
            for entry in range(array.depth):
                yield array.offset + 4 * entry, f"{array.name}[{entry}]"

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset by name: registers, words of pairs (``_lo``, ``_hi``), arrays."""
        table = {array.name: array.offset for array in self.arrays}
        for register in self.registers:
            table[register.name] = register.offset
            for number, name in enumerate(register.word_names()):
                table[name] = register.offset + 4 * number
        return table

    def offset(self, name: str, index: int = 0) -> int:
        """Return the byte offset of a register, of a word of it, or of an array's entry.

        Raises
        ------
        KeyError
            When there is no such register or entry.
        """
        if name not in self.offsets:
            raise KeyError(f"no register is called {name!r}")
        depth = next((a.depth for a in self.arrays if a.name == name), 1)
        if not 0 <= index < depth:
            raise KeyError(f"register {name!r} has entries 0..{depth - 1}, not {index}")
        return self.offsets[name] + 4 * index

    def register(self, name: str) -> Register:
        """Return a register by name; raise `KeyError` when there is none."""
        for register in self.registers:
            if register.name == name:
                return register
        raise KeyError(f"no register is called {name!r}")

    @property
    def counters(self) -> tuple[Register, ...]:
        """The registers that are counters."""
        return tuple(r for r in self.registers if r.fields[0].access is Access.COUNTER)


def _whole(name: str, offset: int, shape: ShapeLike, access: Access, doc: str, **options) -> Register:
    """Return a register with one field."""
    names = ("reset", "port", "amount")
    part = Field(shape=shape, access=access, doc=doc, **{k: options.pop(k) for k in names if k in options})
    return Register(name=name, offset=offset, fields=(part,), doc=doc, **options)


def _parts(name: str, offset: int, doc: str, access: Access, *parts: tuple, **options) -> Register:
    """Return a register of several fields, given as (name, bit, shape, doc[, reset])."""
    port = options.pop("port", True)
    fields = tuple(
        Field(name=n, offset=bit, shape=shape, access=access, doc=text, port=port, reset=rest[0] if rest else 0)
        for n, bit, shape, text, *rest in parts
    )
    return Register(name=name, offset=offset, fields=fields, doc=doc, **options)


def _identity(c: AcceleratorConfig) -> list[Register]:
    const = Access.CONST
    return [
        _whole("id", 0x000, 32, const, 'The letters "FCAR".', reset=MAGIC),
        _whole("version", 0x004, 32, const, "Version of the map: major in the high half, minor in the low.",
               reset=VERSION),
        _whole("config_hash", 0x008, 64, const, "Identity of the hardware; images carry the same.",
               reset=c.hash, words=2),
        _parts("shape", 0x010, "Shape of the array.", const,
               ("cores", 0, 8, "Systolic arrays.", c.cores), ("rows", 8, 8, "Rows of each.", c.rows),
               ("lanes", 16, 8, "Lanes at most.", c.lanes)),
        _parts("widths", 0x014, "Widths of the datapath.", const,
               ("cols", 0, 16, "Columns: weights, and bytes, of a beat.", c.cols),
               ("vector", 16, 16, "Elements a cycle of the vector unit.", c.vector_width)),
        _parts("limits", 0x018, "Sizes of the arrays and of the sampler.", const,
               ("layers", 0, 8, "Thresholds.", c.max_layers), ("heads", 8, 8, "Head weights.", c.max_heads),
               ("topk", 16, 8, "Longest candidate list.", c.topk_max)),
    ]  # fmt: skip


def _control(c: AcceleratorConfig) -> list[Register]:
    ro, internal = Access.RO, {"access": Access.RO, "port": False}
    units = ", ".join(f"{unit.value} = {unit.name.lower()}" for unit in Unit)
    flags = (("done", 0, 1, "The program ended."), ("error", 1, 1, "The engine stopped with an error."))
    return [
        _parts("control", 0x020, "Commands to the engine.", Access.PULSE,
               ("start", 0, 1, "Run the image; ignored while running.  Clears done, error and all counters."),
               ("stop", 1, 1, "Stop after the present instruction."),
               ("clear_error", 2, 1, "Clear the error registers."),
               ("clear_counters", 3, 1, "Clear all counters.")),
        Register(name="status", offset=0x024, doc="State of the engine.", fields=(
            Field(name="running", access=ro, doc="The engine runs."),
            Field(name="done", offset=1, doc="The program ended, since the last start.", **internal),
            Field(name="error", offset=2, doc="`error_code` is not 0.", **internal),
            Field(name="busy", offset=8, shape=len(Unit), access=ro, doc=f"Busy units, by bit: {units}."))),
        _parts("irq_enable", 0x028, "Events that raise the interrupt line.", Access.RW, *flags, port=False),
        _parts("irq_pending", 0x02C, "Events that happened.", Access.W1C, *flags, port=False),
        _whole("error_code", 0x030, ErrorCode, ro, "First error: " + ", ".join(
            f"{code.value} = {code.name}" for code in ErrorCode) + ".", port=False),
        _whole("error_pc", 0x034, 32, ro, "Program counter at the first error.", port=False),
        _whole("error_address", 0x038, 64, ro, "Memory address of the first error, if it has one.", words=2,
               port=False),
        _whole("position", 0x040, 32, ro, "Position that is being decoded."),
        _whole("layer", 0x044, 32, ro, "Layer that is being decoded."),
        _whole("pc", 0x048, 32, ro, "Program counter."),
    ]  # fmt: skip


def _settings(c: AcceleratorConfig) -> list[Register]:
    rw, address = Access.RW, c.address_width
    lock = {"locked": True}
    wide = {"locked": True, "words": 2}
    return [
        _whole("image_base", 0x080, address, rw, "Byte address of the image.", **wide),
        _whole("heap_base", 0x088, address, rw, "Byte address of the working memory.", **wide),
        _whole("read_base", 0x090, address, rw, "First byte that may be read.", **wide),
        _whole("read_limit", 0x098, address, rw, "Last byte that may be read.", **wide),
        _whole("write_base", 0x0A0, address, rw, "First byte that may be written.", **wide),
        _whole("write_limit", 0x0A8, address, rw, "Last byte that may be written.", **wide),
        _whole("model_hash", 0x0B0, 64, rw, "Model that the image must hold.", **wide),
        _whole("lanes", 0x0C0, range(c.lanes + 1), rw, "Active lanes.", reset=1, **lock),
        _whole("prompt", 0x0C4, 32, rw, "Positions given by the host.", **lock),
        _whole("total", 0x0C8, 32, rw, "Positions of the whole video.", **lock),
        _whole("warmup", 0x0CC, 32, rw, "Generated frames that never replay.", **lock),
        _whole("head_all", 0x0D0, 1, rw, "Logits for the prompt's positions, too.", **lock),
        _parts("gate", 0x0D4, "Replay policy.", rw,
               ("kind", 0, GateKind, ", ".join(f"{k.value} = {k.name.lower()}" for k in GateKind) + "."),
               ("definition", 4, Definition, "0 = paper, 1 = reference-code."),
               ("static_map", 8, 1, "1: computing lanes stay on core lane mod cores."), **lock),
        _whole("topk", 0x0E0, range(c.topk_max + 1), rw, "Candidates; 0 = greedy.", **lock),
        _whole("inv_temperature", 0x0E4, 16, rw, "Inverse temperature (numerics, section 12).", **lock),
        _whole("temp_shift", 0x0E8, 6, rw, "Its shift.", **lock),
        _whole("seed", 0x0EC, 32, rw, "Seed of the sampler; loaded at start.", **lock),
    ]  # fmt: skip


def _counters(c: AcceleratorConfig) -> list[Register]:
    names: list[tuple[str, str, bool]] = [("cycles", "Cycles that the engine ran.", False)]
    names += [
        (f"busy_{unit.name.lower()}", f"Cycles in which the {unit.name.lower()} unit was busy.", False) for unit in Unit
    ]
    names += [
        ("stall_beats", "Cycles in which the matrix unit waited for beats.", True),
        ("stall_drain", "Cycles in which the matrix unit waited for its results to drain.", True),
        ("stall_sequencer", "Cycles in which the sequencer waited.", True),
        ("stall_fifo", "Cycles in which the prefetcher waited for room in its FIFO.", True),
    ]
    names += [(f"beats_{kind.name.lower()}", f"Beats read: {kind.name.lower()}.", True) for kind in LoadClass]
    names += [
        ("beats_written", "Beats written.", True),
        ("macs", "Useful multiply-accumulates.", True),
        ("drs_cycles", "Cycles of scheduling.", True),
        ("saturations", "Words of results with a saturated element.", True),
        ("dropped", "Instructions that the dispatcher dropped.", True),
    ]
    amounts = {"macs": c.lanes * c.cols, "saturations": 2}
    return [
        _whole(name, 0x100 + 8 * number, 64, Access.COUNTER, doc, words=2, port=port, amount=amounts.get(name, 1))
        for number, (name, doc, port) in enumerate(names)
    ]


def register_map(config: AcceleratorConfig) -> RegisterMap:
    """Return the register map of an accelerator."""
    c = config
    entries = c.max_layers * c.lanes
    arrays = (
        Array(name="thresholds", offset=0x0400, depth=c.max_layers, doc="Threshold of each layer, signed."),
        Array(name="head_weights", offset=0x0600, depth=c.max_heads, shape=8,
              doc="Weight of each head in the score; they sum to at most 255."),
        Array(name="eligible", offset=0x4000, depth=entries, writable=False,
              doc=f"Eligible tokens, entry layer * {c.lanes} + lane."),
        Array(name="replayed", offset=0x8000, depth=entries, writable=False,
              doc=f"Replayed tokens, entry layer * {c.lanes} + lane."),
    )  # fmt: skip
    return RegisterMap(registers=(*_identity(c), *_control(c), *_settings(c), *_counters(c)), arrays=arrays)
