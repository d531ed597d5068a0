"""ULX3S with an ECP5-85F: the model lives in the board's SDRAM, the host at the other end of the USB cable."""

from amaranth.hdl import Module
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.presets import MODELS

from .catalogue import BoardSpec
from .dram import SDRAM_PARTS, SdramController, SdramPins
from .ecp5.shell import make_clock
from .pins import connect_leds, connect_uart
from .system import BoardSystem

__all__ = ["PART", "SPEC", "Ulx3sCore", "Ulx3sTop"]

#: The memory on the board.
PART = SDRAM_PARTS["W9825G6KH-6"]
_CRYSTAL_HZ = 25_000_000


def _platform():
    from amaranth_boards.ulx3s import ULX3S_85F_Platform

    return ULX3S_85F_Platform(toolchain="Trellis")


SPEC = BoardSpec(
    name="ulx3s-85f", title="ULX3S-85F", family="ecp5", part="LFE5U-85F-6BG381C",
    config=AcceleratorConfig.for_model(
        MODELS["traffic"], name="ulx3s-85f", cores=2, rows=2, cols=8, lanes=8, vector_width=4, weight_fifo_depth=512,
        burst_beats=64, outstanding=4,
    ),
    clock_hz=50_000_000, baud=2_000_000, memory_bytes=PART.size, model="traffic", platform=_platform,
    top=lambda spec: Ulx3sTop(spec),
)  # fmt: skip


class Ulx3sCore(wiring.Component):
    """System and memory controller: everything that a simulation of the board simulates.

    Parameters
    ----------
    spec
        The board.

    Attributes
    ----------
    rx : In; tx : Out; leds : Out
        See `BoardSystem`.
    sdram : Out, `SdramPins`
        The memory; the shell adds a register in each direction.
    """

    #: Cycles that the shell adds to a read: registers for command and data, less the half that the memory's clock lags.
    READ_DELAY = 1

    def __init__(self, spec: BoardSpec) -> None:
        self._spec = spec
        super().__init__(
            {"rx": In(1, init=1), "tx": Out(1, init=1), "leds": Out(8), "sdram": Out(SdramPins(PART))}
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        spec, c = self._spec, self._spec.config
        m.submodules.system = system = BoardSystem(spec)
        m.submodules.memory = memory = SdramController(
            PART, spec.clock_hz, addr_width=c.address_width, data_width=c.derived.data_width,
            read_delay=self.READ_DELAY,
        )  # fmt: skip
        connect(m, system.read, memory.read)
        connect(m, system.write, memory.write)
        connect(m, memory.pins, flipped(self.sdram))
        m.d.comb += [system.rx.eq(self.rx), self.tx.eq(system.tx), self.leds.eq(system.leds)]
        return m


class Ulx3sTop(wiring.Component):
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
        pll = make_clock(m, platform, "clk25", _CRYSTAL_HZ, self._spec.clock_hz)
        m.submodules.core = core = Ulx3sCore(self._spec)
        connect_uart(m, platform, core.rx, core.tx)
        connect_leds(m, [platform.request("led", n, dir="-") for n in range(8)], core.leds)
        self._connect_memory(m, platform, core.sdram, pll)
        return m

    def _connect_memory(self, m: Module, platform: object, pins, pll) -> None:
        """Register everything at the pins; the memory's clock is half a period late, in the middle of each command."""
        names = {
            "clk_en": pins.cke, "cs": ~pins.cs_n, "ras": ~pins.ras_n, "cas": ~pins.cas_n, "we": ~pins.we_n,
            "ba": pins.ba, "a": pins.a, "dqm": pins.dqm,
        }  # fmt: skip
        port = platform.request("sdram", 0, dir="-")
        m.submodules.memory_clock = clock = io.Buffer("o", port.clk)
        m.d.comb += clock.o.eq(pll.late)
        for name, value in names.items():
            m.submodules[f"memory_{name}"] = pin = io.FFBuffer("o", getattr(port, name))
            m.d.comb += pin.o.eq(value)
        m.submodules.memory_dq = dq = io.FFBuffer("io", port.dq)
        m.d.comb += [dq.o.eq(pins.dq_o), dq.oe.eq(pins.dq_oe), pins.dq_i.eq(dq.i)]
