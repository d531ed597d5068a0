"""The default engine: the generated Verilog, compiled by Verilator, with memory and clock loop in C++."""

from .build import build_model
from .link import VerilatorLink

__all__ = ["VerilatorLink", "build_model"]
