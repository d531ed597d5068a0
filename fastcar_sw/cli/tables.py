"""Readable results on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["plain", "print_fields", "print_rows", "result_console"]


def result_console(json_file: Path | None) -> Console:
    """Return the console for readable results: standard error when standard output is taken by the JSON."""
    to_stderr = str(json_file) == "-"
    console = Console(stderr=to_stderr)
    return console if console.is_terminal else Console(stderr=to_stderr, width=120)


def plain(value: object) -> str:
    """Return a value as a person would write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and abs(value) >= 1000:
        return f"{value:,}"
    return str(value)


def print_fields(console: Console, title: str, fields: Mapping[str, object]) -> None:
    """Print names and values below a title."""
    print_rows(console, title, ("", ""), fields.items(), right=(1,))


def print_rows(console: Console, title: str, header: Sequence[str], rows: Iterable[Iterable[object]],
               right: Collection[int] = ()) -> None:  # fmt: skip
    """Print a table.

    Parameters
    ----------
    console
        Where.
    title, header
        Above the table; names of the columns, all empty for none.
    rows
        Values, shown with `plain`.
    right
        Columns of numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=any(header), pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(Text(name), justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        # Texts, not strings: a name in brackets is no mark-up.
        table.add_row(*(Text(plain(value)) for value in row))
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)
    console.print()
