"""Sequencer: boot loader, program memory, scalar machine and issue of unit commands."""

from .boot import ImageHeader
from .sequencer import Sequencer

__all__ = ["ImageHeader", "Sequencer"]
