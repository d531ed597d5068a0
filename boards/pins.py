"""Pins that every board has: serial port and lamps, registered on their way out."""

from amaranth.hdl import Module, Signal
from amaranth.lib import io

__all__ = ["connect_leds", "connect_uart"]


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
