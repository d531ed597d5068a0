"""One row of the systolic array: activation memory and processing elements."""

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig

__all__ = ["ArrayRow", "BeatControl"]


class BeatControl(data.StructLayout):
    """Control that travels down the rows with a beat of weights.

    ``valid``: there is a beat; ``first``/``last``: it begins/ends a product (meaningless without ``valid``);
    ``addr``: byte of the activation memory (pass * ``act_depth`` + byte of the slot).
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        depth = config.derived.act_depth * config.derived.passes
        super().__init__({"valid": 1, "first": 1, "last": 1, "addr": range(depth)})


class ArrayRow(wiring.Component):
    """`cols` processing elements that share one activation a cycle.

    Weights and control come from the row above and leave for the row below one cycle later.  A processing
    element registers its operands, multiplies 8 x 8 bits signed, and accumulates: one multiplier, which is
    one DSP block.  Data registers have no reset, so that the block can absorb them.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    control : In, `BeatControl`; weights : In, ``cols`` x signed 8
        A beat from above.
    control_down, weights_down : Out
        The same, one cycle later.
    act_en, act_addr, act_data : In
        Write of ``vector_width`` activations at a byte address (a multiple of ``vector_width``); a beat that
        enters in a later cycle sees it.
    result_above : In; result : Out, ``cols`` x signed ``acc_width``
        Result registers, which form a shift chain down the rows.
    shift : In
        Take ``result_above``.

    Notes
    -----
    A product is in ``result`` `LATENCY` cycles after its last beat was at ``weights``; a capture wins over
    ``shift``.  One beat a cycle, and no stalls: a row is a rigid pipeline, and gaps are beats without
    ``valid``.
    """

    #: Cycles from ``control.last`` to ``result``: memory, operands, product, accumulator, result register.
    LATENCY = 5

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        g = config.derived
        weights = data.ArrayLayout(signed(8), config.cols)
        results = data.ArrayLayout(signed(g.acc_width), config.cols)
        super().__init__(
            {
                "control": In(BeatControl(config)),
                "weights": In(weights),
                "control_down": Out(BeatControl(config)),
                "weights_down": Out(weights),
                "act_en": In(1),
                "act_addr": In(range(g.act_depth * g.passes)),
                "act_data": In(data.ArrayLayout(signed(8), config.vector_width)),
                "result_above": In(results),
                "result": Out(results),
                "shift": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        # W divides the depth of a slot: every part of it is a multiple of cols.
        byte_bits = c.vector_width.bit_length() - 1

        m.submodules.activations = activations = memory.Memory(
            shape=data.ArrayLayout(signed(8), c.vector_width),
            depth=g.act_depth * g.passes // c.vector_width,
            init=[],
        )
        write, read = activations.write_port(), activations.read_port()
        m.d.comb += [
            write.en.eq(self.act_en),
            write.addr.eq(self.act_addr >> byte_bits),
            write.data.eq(self.act_data),
            read.en.eq(self.control.valid),
            read.addr.eq(self.control.addr >> byte_bits),
        ]

        # Stage 1: the word of activations is there; weights and control move on to the next row.
        weights = Signal(self.weights.shape(), reset_less=True)
        m.d.sync += [weights.eq(self.weights), self.control_down.eq(self.control)]
        m.d.comb += self.weights_down.eq(weights)
        # Stage 2: operands of the multipliers.
        activation = Signal(signed(8), reset_less=True)
        operands = Signal(self.weights.shape(), reset_less=True)
        # Stages 3 and 4: product, accumulator.  Control bits run beside them.
        flags = data.StructLayout({"valid": unsigned(1), "first": unsigned(1), "last": unsigned(1)})
        flags2, flags3, done = Signal(flags), Signal(flags), Signal()
        m.d.sync += [
            activation.eq(read.data[self.control_down.addr[:byte_bits]]),
            operands.eq(weights),
            flags2.valid.eq(self.control_down.valid),
            flags2.first.eq(self.control_down.first),
            flags2.last.eq(self.control_down.valid & self.control_down.last),
            flags3.eq(flags2),
            done.eq(flags3.last),
        ]
        for column in range(c.cols):
            product = Signal(signed(16), name=f"product_{column}", reset_less=True)
            acc = Signal(signed(g.acc_width), name=f"acc_{column}", reset_less=True)
            m.d.sync += product.eq(activation * operands[column])
            with m.If(flags3.valid):
                m.d.sync += acc.eq(Mux(flags3.first, 0, acc) + product)
            result = Signal(signed(g.acc_width), name=f"result_{column}", reset_less=True)
            with m.If(done):
                m.d.sync += result.eq(acc)
            with m.Elif(self.shift):
                m.d.sync += result.eq(self.result_above[column])
            m.d.comb += self.result[column].eq(result)
        return m
