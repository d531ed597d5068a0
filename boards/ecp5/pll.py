"""The phase-locked loop of an ECP5."""

from dataclasses import dataclass

from amaranth.hdl import Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import ConfigError

__all__ = ["Pll", "PllSettings"]


@dataclass(frozen=True, kw_only=True)
class PllSettings:
    """Dividers of an EHXPLLL whose first output is also its feedback.

    Attributes
    ----------
    reference, feedback, output
        Dividers of the input, of the feedback path, and of the oscillator.
    """

    reference: int
    feedback: int
    output: int

    #: Limits of the device in Hz (Lattice FPGA-DS-02012): phase detector, oscillator.
    DETECTOR = (3_125_000, 400_000_000)
    OSCILLATOR = (400_000_000, 800_000_000)

    @classmethod
    def choose(cls, input_hz: int, output_hz: int) -> "PllSettings":
        """Return the settings that give exactly ``output_hz``, with the oscillator nearest to the middle of its range.

        Raises
        ------
        ConfigError
            When no setting does.
        """
        middle = sum(cls.OSCILLATOR) // 2
        found = []
        for reference in range(1, 129):
            if not cls.DETECTOR[0] <= input_hz / reference <= cls.DETECTOR[1]:
                continue
            feedback, rest = divmod(output_hz * reference, input_hz)
            if rest or not 1 <= feedback <= 80:
                continue
            for output in range(1, 129):
                oscillator = output_hz * output
                if cls.OSCILLATOR[0] <= oscillator <= cls.OSCILLATOR[1]:
                    found.append((reference, abs(oscillator - middle), output, feedback))
        if not found:
            raise ConfigError(f"clock must be a frequency that the PLL makes of {input_hz} Hz, not {output_hz} Hz")
        reference, _, output, feedback = min(found)
        return cls(reference=reference, feedback=feedback, output=output)


class Pll(wiring.Component):
    """A clock, and the same clock half a period later.

    Parameters
    ----------
    input_hz, output_hz
        Frequencies.

    Attributes
    ----------
    i : In
        Reference clock.
    o : Out; late : Out
        The clock; the clock shifted by 180 degrees, for a memory that must see commands in the middle of their cycle.
    locked : Out
        The clocks are stable.

    Raises
    ------
    ConfigError
        When the device cannot make the frequency.

    Notes
    -----
    A primitive of the device: it is not simulated; board tops for simulation get their clock from outside.
    """

    i: In(1)
    o: Out(1)
    late: Out(1)
    locked: Out(1)

    def __init__(self, input_hz: int, output_hz: int) -> None:
        self.settings = PllSettings.choose(input_hz, output_hz)
        self._input_hz, self._output_hz = input_hz, output_hz
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        s = self.settings
        feedback = Signal()
        m.d.comb += self.o.eq(feedback)
        # A phase is counted in periods of the oscillator: the first output is centred at output - 1, and the second
        # one lags by half of its own period, with eighths of a period of the oscillator as rest.
        half = s.output * 4
        m.submodules.ehxplll = Instance(
            "EHXPLLL",
            a_FREQUENCY_PIN_CLKI=f"{self._input_hz / 1e6:g}",
            a_FREQUENCY_PIN_CLKOP=f"{self._output_hz / 1e6:g}",
            a_FREQUENCY_PIN_CLKOS=f"{self._output_hz / 1e6:g}",
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
            p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB", p_FEEDBK_PATH="CLKOP",
            p_CLKI_DIV=s.reference, p_CLKFB_DIV=s.feedback,
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=s.output, p_CLKOP_CPHASE=s.output - 1, p_CLKOP_FPHASE=0,
            p_CLKOS_ENABLE="ENABLED", p_CLKOS_DIV=s.output, p_CLKOS_CPHASE=s.output - 1 + half // 8,
            p_CLKOS_FPHASE=half % 8,
            i_CLKI=self.i, i_CLKFB=feedback, i_RST=0, i_STDBY=0, i_ENCLKOP=0, i_ENCLKOS=0,
            i_PHASESEL0=0, i_PHASESEL1=0, i_PHASEDIR=0, i_PHASESTEP=0, i_PHASELOADREG=0, i_PLLWAKESYNC=0,
            o_CLKOP=feedback, o_CLKOS=self.late, o_LOCK=self.locked,
        )  # fmt: skip
        return m
