"""The engine that is a real board, at the other end of a serial line."""

from .link import DeviceLink
from .matrix import MatrixBoard

__all__ = ["DeviceLink", "MatrixBoard"]
