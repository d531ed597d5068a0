"""What the two memory masters share: window check and burst lengths."""

from amaranth.hdl import Mux, Value

from ..config import AcceleratorConfig

__all__ = ["beats_to_boundary", "burst_length", "outside"]


def beats_to_boundary(config: AcceleratorConfig, addr: Value) -> Value:
    """Return the number of beats from an aligned address to the next 4 KiB boundary."""
    shift = config.derived.beat_bytes.bit_length() - 1
    return (4096 >> shift) - addr[shift:12]


def burst_length(config: AcceleratorConfig, addr: Value, left: Value) -> Value:
    """Return the length of the next burst: what is left, at most a burst, not across 4 KiB."""
    room = beats_to_boundary(config, addr)
    room = Mux(room > config.burst_beats, config.burst_beats, room)
    return Mux(left > room, room, left)


def outside(config: AcceleratorConfig, addr: Value, beats: Value, base: Value, limit: Value) -> Value:
    """Return 1 when ``beats`` beats from a 32-bit address leave [base, limit] or are misaligned."""
    size = config.derived.beat_bytes
    shift = size.bit_length() - 1
    end = addr + (beats << shift)
    return (addr[:shift] != 0) | (addr < base) | (end > limit + 1)
