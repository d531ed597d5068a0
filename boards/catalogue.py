"""The boards that there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastcar_hw.config import AcceleratorConfig, ConfigError

__all__ = ["MATRIX_BITS", "BoardSpec", "board", "boards"]

#: What tells the identity of a matrix board from that of an accelerator ("matrix", in ASCII).
MATRIX_BITS = int.from_bytes(b"matrix", "big")


@dataclass(frozen=True, kw_only=True)
class BoardSpec:
    """A board with the accelerator that it carries.

    Parameters
    ----------
    name, title
        For the command line, and for people.
    family
        Device family (`boards.flow.families.FAMILIES`).
    part
        Order number of the device.
    config
        The accelerator.
    clock_hz
        The one clock of the design; place and route must reach it.
    baud
        Of the host link.
    memory_bytes
        Memory that image and heap share.
    model
        Shipped model or preset that the buffers are made for.
    platform
        Makes the Amaranth platform.
    top
        Makes the design of the whole device out of this.
    kind
        ``accelerator``, which makes whole videos, or ``matrix``: the matrix unit alone, for a host that does the rest.
    """

    name: str
    title: str
    family: str
    part: str
    config: AcceleratorConfig
    clock_hz: int
    baud: int
    memory_bytes: int
    model: str
    platform: Callable[[], Any]
    top: Callable[[BoardSpec], Any]
    kind: str = "accelerator"

    def __post_init__(self) -> None:
        for name in ("clock_hz", "baud", "memory_bytes"):
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(f"{name} must be positive, not {value!r}")
        if self.kind not in ("accelerator", "matrix"):
            raise ConfigError(f"kind must be accelerator or matrix, not {self.kind!r}")
        # A baud rate that the divider misses by more than a fiftieth loses bits at the end of a byte.
        divider = round(self.clock_hz / self.baud)
        if divider < 4 or abs(self.clock_hz / divider - self.baud) > self.baud / 50:
            raise ConfigError(f"baud must be within 2 % of clock_hz={self.clock_hz} by an integer of 4 or more, "
                              f"not {self.baud!r}")  # fmt: skip

    @property
    def identity(self) -> int:
        """64 bits that the host link answers: who is there."""
        # A matrix unit is no accelerator, even of the same configuration.
        return self.config.hash ^ (0 if self.kind == "accelerator" else MATRIX_BITS)


def boards() -> dict[str, BoardSpec]:
    """Return every board by its name."""
    # Not at the top: boards make their description of this module's class.
    from . import ecpix5, icebreaker, ulx3s

    return {spec.name: spec for spec in (ulx3s.SPEC, ecpix5.SPEC, icebreaker.SPEC)}


def board(name: str) -> BoardSpec:
    """Return a board, or raise `ConfigError` naming those that exist."""
    known = boards()
    if name not in known:
        raise ConfigError(f"unknown board {name!r}; boards are {', '.join(known)}")
    return known[name]
