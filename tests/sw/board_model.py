"""A board at the other end of a pseudo-terminal: a Python model of the bridge, with faults on demand."""

import os
import pty
import struct
import threading
import tty
import zlib
from contextlib import suppress

from boards.host.protocol import MAX_PAYLOAD, PROTOCOL_VERSION, Command, Identity, Status
from fastcar_hw.config import AcceleratorConfig

CONFIG = AcceleratorConfig(name="board", cols=8, vector_width=2, max_hidden=64)


class BoardModel:
    """Answers requests; ``fault`` maps the number of a request to what goes wrong with its reply.

    ``lose`` drops it, ``spoil`` breaks a bit, ``noise`` puts bytes before it, ``pull`` ends the board.
    """

    def __init__(self, *, config_hash=CONFIG.hash, version=PROTOCOL_VERSION, garbage=b"", memory_bytes=1 << 16):
        self.memory, self.registers, self.written = bytearray(memory_bytes), {}, []
        self.identity = Identity(version=version, data_width=64, memory_bytes=memory_bytes, clock_hz=1_000_000,
                                 config_hash=config_hash)  # fmt: skip
        self.fault, self.requests, self.garbage, self.irq, self.mute = {}, [], garbage, 0, False
        self.flip_at = None
        self.last = None
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port = os.ttyname(self._slave)
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        self._stopped = True
        if self._slave >= 0:
            # Wakes the thread, which closes the master; a pulled cable has done so before.
            with suppress(OSError):
                os.write(self._slave, b"\0")
            self._thread.join(5)
            os.close(self._slave)
            self._slave = -1
        assert not self._thread.is_alive()

    def _serve(self):
        try:
            buffer = b""
            while not self._stopped:
                buffer += os.read(self._master, 4096)
                if self.mute:
                    buffer = b""
                if self.garbage and buffer:
                    os.write(self._master, self.garbage)
                    buffer = b""
                buffer = self._requests(buffer)
        finally:
            os.close(self._master)

    def _requests(self, buffer):
        while (start := buffer.find(b"\xfa")) >= 0:
            buffer = buffer[start:]
            if len(buffer) < 9:
                return buffer
            sequence, command, address, length = struct.unpack_from("<BBIH", buffer, 1)
            size = length if command in (Command.WRITE_REGISTER, Command.WRITE_MEMORY) else 0
            if len(buffer) < 13 + size:
                return buffer
            body, check = buffer[1 : 9 + size], buffer[9 + size : 13 + size]
            buffer = buffer[13 + size :]
            if zlib.crc32(body) == int.from_bytes(check, "little"):
                self._answer(sequence, command, address, length, body[8:])
        return b""

    def _answer(self, sequence, command, address, length, data):
        number = len(self.requests)
        self.requests.append((sequence, Command(command), address, length))
        status, payload = self._do(sequence, command, address, length, data)
        body = struct.pack("<BBH", sequence, status, len(payload)) + payload
        frame = b"\xf5" + body + zlib.crc32(body).to_bytes(4, "little")
        fault = self.fault.get(number)
        if fault == "lose":
            return
        if fault == "spoil":
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        if fault == "noise":
            frame = b"\x00\xf5\xf5\x13" + frame
        if fault == "pull":
            self._stopped = True
            return
        os.write(self._master, frame)

    def _do(self, sequence, command, address, length, data):
        again, self.last = self.last == sequence, sequence
        if command == Command.IDENTIFY:
            self.last = None
            return Status.OK, self.identity.to_bytes()
        if command == Command.STATUS:
            return Status.OK, bytes([self.irq])
        if command == Command.READ_REGISTER:
            if address == 0xFFC:
                return Status.BUS_ERROR, b""
            return Status.OK, self.registers.get(address, 0).to_bytes(4, "little")
        if command == Command.WRITE_REGISTER:
            if not again:
                self.registers[address] = int.from_bytes(data, "little")
                self.written.append(address)
            return Status.OK, b""
        inside = address % MAX_PAYLOAD + length <= MAX_PAYLOAD
        if address % 8 or length % 8 or not length or not inside:
            return Status.BAD_ADDRESS, b""
        if command == Command.WRITE_MEMORY:
            self.memory[address : address + length] = data
            if self.flip_at is not None and address <= self.flip_at < address + length:
                self.memory[self.flip_at] ^= 1
            return Status.OK, b""
        return Status.OK, bytes(self.memory[address : address + length])
