"""Payload between the vector unit and the store unit."""

from amaranth.hdl import unsigned
from amaranth.lib import data

from ..config import AcceleratorConfig

__all__ = ["StoreWord"]


class StoreWord(data.StructLayout):
    """Up to 2 * vector_width bytes for the store unit; ``count`` of them are valid, from byte 0."""

    def __init__(self, config: AcceleratorConfig) -> None:
        width = 2 * config.vector_width
        super().__init__({"data": data.ArrayLayout(unsigned(8), width), "count": range(width + 1)})
