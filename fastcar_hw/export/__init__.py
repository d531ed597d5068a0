"""What leaves Python: Verilog with the ports that bus tools expect, register map, golden interface."""

from .top import AxiTop
from .verilog import ToolError, to_verilog

__all__ = ["AxiTop", "ToolError", "to_verilog"]
