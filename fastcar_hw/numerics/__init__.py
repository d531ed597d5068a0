"""Rounding, saturation and table functions of the integer law (docs/numerics.md)."""
