"""AXI4 and AXI4-Lite, as signatures of streams."""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = [
    "AxiLiteSignature", "AxiReadSignature", "AxiWriteSignature", "BURST_INCR", "CACHE_NORMAL", "Response",
    "whole_beats",
]  # fmt: skip

#: AxBURST of incrementing bursts, the only ones used here.
BURST_INCR = 1
#: AxCACHE of normal, non-cacheable, bufferable memory, which interconnects may merge and upsize.
CACHE_NORMAL = 0b0011


class Response(enum.Enum, shape=2):
    """xRESP."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


def _address(width: int) -> data.StructLayout:
    return data.StructLayout({"addr": width, "len": 8, "size": 3, "burst": 2})


class AxiReadSignature(wiring.Signature):
    """Read channels of an AXI4 master without identifiers: responses come in order.

    Parameters
    ----------
    addr_width, data_width
        Bits.

    Members
    -------
    ar : Out, stream of {addr, len, size, burst}
        Requests; ``len`` is the number of beats less one.  Stable from valid to ready.
    r : In, stream of {data, resp, last}
        Beats.
    """

    def __init__(self, addr_width: int, data_width: int) -> None:
        beat = data.StructLayout({"data": unsigned(data_width), "resp": Response, "last": 1})
        super().__init__({"ar": Out(stream.Signature(_address(addr_width))), "r": In(stream.Signature(beat))})


class AxiWriteSignature(wiring.Signature):
    """Write channels of an AXI4 master without identifiers.

    Members
    -------
    aw : Out, stream of {addr, len, size, burst}
    w : Out, stream of {data, strb, last}
        Beats of a burst; never before its request was accepted.
    b : In, stream of {resp}
        One response a burst.
    """

    def __init__(self, addr_width: int, data_width: int) -> None:
        beat = data.StructLayout({"data": unsigned(data_width), "strb": unsigned(data_width // 8), "last": 1})
        super().__init__(
            {
                "aw": Out(stream.Signature(_address(addr_width))),
                "w": Out(stream.Signature(beat)),
                "b": In(stream.Signature(data.StructLayout({"resp": Response}))),
            }
        )


class AxiLiteSignature(wiring.Signature):
    """AXI4-Lite master with 32-bit data.

    Members
    -------
    aw, ar : Out, streams of {addr, prot}
    w : Out, stream of {data, strb}
    b : In, stream of {resp}
    r : In, stream of {data, resp}
    """

    def __init__(self, addr_width: int) -> None:
        address = data.StructLayout({"addr": addr_width, "prot": 3})
        super().__init__(
            {
                "aw": Out(stream.Signature(address)),
                "w": Out(stream.Signature(data.StructLayout({"data": 32, "strb": 4}))),
                "b": In(stream.Signature(data.StructLayout({"resp": Response}))),
                "ar": Out(stream.Signature(address)),
                "r": In(stream.Signature(data.StructLayout({"data": 32, "resp": Response}))),
            }
        )


def whole_beats(request, data_width: int):
    """Return whether a request is for an incrementing burst of whole, aligned beats: what a simple slave serves.

    Parameters
    ----------
    request
        Payload of the channel AW or AR.
    data_width
        Bits of the bus.
    """
    shift = (data_width // 8).bit_length() - 1
    return (request.size == shift) & (request.burst == BURST_INCR) & (request.addr[:shift] == 0)
