"""From a design to a bitstream: synthesis, place and route, packing, and what came out of them."""

from .bitstream import BuildResult, SeedResult, build, netlist
from .families import FAMILIES, Family

__all__ = ["FAMILIES", "BuildResult", "Family", "SeedResult", "build", "netlist"]
