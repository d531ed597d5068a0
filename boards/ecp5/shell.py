"""What every ECP5 board does around its system: clock, reset, pins."""

from amaranth.hdl import ClockDomain, ClockSignal, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer

from .pll import Pll

__all__ = ["connect_leds", "connect_uart", "make_clock"]


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


def connect_uart(m: Module, platform: object, rx: Signal, tx: Signal) -> None:
    """Connect the board's serial port; both directions are registered at the pins."""
    port = platform.request("uart", 0, dir="-")
    m.submodules.rx_pin = rx_pin = io.Buffer("i", port.rx)
    m.submodules.tx_pin = tx_pin = io.FFBuffer("o", port.tx)
    m.d.comb += [rx.eq(rx_pin.i), tx_pin.o.eq(tx)]


def connect_leds(m: Module, pins: list, leds: Signal) -> None:
    """Connect as many lamps as there are pins."""
    for number, port in enumerate(pins[: len(leds)]):
        m.submodules[f"led_pin_{number}"] = pin = io.FFBuffer("o", port)
        m.d.comb += pin.o.eq(leds[number])
