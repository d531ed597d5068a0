"""Words of the vector unit's memories."""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from ..config import AcceleratorConfig

__all__ = ["ExponentEntry", "ParamWord", "ValueWord"]

#: Exponent file: exponent of a quantized vector and, for softmax weights, the reciprocal of their sum.
ExponentEntry = data.StructLayout({"exponent": signed(8), "scale": unsigned(16)})


class ValueWord(data.ArrayLayout):
    """A word of X or Y: ``vector_width`` values of 32 bits."""

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(signed(32), config.vector_width)


class ParamWord(data.ArrayLayout):
    """A word of P or of the stream: ``vector_width`` values of 16 bits."""

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(signed(16), config.vector_width)
