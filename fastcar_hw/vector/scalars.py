"""Scalars that outlive a pass: the exponent file, and the largest magnitude of the residual stream."""

from amaranth.hdl import Module, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from .words import ExponentEntry

__all__ = ["LaneScalars"]


class LaneScalars(wiring.Component):
    """Exponents of quantized vectors, and XMAX, for every lane.

    Parameters
    ----------
    config
        The accelerator; a lane has ``derived.ex_slots`` entries.

    Attributes
    ----------
    lane : In; x_largest : Out, u32
        XMAX of a lane, combinationally.
    x_write : In; magnitude : In, u32
        New XMAX of the lane.
    entry_write : In; index : In; entry : In, `ExponentEntry`
        New entry of the lane.
    ex_lane, ex_index : In; ex_exponent, ex_scale : Out
        Entry for the matrix unit, combinationally.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "lane": In(5),
                "x_largest": Out(32),
                "x_write": In(1),
                "magnitude": In(32),
                "entry_write": In(1),
                "index": In(8),
                "entry": In(ExponentEntry),
                "ex_lane": In(5),
                "ex_index": In(8),
                "ex_exponent": Out(signed(8)),
                "ex_scale": Out(16),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        m.submodules.exponents = exponents = memory.Memory(shape=ExponentEntry, depth=c.lanes * g.ex_slots, init=[])
        m.submodules.magnitudes = magnitudes = memory.Memory(shape=32, depth=max(2, c.lanes), init=[])
        entry_write, entry_read = exponents.write_port(), exponents.read_port(domain="comb")
        x_write, x_read = magnitudes.write_port(), magnitudes.read_port(domain="comb")
        m.d.comb += [
            entry_read.addr.eq(self.ex_lane * g.ex_slots + self.ex_index),
            self.ex_exponent.eq(entry_read.data.exponent),
            self.ex_scale.eq(entry_read.data.scale),
            entry_write.en.eq(self.entry_write),
            entry_write.addr.eq(self.lane * g.ex_slots + self.index),
            entry_write.data.eq(self.entry),
            x_read.addr.eq(self.lane),
            self.x_largest.eq(x_read.data),
            x_write.en.eq(self.x_write),
            x_write.addr.eq(self.lane),
            x_write.data.eq(self.magnitude),
        ]
        return m
