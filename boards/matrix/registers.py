"""Registers of the matrix engine: an AXI4-Lite slave of six words."""

import enum

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.memory.axi import AxiLiteSignature, Response

from .engine import Product

__all__ = ["ADDRESS_BITS", "MAGIC", "MatrixRegister", "MatrixRegisters"]

#: "FCMX", little-endian: what the first register reads.
MAGIC = int.from_bytes(b"FCMX", "little")
ADDRESS_BITS = 5


class MatrixRegister(enum.IntEnum):
    """Byte offsets."""

    MAGIC = 0x00  #: reads `MAGIC`; read-only
    SHAPE = 0x04  #: steps in the low half, tiles in the high half
    VECTOR = 0x08  #: word address of the vector
    MATRIX = 0x0C  #: word address of the tiles
    RESULT = 0x10  #: word address of the results
    START = 0x14  #: shift in bits 0 to 6, exponent in bits 8 to 15; a write starts; bit 0 reads as busy


class MatrixRegisters(wiring.Component):
    """The registers.

    Parameters
    ----------
    config
        The accelerator that the matrix unit is of.
    depth
        Words of the memory.

    Attributes
    ----------
    axi : In, `AxiLiteSignature`
        The host.  Writes of whole words; an access to anything else, a write while ``busy``, a shape that cannot be
        multiplied, and a start without a shape get SLVERR and change nothing.
    product : Out, `Product`; start : Out
        For the engine.
    busy : In
        Of the engine.
    """

    def __init__(self, config: AcceleratorConfig, depth: int) -> None:
        self._config = config
        super().__init__(
            {
                "axi": In(AxiLiteSignature(ADDRESS_BITS)),
                "product": Out(Product(depth)),
                "start": Out(1),
                "busy": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        axi, product = self.axi, self.product
        word, failed = Signal(32), Signal()
        response = Mux(failed, Response.SLVERR.value, Response.OKAY.value)
        value = axi.w.payload.data
        targets = {
            MatrixRegister.SHAPE: [(product.steps, value[:16]), (product.tiles, value[16:])],
            MatrixRegister.VECTOR: [(product.vector, value)],
            MatrixRegister.MATRIX: [(product.matrix, value)],
            MatrixRegister.RESULT: [(product.result, value)],
            MatrixRegister.START: [
                (product.shift.as_unsigned(), value[:7]), (product.exponent.as_unsigned(), value[8:16]),
            ],
        }  # fmt: skip
        c = self._config
        steps, tiles = value[:16], value[16:]
        legal = {
            MatrixRegister.SHAPE: (steps % c.cols == 0) & (steps != 0) & (steps <= c.derived.max_vector) & (tiles != 0),
            MatrixRegister.START: product.steps != 0,
        }
        m.d.sync += self.start.eq(0)
        m.d.comb += [
            axi.b.payload.resp.eq(response),
            axi.r.payload.resp.eq(response),
            axi.r.payload.data.eq(word),
        ]
        with m.FSM():
            with m.State("IDLE"):
                both = axi.aw.valid & axi.w.valid
                m.d.comb += [axi.aw.ready.eq(both), axi.w.ready.eq(both), axi.ar.ready.eq(~both)]
                m.d.sync += [failed.eq(1), word.eq(0)]
                with m.If(both):
                    m.next = "WRITTEN"
                    with m.If(~self.busy & ~self.start & axi.w.payload.strb.all()), m.Switch(axi.aw.payload.addr):
                        for register, fields in targets.items():
                            with m.Case(register), m.If(legal.get(register, Const(1))):
                                m.d.sync += [failed.eq(0), *(target.eq(bits) for target, bits in fields)]
                                if register is MatrixRegister.START:
                                    m.d.sync += self.start.eq(1)
                with m.Elif(axi.ar.valid):
                    m.next = "ANSWER"
                    with m.Switch(axi.ar.payload.addr):
                        with m.Case(MatrixRegister.MAGIC):
                            m.d.sync += [failed.eq(0), word.eq(MAGIC)]
                        with m.Case(MatrixRegister.START):
                            m.d.sync += [failed.eq(0), word.eq(Cat(self.busy | self.start))]
            with m.State("WRITTEN"):
                m.d.comb += axi.b.valid.eq(1)
                with m.If(axi.b.ready):
                    m.next = "IDLE"
            with m.State("ANSWER"):
                m.d.comb += axi.r.valid.eq(1)
                with m.If(axi.r.ready):
                    m.next = "IDLE"
        return m
