"""Vector unit: everything of a decoder layer that is not a matrix product."""

from .unit import VectorUnit

__all__ = ["VectorUnit"]
