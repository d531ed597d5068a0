"""Boards, memory parts, clocks: what can be known without a simulation."""

import dataclasses

import pytest

from boards.catalogue import board, boards
from boards.dram import SDRAM_PARTS, SdramController
from boards.ecp5 import PllSettings
from boards.flow.families import FAMILIES
from boards.host import Identity
from fastcar_hw.config import ConfigError

PART = SDRAM_PARTS["W9825G6KH-6"]


def test_times_in_cycles():
    times = PART.cycles(50_000_000)
    assert (times.rcd, times.rp, times.ras, times.rc, times.rrd, times.rfc, times.wr) == (1, 1, 3, 4, 1, 4, 1)
    assert (times.cas, times.power_up, times.refi) == (2, 10_000, 390)
    fast = PART.cycles(133_000_000)
    assert (fast.cas, fast.rcd, fast.ras, fast.rc, fast.rfc) == (3, 3, 6, 9, 9)
    # Every row within 64 ms, at any clock.
    for clock in (50_000_000, 80_000_000, 100_000_000, 133_000_000):
        assert PART.cycles(clock).refi * (1 << PART.row_bits) / clock <= 64e-3
    assert PART.size == 32 << 20


@pytest.mark.parametrize("clock", [1_000_000, 134_000_000])
def test_a_clock_that_the_memory_does_not_take_is_refused(clock):
    with pytest.raises(ConfigError, match="clock_hz must be in 10000000..133000000"):
        PART.cycles(clock)


@pytest.mark.parametrize("field", ["row_bits", "rcd_ns", "cas2_hz"])
def test_a_part_with_nothing_of_something_is_refused(field):
    with pytest.raises(ConfigError, match=f"{field} must be positive, not 0"):
        dataclasses.replace(PART, **{field: 0})


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize(
    ("change", "message"),
    [({"data_width": 48}, "data_width"), ({"addr_width": 20}, "addr_width must be at least 25"),
     ({"read_delay": 9}, "read_delay")],
)  # fmt: skip
def test_a_controller_that_cannot_be_is_refused(change, message):
    import gc

    with pytest.raises(ConfigError, match=message):
        SdramController(PART, 50_000_000, **{"addr_width": 32, "data_width": 64, **change})
    gc.collect()


@pytest.mark.parametrize(("given", "wanted"), [(25, 50), (25, 80), (100, 50), (25, 62.5), (48, 60), (12, 48)])
def test_the_pll_makes_exactly_what_is_asked(given, wanted):
    settings = PllSettings.choose(int(given * 1e6), int(wanted * 1e6))
    made = given * 1e6 / settings.reference * settings.feedback
    assert made == wanted * 1e6
    assert PllSettings.OSCILLATOR[0] <= made * settings.output <= PllSettings.OSCILLATOR[1]
    assert given * 1e6 / settings.reference >= PllSettings.DETECTOR[0]


def test_a_clock_that_the_pll_cannot_make_is_refused():
    with pytest.raises(ConfigError, match="clock must be a frequency that the PLL makes of 25000000 Hz, not 50000001"):
        PllSettings.choose(25_000_000, 50_000_001)


def test_an_unknown_board_lists_those_that_exist():
    with pytest.raises(ConfigError, match="unknown board 'abc'; boards are ulx3s-85f, ecpix5-85f"):
        board("abc")


def test_a_rate_that_a_board_cannot_make_is_refused():
    with pytest.raises(ConfigError, match="baud must be within 2 %"):
        dataclasses.replace(board("ulx3s-85f"), baud=21_000_000)


def test_identities_survive_their_bytes():
    identity = Identity(version=1, data_width=64, memory_bytes=1 << 25, clock_hz=50_000_000, config_hash=1 << 63)
    assert Identity.from_bytes(identity.to_bytes()) == identity
    for raw in (b"", identity.to_bytes()[:-1], b"x" + identity.to_bytes()[1:]):
        with pytest.raises(ValueError, match="no identity"):
            Identity.from_bytes(raw)


@pytest.mark.parametrize("name", list(boards()))
def test_every_board_elaborates_without_a_warning_and_has_its_constraints(name):
    spec = board(name)
    plan = spec.platform().prepare(spec.top(spec), name="top", emit_src=False)
    constraints = plan.files[f"top.{FAMILIES[spec.family].constraints}"]
    text = constraints if isinstance(constraints, str) else constraints.decode()
    assert "frequency" in text.lower() and "uart_0__rx__io" in text
    # The iCEBreaker runs from its crystal.
    assert ("EHXPLLL" in plan.files["top.il"]) == (spec.family == "ecp5")
