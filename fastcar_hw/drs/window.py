"""Host access to a small memory that lives inside a unit."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["WindowSignature"]


class WindowSignature(wiring.Signature):
    """A register array, seen from the register block; the unit keeps the memory.

    Parameters
    ----------
    depth
        Number of 32-bit entries.

    Members
    -------
    addr : Out
        Entry; held while an access lasts.
    w_strobe : Out, 4 bits
        Bytes of ``w_data`` written this cycle; zero otherwise (and always, when the array is read-only).
    w_data : Out, 32 bits
        Data to write.
    r_data : In, 32 bits
        The entry, one cycle after ``addr``.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be positive, not {depth!r}")
        self._depth = depth
        super().__init__({"addr": Out(range(depth)), "w_strobe": Out(4), "w_data": Out(32), "r_data": In(32)})

    @property
    def depth(self) -> int:
        """Number of entries."""
        return self._depth
