"""Matrix unit: feeder, systolic cores and requantizer."""

from .matrix_unit import MatrixUnit
from .places import PlacesSignature

__all__ = ["MatrixUnit", "PlacesSignature"]
