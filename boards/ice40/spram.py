"""The large single-port memories of an iCE40 UltraPlus."""

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fastcar_hw.config import ConfigError

from ..matrix.port import PortSignature

__all__ = ["Spram"]

_WORDS, _BITS = 1 << 14, 16


class Spram(wiring.Component):
    """Four blocks of 16,384 words of 16 bits, side by side and on top of one another.

    Parameters
    ----------
    depth, width
        Words, and bits of a word; multiples of a block's.

    Attributes
    ----------
    port : In, `PortSignature`
        As of `boards.matrix.port.SinglePortMemory`: the blocks hold their output while they are not selected.

    Raises
    ------
    ConfigError
        When no whole number of blocks makes the memory.
    """

    def __init__(self, depth: int, width: int) -> None:
        if depth <= 0 or depth % _WORDS or width <= 0 or width % _BITS:
            raise ConfigError(f"memory must be made of blocks of {_WORDS} x {_BITS} bits, not {depth} x {width}")
        self._banks, self._columns = depth // _WORDS, width // _BITS
        super().__init__({"port": In(PortSignature(depth, width))})

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        port = self.port
        address, bank = port.addr[:14], port.addr[14:]
        # Bank of the word that was read last.
        shown = Signal(range(self._banks))
        with m.If(port.en & (port.write == 0)):
            m.d.sync += shown.eq(bank)
        found = []
        for number in range(self._banks):
            selected = Signal(name=f"selected_{number}")
            m.d.comb += selected.eq(port.en & (bank == number))
            columns = []
            for column in range(self._columns):
                out = Signal(_BITS, name=f"out_{number}_{column}")
                strobe = port.write[2 * column : 2 * column + 2]
                m.submodules[f"spram_{number}_{column}"] = Instance(
                    "SB_SPRAM256KA",
                    i_CLOCK=ClockSignal(), i_CHIPSELECT=selected, i_STANDBY=0, i_SLEEP=0, i_POWEROFF=1,
                    i_ADDRESS=address, i_DATAIN=port.w_data[_BITS * column : _BITS * (column + 1)],
                    i_MASKWREN=Cat(strobe[0], strobe[0], strobe[1], strobe[1]), i_WREN=port.write != 0,
                    o_DATAOUT=out,
                )  # fmt: skip
                columns.append(out)
            found.append(Cat(columns))
        with m.Switch(shown):
            for number, word in enumerate(found):
                with m.Case(number):
                    m.d.comb += port.r_data.eq(word)
        return m
