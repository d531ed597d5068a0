"""Frames of the host link as bytes: requests are made, replies are found among whatever the line brings."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from boards.host.protocol import MAX_PAYLOAD, REPLY_START, REQUEST_START

__all__ = ["Reply", "ReplyFinder", "request_frame"]

_REQUEST = struct.Struct("<BBIH")
_REPLY = struct.Struct("<BBH")
_CHECKSUM = 4


@dataclass(frozen=True)
class Reply:
    """A reply whose checksum is right; ``status`` is a number, since a newer bridge may know more of them."""

    sequence: int
    status: int
    payload: bytes


def request_frame(sequence: int, command: int, address: int = 0, length: int = 0, payload: bytes = b"") -> bytes:
    """Return the bytes of a request; the checksum covers all but the first and itself."""
    body = _REQUEST.pack(sequence, command, address, length) + payload
    return bytes([REQUEST_START]) + body + zlib.crc32(body).to_bytes(_CHECKSUM, "little")


class ReplyFinder:
    """Find replies in the bytes of the line, noise between and before them included.

    Attributes
    ----------
    skipped
        Bytes that belonged to no reply.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.skipped = 0

    def clear(self) -> None:
        """Forget what came so far."""
        self._buffer.clear()
        self.skipped = 0

    def feed(self, raw: bytes) -> None:
        """Take bytes from the line."""
        self._buffer += raw

    def take(self) -> Reply | None:
        """Return the next reply, or None when no whole one is there."""
        while True:
            start = self._buffer.find(REPLY_START)
            self._skip(len(self._buffer) if start < 0 else start)
            head = 1 + _REPLY.size
            if len(self._buffer) < head:
                return None
            sequence, status, length = _REPLY.unpack_from(self._buffer, 1)
            if length > MAX_PAYLOAD:
                self._skip(1)
                continue
            end = head + length
            if len(self._buffer) < end + _CHECKSUM:
                return None
            body = bytes(self._buffer[1:end])
            if zlib.crc32(body) != int.from_bytes(self._buffer[end : end + _CHECKSUM], "little"):
                # A first byte within noise or data: a true reply may begin right behind it.
                self._skip(1)
                continue
            del self._buffer[: end + _CHECKSUM]
            return Reply(sequence, status, body[_REPLY.size :])

    def _skip(self, count: int) -> None:
        del self._buffer[:count]
        self.skipped += count
