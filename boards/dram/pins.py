"""Pins of an SDR SDRAM."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .part import SdramPart

__all__ = ["SdramPins"]


class SdramPins(wiring.Signature):
    """Pins, seen from the controller; the clock is the board's business.

    Members
    -------
    cke, cs_n, ras_n, cas_n, we_n, ba, a, dqm : Out
        Command and address; every cycle is a command (mostly one that does nothing).
    dq_o, dq_oe : Out; dq_i : In
        Data.
    """

    def __init__(self, part: SdramPart) -> None:
        super().__init__(
            {
                "cke": Out(1),
                "cs_n": Out(1, init=1),
                "ras_n": Out(1, init=1),
                "cas_n": Out(1, init=1),
                "we_n": Out(1, init=1),
                "ba": Out(part.bank_bits),
                "a": Out(part.row_bits),
                "dqm": Out(2, init=3),
                "dq_o": Out(16),
                "dq_oe": Out(1),
                "dq_i": In(16),
            }
        )
