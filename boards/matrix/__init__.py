"""The matrix engine: the generator's matrix unit as a coprocessor, for devices that hold no whole accelerator."""

from .system import MatrixCore

__all__ = ["MatrixCore"]
