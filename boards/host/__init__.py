"""Host link: a serial line to the registers and the memory."""

from .bridge import HostBridge
from .protocol import Command, Identity, Status

__all__ = ["Command", "HostBridge", "Identity", "Status"]
