"""How a report writes numbers, on the page and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

__all__ = ["MISSING", "compact", "count", "decimal", "percent", "plural", "tenths", "times"]

#: Stands where there is no number.
MISSING = "–"


def _number(write: Callable[..., str]) -> Callable[..., str]:
    """Let a writer take what is not there, and what is infinite."""

    @wraps(write)
    def checked(value: float | None, *options: int) -> str:
        if value is None or math.isnan(value):
            return MISSING
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return write(value, *options)

    return checked


@_number
def count(value: float) -> str:
    """Write a whole number with separators: 1,234,567."""
    return f"{value:,.0f}"


@_number
def compact(value: float) -> str:
    """Write a whole number in at most six characters: 12,345 or 1.23M."""
    size, units = value, ["", "k", "M", "G", "T"]
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return count(value) if abs(value) < 100_000 else f"{size:#.3g}".rstrip(".") + units[0]


@_number
def percent(value: float, digits: int = 1) -> str:
    """Write a share: 0.4567 is 45.7 %."""
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


@_number
def times(value: float) -> str:
    """Write a factor: 1.53×."""
    return f"{value:.2f}×"


@_number
def decimal(value: float) -> str:
    """Write any number with four significant digits."""
    return f"{value:.4g}"


@_number
def tenths(value: float) -> str:
    """Write any number with one decimal."""
    return f"{value:.1f}"


def plural(number: int, noun: str) -> str:
    """Write a number of things: 1 lane, 4 lanes."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"
