"""ECPIX-5 with an ECP5UM5G-85F: a small model in block RAM.

The board's DDR3 needs a PHY with a training sequence, which there is no open one for in Amaranth; the small model that
fits the chip shows the rest.
"""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.presets import MODELS

from .catalogue import BoardSpec
from .ecp5.shell import make_clock
from .onchip import OnChipMemory
from .pins import connect_leds, connect_uart
from .system import BoardSystem

__all__ = ["SPEC", "Ecpix5Core", "Ecpix5Top"]

_OSCILLATOR_HZ = 100_000_000


def _platform():
    from amaranth_boards.ecpix5 import ECPIX585Platform

    return ECPIX585Platform(toolchain="Trellis")


SPEC = BoardSpec(
    name="ecpix5-85f", title="ECPIX-5 85F", family="ecp5", part="LFE5UM5G-85F-8BG554C",
    config=AcceleratorConfig.for_model(
        MODELS["test"], name="ecpix5-85f", cores=1, rows=1, cols=8, lanes=1, vector_width=4, weight_fifo_depth=128,
        burst_beats=16, outstanding=4, program_words=512,
    ),
    clock_hz=50_000_000, baud=2_000_000, memory_bytes=128 << 10, model="test", platform=_platform,
    top=lambda spec: Ecpix5Top(spec),
)  # fmt: skip


class Ecpix5Core(wiring.Component):
    """System and memory: everything that a simulation of the board simulates."""

    rx: In(1, init=1)
    tx: Out(1, init=1)
    leds: Out(8)

    def __init__(self, spec: BoardSpec) -> None:
        self._spec = spec
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        spec, c = self._spec, self._spec.config
        m.submodules.system = system = BoardSystem(spec)
        m.submodules.memory = memory = OnChipMemory(c.address_width, c.derived.data_width, spec.memory_bytes)
        connect(m, system.read, memory.read)
        connect(m, system.write, memory.write)
        m.d.comb += [system.rx.eq(self.rx), self.tx.eq(system.tx), self.leds.eq(system.leds)]
        return m


class Ecpix5Top(wiring.Component):
    """The whole device.

    Parameters
    ----------
    spec
        The board.
    """

    def __init__(self, spec: BoardSpec) -> None:
        self._spec = spec
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        m = Module()
        make_clock(m, platform, "clk100", _OSCILLATOR_HZ, self._spec.clock_hz)
        m.submodules.core = core = Ecpix5Core(self._spec)
        connect_uart(m, platform, core.rx, core.tx)
        colours = [platform.request("rgb_led", n, dir="-") for n in range(4)]
        connect_leds(m, [colour.g for colour in colours] + [colour.r for colour in colours], core.leds)
        return m
