"""What only Lattice ECP5 devices have."""

from .pll import Pll, PllSettings

__all__ = ["Pll", "PllSettings"]
