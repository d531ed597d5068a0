"""iCEBreaker with an iCE40 UP5K: the matrix unit alone, with its weights in the device's single-port memories.

The smallest whole accelerator needs about three times the 5,280 cells of this device; its matrix unit fits, and makes
all products of a decode step, while the host's twin does the rest.
"""

from amaranth.hdl import Module
from amaranth.lib import wiring

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.presets import MODELS

from .catalogue import BoardSpec
from .ice40 import Spram
from .matrix import MatrixCore
from .pins import connect_leds, connect_uart

__all__ = ["SPEC", "IcebreakerTop"]


def _platform():
    from amaranth_boards.icebreaker import ICEBreakerPlatform

    return ICEBreakerPlatform(toolchain="IceStorm")


SPEC = BoardSpec(
    name="icebreaker", title="iCEBreaker", family="ice40", part="iCE40UP5K-SG48", kind="matrix",
    config=AcceleratorConfig.for_model(
        MODELS["test"], name="icebreaker", cores=1, rows=1, cols=4, lanes=1, vector_width=2, weight_fifo_depth=32,
        burst_beats=16, outstanding=1, program_words=512, address_width=20,
    ),
    clock_hz=12_000_000, baud=1_000_000, memory_bytes=128 << 10, model="test", platform=_platform,
    top=lambda spec: IcebreakerTop(spec),
)  # fmt: skip


class IcebreakerTop(wiring.Component):
    """The whole device; its clock is the crystal's, and the platform resets until the block RAM can be written.

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
        m.submodules.core = core = MatrixCore(self._spec, Spram)
        connect_uart(m, platform, core.rx, core.tx)
        connect_leds(m, [platform.request(name, dir="-") for name in ("led_g", "led_r")], core.leds)
        return m
