"""A board at a serial port, as the driver wants it."""

from __future__ import annotations

import time
from collections.abc import Callable

import serial

from boards.host.protocol import MAX_PAYLOAD, PROTOCOL_VERSION, Command, Identity, Status
from fastcar_hw.config import AcceleratorConfig

from ..link import EngineError, Link, RequestError
from .protocol import Reply, ReplyFinder, request_frame

__all__ = ["DeviceLink"]

#: Attempts at a request.
_ATTEMPTS = 4
#: Seconds between two looks at the interrupt.
_POLL = 0.02
#: From so many bytes on, what was written to the memory is read again and compared.
_VERIFY_FROM = 4096


class DeviceLink(Link):
    """An accelerator on a board.

    Parameters
    ----------
    port
        Device file, name or URL (``socket://...``) of pyserial.
    config
        The accelerator that must be there.
    baud
        Of the line.
    timeout
        Seconds that an answer may take; longer than the bridge waits within a frame (a tenth of a second), so that a
        frame that was cut is given up before the request is repeated.
    progress
        Called with bytes done and bytes in total while large pieces are written and compared.
    identity
        What the board must say of itself; the accelerator's hash when missing (see `boards.BoardSpec.identity`).

    Attributes
    ----------
    identity
        What the board says of itself.

    Raises
    ------
    RequestError
        When the port cannot be opened: absent, busy, not allowed.
    EngineError
        When nobody answers, or somebody else.

    Notes
    -----
    One request at a time; it is repeated with its sequence number when no right answer comes, which the bridge does not
    do twice where that would matter.  The memory is written in whole beats: the rest of a beat is read first.
    """

    def __init__(self, port: str, config: AcceleratorConfig, baud: int, *, timeout: float = 0.5,
                 progress: Callable[[int, int], object] | None = None,
                 identity: int | None = None) -> None:  # fmt: skip
        self._expected = config.hash if identity is None else identity
        self.config, self._name, self._baud, self._timeout = config, port, baud, timeout
        self._progress = progress
        self._finder, self._sequence = ReplyFinder(), 0
        try:
            self._port = serial.serial_for_url(port, baudrate=baud, timeout=0.01, write_timeout=5.0, exclusive=True)
        except (OSError, ValueError) as error:
            # pyserial's own exception is an OSError.
            raise RequestError(f"port {port} cannot be opened: {_reason(error)}") from None
        try:
            self.identity = self._identify()
        except BaseException:
            self.close()
            raise
        self.memory_bytes = self.identity.memory_bytes
        # Half a second between two looks at position and cycles.
        self.batch = max(1, self.identity.clock_hz // 2)

    def read(self, offset: int) -> int:
        """Return a register."""
        raw = self._ask(Command.READ_REGISTER, offset, expect=4, what=f"register at {offset:#06x}")
        return int.from_bytes(raw, "little")

    def write(self, offset: int, value: int) -> None:
        """Write a register."""
        raw = value.to_bytes(4, "little")
        self._ask(Command.WRITE_REGISTER, offset, 4, raw, expect=0, what=f"register at {offset:#06x}")

    def read_memory(self, address: int, size: int) -> bytes:
        """Return a piece of the memory."""
        self._check_piece(address, size)
        beat = self.identity.data_width // 8
        first, end = address // beat * beat, -(-(address + size) // beat) * beat
        raw = b"".join(
            self._ask(Command.READ_MEMORY, at, count, expect=count, what=f"memory at {at:#x}")
            for at, count in _windows(first, end)
        )
        return raw[address - first : address - first + size]

    def write_memory(self, address: int, data: bytes) -> None:
        """Replace a piece of the memory; a large one is read again and compared."""
        self._check_piece(address, len(data))
        if not data:
            return
        beat = self.identity.data_width // 8
        before, after = address % beat, -(address + len(data)) % beat
        if before:
            data = self.read_memory(address - before, before) + data
            address -= before
        if after:
            data += self.read_memory(address + len(data), after)
        verify = len(data) >= _VERIFY_FROM
        done, total = 0, len(data) * (1 + verify)
        for at, count in _windows(address, address + len(data)):
            piece = data[at - address : at - address + count]
            self._ask(Command.WRITE_MEMORY, at, count, piece, expect=0, what=f"memory at {at:#x}")
            done = self._report(done + count, total)
        if not verify:
            return
        for at, count in _windows(address, address + len(data)):
            found = self.read_memory(at, count)
            wrong = next((i for i in range(count) if found[i] != data[at - address + i]), None)
            if wrong is not None:
                raise EngineError(
                    f"memory at {at + wrong:#x} must hold {data[at - address + wrong]:#04x} after it was written, "
                    f"not {found[wrong]:#04x}"
                )
            done = self._report(done + count, total)

    def wait(self, cycles: int) -> bool:
        """Wait for the interrupt for the time of so many cycles; one look each `_POLL` seconds."""
        end = time.monotonic() + cycles / self.identity.clock_hz
        while True:
            if self._ask(Command.STATUS, expect=1, what="status")[0] & 1:
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_POLL, left))

    def close(self) -> None:
        """Give the port back."""
        self._port.close()

    def _report(self, done: int, total: int) -> int:
        if self._progress is not None:
            self._progress(done, total)
        return done

    def _check_piece(self, address: int, size: int) -> None:
        if not 0 <= address <= address + size <= self.memory_bytes:
            raise EngineError(f"memory has {self.memory_bytes} bytes, not {size} at {address:#x}")

    def _identify(self) -> Identity:
        """Begin a session; the first attempts may end what an earlier one left half-sent."""
        raw = self._ask(Command.IDENTIFY, expect=Identity.SIZE, what="identity")
        try:
            identity = Identity.from_bytes(raw)
        except ValueError:
            raise EngineError(f"port {self._name} answers, but is no FastCar host link") from None
        if identity.version != PROTOCOL_VERSION:
            raise EngineError(
                f"host link at {self._name} must have version {PROTOCOL_VERSION}, not {identity.version}"
            )
        if identity.config_hash != self._expected:
            raise EngineError(
                f"board at {self._name} must carry {self.config.name!r} with the identity {self._expected:016x}, "
                f"not {identity.config_hash:016x}"
            )
        return identity

    def _ask(self, command: Command, address: int = 0, length: int = 0, payload: bytes = b"", *, expect: int,
             what: str) -> bytes:  # fmt: skip
        """Make a request until its reply comes; return the payload."""
        self._sequence = (self._sequence + 1) & 255
        frame = request_frame(self._sequence, command, address, length, payload)
        noise = 0
        for _ in range(_ATTEMPTS):
            reply = self._exchange(frame)
            if reply is None:
                noise += self._finder.skipped
                continue
            if reply.status != Status.OK:
                known = reply.status in list(Status)
                name = Status(reply.status).name if known else f"the unknown status {reply.status}"
                raise EngineError(f"{what} answered with {name}")
            if len(reply.payload) != expect:
                raise EngineError(f"{what} answered with {len(reply.payload)} bytes instead of {expect}")
            return reply.payload
        if noise:
            raise EngineError(
                f"port {self._name} sent {noise} bytes that are no reply; is it the board, and {self._baud} its baud "
                "rate?"
            )
        raise EngineError(f"port {self._name} does not answer ({what}, {_ATTEMPTS} attempts)")

    def _exchange(self, frame: bytes) -> Reply | None:
        """Send a request once; return its reply, or None when none came in time."""
        self._finder.clear()
        try:
            self._port.reset_input_buffer()
            self._port.write(frame)
            # Ten bits a byte, for the request and for the longest reply.
            end = time.monotonic() + self._timeout + 10 * (len(frame) + MAX_PAYLOAD + 16) / self._baud
            while time.monotonic() < end:
                self._finder.feed(self._port.read(max(1, self._port.in_waiting)))
                while (reply := self._finder.take()) is not None:
                    if reply.sequence == frame[1]:
                        return reply
        except OSError as error:
            raise EngineError(f"port {self._name} went away: {_reason(error)}") from None
        return None


def _windows(first: int, end: int) -> list[tuple[int, int]]:
    """Return address and size of the pieces that stay inside aligned windows of `MAX_PAYLOAD` bytes."""
    pieces = []
    while first < end:
        size = min(MAX_PAYLOAD - first % MAX_PAYLOAD, end - first)
        pieces.append((first, size))
        first += size
    return pieces


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
