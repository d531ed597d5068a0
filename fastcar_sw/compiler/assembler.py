"""A small assembler: labels, and instructions by the names of the instruction set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastcar_hw.isa import (
    Cond,
    Dest,
    GateFunc,
    Instruction,
    LoadClass,
    MatMode,
    Op,
    ProgramError,
    StoreFunc,
    Unit,
    VecFunc,
)

from .ops import OpTag

__all__ = ["Assembler", "words"]


class Assembler:
    """Collects instructions; branch targets are labels until `finish`."""

    def __init__(self) -> None:
        self._code: list[tuple[Instruction, str | None]] = []
        self._labels: dict[str, int] = {}
        self._count = 0
        self._wait: set[Unit] = set()

    def label(self, name: str) -> None:
        """Name the next instruction."""
        if name in self._labels:
            raise ProgramError(f"label {name!r} exists twice")
        self._labels[name] = len(self._code)

    def fresh(self, stem: str) -> str:
        """Return a label name that is not used yet."""
        self._count += 1
        return f"{stem}.{self._count}"

    def wait(self, *units: Unit) -> None:
        """Make the next instruction wait until some units are idle."""
        self._wait |= set(units)

    def emit(self, op: Op, target: str | None = None, **fields: Any) -> None:
        """Append an instruction."""
        mask = sum(1 << unit.value for unit in self._wait)
        self._wait = set()
        self._code.append((Instruction(op=op, wait=mask, **fields), target))

    def load(self, dest: Dest, kind: LoadClass, *, ra: int, imm: int, n: int = 0, rb: int = 0,
             cond: Cond = Cond.ALWAYS, rc: int = 0) -> None:  # fmt: skip
        """Stream ``n + r[rb]`` beats from ``r[ra] + imm``."""
        if n > 0xFFFF:
            raise ProgramError(f"a load has at most 65535 beats, not {n}")
        self.emit(Op.LOAD, func=dest.value | kind.value << 2, ra=ra, imm=imm, n=n, rb=rb, cond=cond, rc=rc)

    def matmul(self, mode: MatMode, tag: OpTag, *, steps: int, act: int, **fields: Any) -> None:
        """Issue a matrix operation over ``steps`` (plus r[ra]) from activation byte ``act``."""
        self.emit(Op.MATMUL, func=mode.value, tag=int(tag), imm=act << 16 | steps, **fields)

    def vector(self, func: VecFunc, tag: OpTag = OpTag.NONE, **fields: Any) -> None:
        """Issue a vector pass."""
        self.emit(Op.VECTOR, func=func.value, tag=int(tag), **fields)

    def store(self, func: StoreFunc, **fields: Any) -> None:
        """Issue a store."""
        self.emit(Op.STORE, func=func.value, **fields)

    def gate(self, func: GateFunc, **fields: Any) -> None:
        """Issue a gate command."""
        self.emit(Op.GATE, func=func.value, **fields)

    def finish(self) -> list[Instruction]:
        """Return the program with its branches resolved."""
        program = []
        for instruction, target in self._code:
            if target is not None:
                if target not in self._labels:
                    raise ProgramError(f"label {target!r} does not exist")
                instruction = replace(instruction, imm=self._labels[target])
            program.append(instruction)
        return program


def words(program: Iterable[Instruction]) -> list[int]:
    """Return the encoded words of a program."""
    return [instruction.encode() for instruction in program]


