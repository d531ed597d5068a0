"""Where lanes sit in the cores: the view that the scheduler gives to the matrix unit."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig

__all__ = ["PlacesSignature"]


class PlacesSignature(wiring.Signature):
    """Counts and look-up of lanes, seen from the matrix unit.

    Members
    -------
    static_count, mapped_count : In, array of ``cores`` counts
        Lanes on each core; the mapped ones are stable from the end of a SCHEDULE to the next BEGIN.
    core, index, mapped : Out
        Place to look up; index = pass * rows + row.
    lane : In, 5 bits
        The lane there (combinational); meaningless when index is not below the count.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        counts = data.ArrayLayout(range(config.lanes + 1), config.cores)
        super().__init__(
            {
                "static_count": In(counts),
                "mapped_count": In(counts),
                "core": Out(config.derived.core_bits),
                "index": Out(config.derived.slot_bits),
                "mapped": Out(1),
                "lane": In(5),
            }
        )
