"""The register map as documentation, C header and JSON."""

from __future__ import annotations

import json
from typing import Any

from amaranth.hdl import Shape

from ..registers_map import Access, Array, Field, Register, RegisterMap

__all__ = ["to_c_header", "to_dict", "to_json", "to_markdown"]


def _bits(part: Field) -> str:
    high = part.offset + part.width - 1
    return str(high) if part.width == 1 else f"{high}:{part.offset}"


def _reset(part: Field) -> str:
    if part.access in (Access.PULSE, Access.COUNTER) or (part.access is Access.RO and part.port):
        return ""
    return f"{part.reset:#x}" if part.reset > 9 else str(part.reset)


def to_markdown(registers: RegisterMap) -> str:
    """Return the map as two tables: registers with their fields, and arrays."""
    lines = [
        "| offset | register | bits | field | access | reset | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for register in registers.registers:
        where = f"{register.offset:#06x}" if register.words == 1 else f"{register.offset:#06x}, +4"
        lock = " (locked while running)" if register.locked else ""
        single = not register.fields[0].name
        if not single:
            lines.append(f"| {where} | `{register.name}` | | | | | {register.doc}{lock} |")
        for part in register.fields:
            first = (where, f"`{register.name}`") if single else ("", "")
            name = f"`{part.name}`" if part.name else ""
            text = f"{part.doc}{lock}" if single else part.doc
            row = (*first, _bits(part), name, part.access.value, _reset(part), text)
            lines.append("| " + " | ".join(row) + " |")
    lines += ["", "| offset | array | entries | bits | access | meaning |", "|---|---|---|---|---|---|"]
    for array in registers.arrays:
        access = Access.RW.value if array.writable else Access.RO.value
        width = Shape.cast(array.shape).width
        lines.append(
            f"| {array.offset:#06x} + 4 n | `{array.name}[n]` | {array.depth} | {width} | {access} | {array.doc} |"
        )
    return "\n".join(lines) + "\n"


def _defines(prefix: str, register: Register) -> list[tuple[str, str, str]]:
    rows = []
    for number, name in enumerate(register.word_names()):
        rows.append(
            (
                f"{prefix}_{name.upper()}",
                f"0x{register.offset + 4 * number:04x}u",
                "" if number else register.doc,
            )
        )
    for part in register.fields:
        if part.name:
            base = f"{prefix}_{register.name.upper()}_{part.name.upper()}"
            rows.append((f"{base}_SHIFT", f"{part.offset}", part.doc))
            rows.append((f"{base}_MASK", f"0x{part.mask:08x}u", ""))
        elif part.access is Access.CONST and register.words == 1:
            rows.append((f"{prefix}_{register.name.upper()}_VALUE", f"0x{part.reset:08x}u", ""))
    return rows


def _array_defines(prefix: str, array: Array) -> list[tuple[str, str, str]]:
    base = f"{prefix}_{array.name.upper()}"
    return [
        (f"{base}(n)", f"(0x{array.offset:04x}u + 4u * (n))", array.doc),
        (f"{base}_COUNT", f"{array.depth}", ""),
    ]


def to_c_header(registers: RegisterMap, prefix: str = "FASTCAR") -> str:
    """Return a C header with byte offsets, shifts and masks; 64-bit registers give ``_LO`` and ``_HI``."""
    guard = f"{prefix}_REGISTERS_H"
    rows = [row for register in registers.registers for row in _defines(prefix, register)]
    rows += [row for array in registers.arrays for row in _array_defines(prefix, array)]
    width = max(len(name) for name, _, _ in rows)
    lines = [
        "/* Register map of a fastcar accelerator; generated, do not edit. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
    ]
    for name, value, doc in rows:
        comment = f"  /* {doc.replace('*/', '* /')} */" if doc else ""
        lines.append(f"#define {name:<{width}} {value}{comment}")
    return "\n".join([*lines, "", f"#endif /* {guard} */"]) + "\n"


def to_dict(registers: RegisterMap) -> dict[str, Any]:
    """Return the map as plain values."""
    return {
        "addr_width": registers.addr_width,
        "registers": [
            {
                "name": register.name,
                "offset": register.offset,
                "words": register.words,
                "locked": register.locked,
                "doc": register.doc,
                "fields": [
                    {
                        "name": part.name,
                        "offset": part.offset,
                        "width": part.width,
                        "access": part.access.name.lower(),
                        "reset": part.reset,
                        "doc": part.doc,
                    }
                    for part in register.fields
                ],
            }
            for register in registers.registers
        ],
        "arrays": [
            {
                "name": array.name,
                "offset": array.offset,
                "depth": array.depth,
                "width": Shape.cast(array.shape).width,
                "writable": array.writable,
                "doc": array.doc,
            }
            for array in registers.arrays
        ],
    }


def to_json(registers: RegisterMap) -> str:
    """Return the map as JSON text."""
    return json.dumps(to_dict(registers), indent=1) + "\n"
