"""SDR SDRAM parts: geometry, times, and what they are in cycles of a clock."""

import math
from dataclasses import dataclass, fields

from fastcar_hw.config import ConfigError

__all__ = ["SDRAM_PARTS", "SdramCycles", "SdramPart"]


@dataclass(frozen=True, kw_only=True)
class SdramCycles:
    """Times of a part in cycles: least distances between commands, and the longest between refreshes.

    Attributes
    ----------
    rcd, rp, ras, rc, rrd, rfc, wr, mrd
        Activate to access, precharge to activate, activate to precharge, activate to activate of a bank, and of two
        banks, refresh to anything, last write to precharge, mode to anything.
    refi
        Between two refreshes, on average.
    power_up
        Before the first command.
    cas
        From a read to its data.
    """

    rcd: int
    rp: int
    ras: int
    rc: int
    rrd: int
    rfc: int
    wr: int
    mrd: int
    refi: int
    power_up: int
    cas: int


@dataclass(frozen=True, kw_only=True)
class SdramPart:
    """A memory of 16-bit words.

    Parameters
    ----------
    name
        Order number.
    row_bits, column_bits, bank_bits
        Geometry.
    rcd_ns, rp_ns, ras_ns, rc_ns, rrd_ns, rfc_ns, wr_ns
        Least times; see `SdramCycles`.
    mode_cycles
        Cycles from the mode command to the next one.
    refresh_ms
        Time in which every row must be refreshed once.
    power_up_us
        Rest after power-up.
    cas2_hz, cas3_hz
        Fastest clock with a latency of 2 and of 3 cycles.

    Raises
    ------
    ConfigError
        When a value is not positive, or a clock too fast.
    """

    name: str
    row_bits: int
    column_bits: int
    bank_bits: int
    rcd_ns: float
    rp_ns: float
    ras_ns: float
    rc_ns: float
    rrd_ns: float
    rfc_ns: float
    wr_ns: float
    mode_cycles: int
    refresh_ms: float
    power_up_us: float
    cas2_hz: int
    cas3_hz: int

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "name" and value <= 0:
                raise ConfigError(f"{item.name} must be positive, not {value!r}")

    @property
    def size(self) -> int:
        """Bytes."""
        return 2 << (self.row_bits + self.column_bits + self.bank_bits)

    def cycles(self, clock_hz: int) -> SdramCycles:
        """Return the times at a clock."""
        if not 10_000_000 <= clock_hz <= self.cas3_hz:
            raise ConfigError(f"clock_hz must be in 10000000..{self.cas3_hz} for {self.name}, not {clock_hz!r}")

        def least(ns: float) -> int:
            return max(1, math.ceil(ns * clock_hz / 1e9 - 1e-6))

        return SdramCycles(
            rcd=least(self.rcd_ns), rp=least(self.rp_ns), ras=least(self.ras_ns), rc=least(self.rc_ns),
            rrd=least(self.rrd_ns), rfc=least(self.rfc_ns), wr=least(self.wr_ns), mrd=self.mode_cycles,
            refi=math.floor(self.refresh_ms * 1e-3 * clock_hz / (1 << self.row_bits)),
            power_up=least(self.power_up_us * 1e3), cas=2 if clock_hz <= self.cas2_hz else 3,
        )  # fmt: skip


#: 32 MB parts that ULX3S boards carry; the times are the slower ones of the two data sheets.
SDRAM_PARTS = {
    part.name: part
    for part in (
        SdramPart(
            name="W9825G6KH-6", row_bits=13, column_bits=9, bank_bits=2, rcd_ns=20, rp_ns=20, ras_ns=45, rc_ns=65,
            rrd_ns=15, rfc_ns=65, wr_ns=20, mode_cycles=2, refresh_ms=64, power_up_us=200, cas2_hz=100_000_000,
            cas3_hz=133_000_000,
        ),
    )
}  # fmt: skip
