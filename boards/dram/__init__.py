"""Memory of boards: synchronous DRAM behind an AXI4 port."""

from .controller import SdramController
from .part import SDRAM_PARTS, SdramPart
from .pins import SdramPins

__all__ = ["SDRAM_PARTS", "SdramController", "SdramPart", "SdramPins"]
