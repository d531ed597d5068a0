"""The way to a bitstream, on a design that is placed within a minute: the host link with a small memory."""

import dataclasses
import json

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from boards import catalogue, ulx3s
from boards.ecp5.shell import make_clock
from boards.flow import build
from boards.flow.report import table_row, to_markdown
from boards.host import HostBridge, Identity
from boards.onchip import OnChipMemory
from boards.pins import connect_leds, connect_uart
from fastcar_hw.export import ToolError
from fastcar_sw.cli.app import run_command


class LinkTop(wiring.Component):
    """Host link and memory on a ULX3S, without an accelerator."""

    def __init__(self, spec):
        self._spec = spec
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        spec = self._spec
        make_clock(m, platform, "clk25", 25_000_000, spec.clock_hz)
        identity = Identity(version=1, data_width=32, memory_bytes=2048, clock_hz=spec.clock_hz, config_hash=1)
        m.submodules.bridge = bridge = HostBridge(identity, register_width=12, addr_width=16, baud=spec.baud)
        m.submodules.memory = memory = OnChipMemory(16, 32, 2048)
        wiring.connect(m, bridge.read, memory.read)
        wiring.connect(m, bridge.write, memory.write)
        connect_uart(m, platform, bridge.rx, bridge.tx)
        connect_leds(m, [platform.request("led", 0, dir="-")], bridge.active)
        return m


SPEC = dataclasses.replace(ulx3s.SPEC, name="link", title="Link only", memory_bytes=2048, top=LinkTop)
#: More than an ECP5 can do.
FAST = dataclasses.replace(SPEC, name="fast", clock_hz=300_000_000)


@pytest.fixture
def known(monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "boards", lambda: {"link": SPEC, "fast": FAST})
    monkeypatch.setenv("FASTCAR_CACHE", str(tmp_path / "cache"))


def test_a_bitstream_is_built_once(known, tmp_path):
    assert run_command(["build", "--board", "link", "--out", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"link.bit", "route.log", "report.json", "report.md", "utilisation.png"}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["met"] and report["clock_hz"] == 50_000_000
    best = report["best"]
    assert all(0 < best["resources"][name]["used"] < 2500 for name in ("LUT", "FF", "BRAM"))
    assert best["resources"]["DSP"] == {"used": 0, "available": 156}
    (clock,) = (c for c in best["clocks"].values() if c["constraint_hz"] == 50e6)
    assert clock["achieved_hz"] >= 50e6
    assert best["critical_path"]["delay_ns"] > 1 and best["critical_path"]["cells"] >= 1
    # A bitstream begins with comments, then the preamble of the device.
    assert b"\xff\xff\xbd\xb3" in (tmp_path / "out" / "link.bit").read_bytes()[:2000]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "The clock is met" in text and "LFE5U-85F" in text

    steps = []
    again = build(SPEC, tmp_path / "cache" / "boards", [1], 1, lambda step, *_: steps.append(step))
    assert steps == ["elaborate"] and again.met
    assert again.bitstream.read_bytes() == (tmp_path / "out" / "link.bit").read_bytes()
    assert table_row(again).startswith("| link | ulx3s-85f | 50 MHz |")
    assert "Bitstream of seed 1" in to_markdown(SPEC, again)


def test_a_clock_that_is_missed_is_a_failure(known, tmp_path, capfd):
    assert run_command(["build", "--board", "fast", "--out", str(tmp_path / "out")]) == 1
    assert "clock of fast missed" in capfd.readouterr().err
    assert "The clock is MISSED" in (tmp_path / "out" / "report.md").read_text()


def test_an_unknown_board_and_a_missing_tool_are_bad_input(known, tmp_path, capfd, monkeypatch):
    assert run_command(["build", "--board", "none", "--out", str(tmp_path / "out")]) == 2
    assert "unknown board 'none'; boards are link, fast" in capfd.readouterr().err

    def missing(name):
        raise ToolError(f"{name} is not installed")

    monkeypatch.setattr("boards.flow.bitstream.find_tool", missing)
    assert run_command(["build", "--board", "link", "--out", str(tmp_path / "out")]) == 2
    assert "is not installed" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
