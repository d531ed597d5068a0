"""What every ECP5 board does around its system: clock and reset."""

from amaranth.hdl import ClockDomain, ClockSignal, Module
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer

from .pll import Pll

__all__ = ["make_clock"]


def make_clock(m: Module, platform: object, name: str, input_hz: int, output_hz: int) -> Pll:
    """Add the domain `sync` from a pin through the PLL; reset lasts until the clock is stable.

    Parameters
    ----------
    m, platform
        Where.
    name
        Resource of the pin.
    input_hz, output_hz
        Its frequency, and that of `sync`.
    """
    m.submodules.clock_pin = pin = io.Buffer("i", platform.request(name, dir="-"))
    m.submodules.pll = pll = Pll(input_hz, output_hz)
    m.domains.sync = ClockDomain()
    m.d.comb += [pll.i.eq(pin.i), ClockSignal().eq(pll.o)]
    m.submodules.reset = ResetSynchronizer(~pll.locked)
    return pll
