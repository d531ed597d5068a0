"""Frames of the host link: the numbers that hardware and driver share (docs/host_link.md)."""

import enum
import struct
from dataclasses import dataclass

__all__ = ["MAX_PAYLOAD", "PROTOCOL_VERSION", "REPLY_START", "REQUEST_START", "Command", "Identity", "Status"]

#: First bytes of a frame in each direction.
REQUEST_START, REPLY_START = 0xFA, 0xF5
#: Bytes of payload at most; a memory access stays inside an aligned window of this size.
MAX_PAYLOAD = 256
PROTOCOL_VERSION = 1


class Command(enum.IntEnum):
    """What a request asks for."""

    IDENTIFY = 0  #: who is there; begins a session: the next request is never taken for a repetition
    READ_REGISTER = 1
    WRITE_REGISTER = 2
    READ_MEMORY = 3
    WRITE_MEMORY = 4
    STATUS = 5  #: bit 0 of the answer is the interrupt


class Status(enum.IntEnum):
    """How it went."""

    OK = 0
    BAD_COMMAND = 1  #: no such command, or its length is wrong
    BAD_ADDRESS = 2  #: not aligned to whole beats, or across the end of a window of `MAX_PAYLOAD` bytes
    BUS_ERROR = 3  #: the bus answered with an error


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Answer to IDENTIFY."""

    version: int
    data_width: int
    memory_bytes: int
    clock_hz: int
    config_hash: int

    _FORMAT = struct.Struct("<4sHHIIQ")
    MAGIC = b"FCHL"
    SIZE = _FORMAT.size

    def to_bytes(self) -> bytes:
        """Return the payload."""
        return self._FORMAT.pack(
            self.MAGIC, self.version, self.data_width, self.memory_bytes, self.clock_hz, self.config_hash
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Identity":
        """Return the identity of a payload; raise ValueError when it is none."""
        if len(raw) != cls.SIZE or raw[:4] != cls.MAGIC:
            raise ValueError("no identity")
        _, version, data_width, memory_bytes, clock_hz, config_hash = cls._FORMAT.unpack(raw)
        return cls(version=version, data_width=data_width, memory_bytes=memory_bytes, clock_hz=clock_hz,
                   config_hash=config_hash)  # fmt: skip
