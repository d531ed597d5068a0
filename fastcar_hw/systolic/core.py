"""A core: `rows` array rows, weights moving down, results moving down behind them."""

import itertools

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from .row import ArrayRow, BeatControl

__all__ = ["SystolicCore"]


class SystolicCore(wiring.Component):
    """Output-stationary array of `rows` x `cols` processing elements.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    control : In, `BeatControl`; weights : In, ``cols`` x signed 8
        A beat; all cores get the same ones.
    act_en, act_index, act_addr, act_data : In
        Write of ``vector_width`` activations into slot ``act_index`` = pass * rows + row, at byte
        ``act_addr`` of the slot (a multiple of ``vector_width``).
    shift : In; result : Out, ``cols`` x signed ``acc_width``
        The bottom row's results; ``shift`` brings those of the row above.

    Notes
    -----
    The results of all rows are there `latency` cycles after the last beat of a product was at ``weights``.
    One beat a cycle.  An activation is seen by beats that enter `ACT_LATENCY` or more cycles after its
    write.
    """

    #: The write port is registered: its data fan out to all rows of all cores.
    ACT_LATENCY = 2

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g = config.derived
        super().__init__(
            {
                "control": In(BeatControl(config)),
                "weights": In(data.ArrayLayout(signed(8), config.cols)),
                "act_en": In(1),
                "act_index": In(g.slot_bits),
                "act_addr": In(range(g.act_depth)),
                "act_data": In(data.ArrayLayout(signed(8), config.vector_width)),
                "shift": In(1),
                "result": Out(data.ArrayLayout(signed(g.acc_width), config.cols)),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from the last beat to the results of all rows."""
        return ArrayRow.LATENCY + config.rows - 1

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived

        act_data = Signal(self.act_data.shape(), reset_less=True)
        act_addr = Signal(range(g.act_depth * g.passes), reset_less=True)
        act_en = Signal(c.rows)
        m.d.sync += [act_data.eq(self.act_data), act_en.eq(0)]
        with m.Switch(self.act_index):
            for slot in range(g.slots):
                with m.Case(slot):
                    m.d.sync += [
                        act_en[slot % c.rows].eq(self.act_en),
                        act_addr.eq(self.act_addr + slot // c.rows * g.act_depth),
                    ]

        rows = [ArrayRow(c) for _ in range(c.rows)]
        for number, row in enumerate(rows):
            m.submodules[f"row_{number}"] = row
            m.d.comb += [
                row.act_en.eq(act_en[number]),
                row.act_addr.eq(act_addr),
                row.act_data.eq(act_data),
                row.shift.eq(self.shift),
            ]
        m.d.comb += [rows[0].control.eq(self.control), rows[0].weights.eq(self.weights)]
        for above, below in itertools.pairwise(rows):
            m.d.comb += [
                below.control.eq(above.control_down),
                below.weights.eq(above.weights_down),
                below.result_above.eq(above.result),
            ]
        m.d.comb += self.result.eq(rows[-1].result)
        return m
