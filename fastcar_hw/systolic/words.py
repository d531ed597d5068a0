"""Payloads of the matrix unit's results."""

import enum

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from ..config import AcceleratorConfig

__all__ = ["LogitWord", "ScoreWord", "TasScore", "TraceKind", "TraceWord", "YWord"]


class TraceKind(enum.IntEnum):
    """What a record of the matrix unit's trace holds."""

    Y = 0
    SCORE = 1
    TAS = 2
    LOGITS = 3


class YWord(data.StructLayout):
    """A word for the Y memory; ``addr`` counts words of the lane."""

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(
            {
                "lane": 5,
                "addr": 16,
                "data": data.ArrayLayout(signed(32), config.vector_width),
                "tag": 8,
                "layer": 7,
            }
        )


class ScoreWord(data.StructLayout):
    """A word of scores with the exponents of V; ``mask``: positions that exist; ``first``: a head begins."""

    def __init__(self, config: AcceleratorConfig) -> None:
        width = config.vector_width
        super().__init__(
            {
                "bank": 1,
                "addr": 16,
                "data": data.ArrayLayout(signed(24), width),
                "ve": data.ArrayLayout(unsigned(5), width),
                "mask": width,
                "first": 1,
                "tag": 8,
                "layer": 7,
                "lane": 5,
            }
        )


class LogitWord(YWord):
    """A word of logits of a lane; element 0 is token ``addr * vector_width``."""


#: Score of the aligned key of one head.
TasScore = data.StructLayout({"lane": 5, "head": 8, "score": signed(24)})


class TraceWord(data.StructLayout):
    """A traced word: ``count`` elements of ``data`` count; ``kind`` is the unit's own (here `TraceKind`)."""

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(
            {
                "valid": 1,
                "tag": 8,
                "layer": 7,
                "lane": 5,
                "kind": 3,
                "addr": 16,
                "count": 8,
                "data": data.ArrayLayout(signed(32), config.vector_width),
            }
        )
