"""Shares of the possible, from counters."""

from __future__ import annotations

from collections.abc import Mapping

from fastcar_hw.config import AcceleratorConfig

__all__ = ["bandwidth_utilisation", "mac_utilisation"]


def bandwidth_utilisation(counters: Mapping[str, int]) -> float:
    """Return the beats read over the cycles; 0 without any cycle.

    Every beat read is useful as a whole.  Writes have a channel of their own and are mostly a few bytes of a beat, so
    they do not count.
    """
    beats = sum(value for name, value in counters.items() if name.startswith("beats_") and name != "beats_written")
    return beats / counters["cycles"] if counters["cycles"] else 0.0


def mac_utilisation(counters: Mapping[str, int], config: AcceleratorConfig) -> float:
    """Return the multiplications over elements times cycles; 0 without any cycle."""
    elements = config.cores * config.rows * config.cols
    return counters["macs"] / (elements * counters["cycles"]) if counters["cycles"] else 0.0
