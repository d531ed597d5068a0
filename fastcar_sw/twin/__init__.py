"""Bit-exact twin of the accelerator in PyTorch, written from docs/numerics.md alone."""

from .trace import Trace, TraceEntry
from .twin import GenerationResult, Twin

__all__ = ["GenerationResult", "Trace", "TraceEntry", "Twin"]
