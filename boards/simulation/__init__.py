"""Boards without boards: the design of a device under Verilator, with its memory, at the end of a pseudo-terminal."""

from .simulated import SimulatedBoard

__all__ = ["SimulatedBoard"]
