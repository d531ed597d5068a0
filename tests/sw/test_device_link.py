"""The link to a board, over a pseudo-terminal."""

import os
import random
import zlib

import pytest
from sw.board_model import CONFIG, BoardModel

from boards.host.protocol import Command
from fastcar_sw.engines.device import DeviceLink
from fastcar_sw.engines.device.protocol import ReplyFinder, request_frame
from fastcar_sw.engines.link import EngineError, RequestError

BAUD = 115_200
FAST = 0.05


@pytest.fixture
def board():
    model = BoardModel()
    yield model
    model.close()


def link_to(model, **options):
    return DeviceLink(model.port, CONFIG, BAUD, timeout=FAST, **options)


def reply(sequence, payload=b""):
    body = bytes([sequence, 0]) + len(payload).to_bytes(2, "little") + payload
    return b"\xf5" + body + zlib.crc32(body).to_bytes(4, "little")


def test_request_bytes():
    frame = request_frame(7, Command.WRITE_REGISTER, 0x120, 4, b"\x01\x02\x03\x04")
    assert frame[:13] == bytes.fromhex("fa 07 02 20010000 0400 01020304")
    assert frame[13:] == zlib.crc32(frame[1:13]).to_bytes(4, "little")


@pytest.mark.parametrize("seed", range(4))
def test_replies_are_found_in_noise_whatever_the_pieces(seed):
    draw = random.Random(seed)
    payloads = [bytes(draw.choice(b"\xf5\xfa\x00\x07") for _ in range(draw.randrange(40))) for _ in range(12)]
    raw = b"".join(bytes(draw.randrange(0xF5) for _ in range(draw.randrange(9))) + reply(i, p)
                   for i, p in enumerate(payloads))  # fmt: skip
    finder, found = ReplyFinder(), []
    while raw:
        size = draw.randrange(1, 20)
        finder.feed(raw[:size])
        raw = raw[size:]
        while (one := finder.take()) is not None:
            found.append(one)
    assert [(one.sequence, one.payload) for one in found] == list(enumerate(payloads))


def test_registers_memory_and_interrupt(board):
    data = bytes(random.Random(1).randrange(256) for _ in range(5003))
    with link_to(board) as link:
        assert (link.memory_bytes, link.identity.clock_hz) == (1 << 16, 1_000_000)
        link.write(0x40, 0xDEADBEEF)
        assert link.read(0x40) == 0xDEADBEEF
        seen = []
        link._progress = lambda done, total: seen.append((done, total))
        link.write_memory(0x1005, data)
        assert board.memory[0x1005 : 0x1005 + len(data)] == data
        assert not any(board.memory[:0x1005]) and not any(board.memory[0x1005 + len(data) :])
        assert link.read_memory(0x1005, len(data)) == data
        assert seen[-1][0] == seen[-1][1] and [d for d, _ in seen] == sorted(d for d, _ in seen)
        assert link.wait(1000) is False
        board.irq = 1
        assert link.wait(10**9) is True


def test_part_of_a_beat_leaves_the_rest(board):
    board.memory[:32] = bytes(range(32))
    with link_to(board) as link:
        link.write_memory(11, b"\xaa\xbb")
        link.write_memory(20, b"")
    assert board.memory[:32] == bytes(range(11)) + b"\xaa\xbb" + bytes(range(13, 32))


@pytest.mark.parametrize("fault", ["lose", "spoil", "noise"])
def test_a_write_whose_reply_is_damaged_is_done_once(board, fault):
    with link_to(board) as link:
        board.fault = {1: fault, 3: fault, 4: fault}
        link.write(0x10, 5)
        link.write(0x14, 6)
        assert link.read(0x14) == 6
    assert board.written == [0x10, 0x14]


def test_a_bus_error_is_named(board):
    with link_to(board) as link:
        with pytest.raises(EngineError, match="register at 0x0ffc answered with BUS_ERROR"):
            link.read(0xFFC)
        assert link.read(0x40) == 0


def test_memory_that_does_not_keep_a_byte_is_told(board):
    board.flip_at = 0x777
    with link_to(board) as link, pytest.raises(EngineError, match="memory at 0x777 must hold 0x00 .* not 0x01"):
        link.write_memory(0, bytes(8192))


def test_beyond_the_memory(board):
    with link_to(board) as link, pytest.raises(EngineError, match="memory has 65536 bytes, not 2 at 0xffff"):
        link.write_memory(0xFFFF, b"ab")


def test_an_absent_port():
    with pytest.raises(RequestError, match="port /dev/fastcar-none cannot be opened"):
        DeviceLink("/dev/fastcar-none", CONFIG, BAUD)


def test_a_busy_port(board):
    with link_to(board), pytest.raises(RequestError, match="cannot be opened: .*lock"):
        link_to(board)
    # And afterwards it is free.
    link_to(board).close()


def test_silence(board):
    board.mute = True
    with pytest.raises(EngineError, match="does not answer"):
        link_to(board)
    board.mute = False
    with link_to(board) as link:
        assert link.read(0) == 0


def test_garbage_points_to_the_baud_rate():
    model = BoardModel(garbage=b"\x80\xf5\x00\x10\xff\x33")
    try:
        with pytest.raises(EngineError, match="no reply; is it the board, and 115200 its baud rate"):
            link_to(model)
    finally:
        model.close()


def test_a_cable_pulled_in_a_transfer_and_the_next_session():
    model = BoardModel()
    with link_to(model) as link:
        model.fault = {5: "pull"}
        with pytest.raises(EngineError, match="went away|does not answer"):
            link.write_memory(0, bytes(4096))
    model.close()
    fresh = BoardModel()
    with link_to(fresh) as link:
        link.write_memory(0, b"12345678")
    fresh.close()
    assert fresh.memory[:8] == b"12345678"


def test_another_configuration_and_version():
    wrong = (({"config_hash": 5}, "must carry 'board' with the identity"), ({"version": 9}, "version 1, not 9"))
    for options, text in wrong:
        model = BoardModel(**options)
        with pytest.raises(EngineError, match=text):
            link_to(model)
        # The port is free again.
        os.close(os.open(model.port, os.O_RDWR | os.O_NOCTTY))
        model.close()
