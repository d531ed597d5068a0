"""What only Lattice iCE40 UltraPlus devices have."""

from .spram import Spram

__all__ = ["Spram"]
