"""Images on disk: whatever happens to the bytes, loading gives the same image or an `ImageError`."""

import json
import struct
import zlib
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_hw.config import ConfigError
from fastcar_hw.isa import ProgramError
from fastcar_hw.presets import accelerator_preset, model_preset
from fastcar_sw.compiler.decompile import quantized_model
from fastcar_sw.image import Image, ImageError, compile_image
from fastcar_sw.quantize import quantize, random_model

FOOTER = struct.calcsize("<II8s")
HEADER = 64
WORD = st.integers(0, 2**32 - 1)
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.lists(st.integers(-5, 5), max_size=3), st.just({"layers": 1}), st.just(10**400),
)  # fmt: skip


@cache
def integers(seed=1):
    shapes = model_preset("test")
    return quantize(shapes, random_model(shapes, seed))


@cache
def whole():
    image = compile_image(integers(), accelerator_preset("test"))[0]
    return image, image.to_bytes()


def parts():
    """Return memory and table of the container."""
    image, raw = whole()
    return image.memory, json.loads(raw[len(image.memory) : -FOOTER])


def packed(memory, table):
    """Return a container with right checksums, whatever it says."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return memory + text + struct.pack("<II8s", len(text), zlib.crc32(text), b"FCARSECT")


def with_header(memory, **words):
    fields = list(struct.unpack("<15I", memory[: HEADER - 4]))
    for name, value in words.items():
        fields[int(name[1:])] = value
    head = struct.pack("<15I", *fields)
    return head + struct.pack("<I", zlib.crc32(head)) + memory[HEADER:]


def places(value, path=()):
    """Yield the path of every value of nested JSON."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def put(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def test_an_image_survives_the_disk(tmp_path):
    image, raw = whole()
    image.save(tmp_path / "a.fcar")
    assert (tmp_path / "a.fcar").read_bytes() == raw
    assert Image.load(tmp_path / "a.fcar") == image
    assert [path.name for path in tmp_path.iterdir()] == ["a.fcar"]


def test_an_image_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "a.fcar").mkdir()
    with pytest.raises(OSError, match="a.fcar"):
        whole()[0].save(tmp_path / "a.fcar")
    assert [path.name for path in tmp_path.iterdir()] == ["a.fcar"]


@pytest.mark.parametrize("content", [b"", b"F", b"GIF89a", b"\0" * 1000, b"FCARIMG1", b"FCARIMG1" + b"\0" * 100])
def test_strangers_are_refused(tmp_path, content):
    (tmp_path / "a.fcar").write_bytes(content)
    with pytest.raises(ImageError, match="a.fcar is (not a FastCar image|truncated)"):
        Image.load(tmp_path / "a.fcar")


def test_what_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none", tmp_path / ("x" * 300)):
        with pytest.raises(ImageError, match="cannot be read"):
            Image.load(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_truncation_is_found(data):
    raw = whole()[1]
    end = data.draw(st.one_of(st.integers(0, len(raw) - 1), st.integers(len(raw) - FOOTER, len(raw) - 1),
                              st.integers(0, HEADER)))  # fmt: skip
    with pytest.raises(ImageError):
        Image.from_bytes(raw[:end])
    with pytest.raises(ImageError):
        Image.from_bytes(raw[:end] + raw[end + 1 :])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_flipped_bit_is_found(data):
    image, raw = whole()
    at = data.draw(st.one_of(st.integers(0, len(raw) - 1), st.integers(len(image.memory), len(raw) - 1)))
    flipped = bytearray(raw)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ImageError):
        Image.from_bytes(bytes(flipped))


def test_every_byte_of_header_and_footer_counts():
    raw = whole()[1]
    for at in (*range(HEADER), *range(len(raw) - FOOTER, len(raw))):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            with pytest.raises(ImageError):
                Image.from_bytes(bytes(flipped))


@pytest.mark.parametrize("name", list(whole()[0].sections))
def test_every_section_is_guarded(name):
    image, raw = whole()
    offset, size = image.sections[name]
    for at in (offset, offset + size // 2, offset + size - 1):
        flipped = bytearray(raw)
        flipped[at] ^= 0x10
        with pytest.raises(ImageError, match="damaged|not a FastCar image"):
            Image.from_bytes(bytes(flipped))


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_table_gives_an_image_or_an_image_error(data):
    """Checksums are right here: what the table says is wrong."""
    memory, table = parts()
    path = data.draw(st.sampled_from(list(places(table))))
    changed = put(table, path, data.draw(JSON_VALUES))
    try:
        image = Image.from_bytes(packed(memory, changed))
        quantized_model(image)
    except ImageError:
        return
    assert image.memory == memory


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 14), st.one_of(WORD, st.sampled_from([0, 1, 2**31, 2**32 - 1])))
def test_any_header_gives_an_image_or_an_image_error(word, value):
    memory, table = parts()
    changed = with_header(memory, **{f"w{word}": value})
    table = put(table, ("sections", 0, 3), zlib.crc32(changed[: table["sections"][0][2]]))
    try:
        image = Image.from_bytes(packed(changed, table))
        quantized_model(image)
    except ImageError:
        return
    # Words that mean nothing may hold anything.
    assert value == struct.unpack_from("<I", memory, 4 * word)[0] or 11 <= word <= 14


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000, b"1" * 5000])
def test_a_table_that_is_none_is_refused(text):
    with pytest.raises(ImageError, match="makes no sense"):
        Image.from_bytes(packed(parts()[0], text))


def test_absurd_lengths_are_refused():
    raw = whole()[1]
    for length in (0, len(raw), 2**31, 2**32 - 1):
        with pytest.raises(ImageError):
            Image.from_bytes(raw[:-FOOTER] + struct.pack("<I", length) + raw[-FOOTER + 4 :])


def test_sections_must_be_those_of_model_and_hardware():
    memory, table = parts()
    for change in (["program", 0, 64, 0], ["program", len(memory), 2**40, 0], ["program", -64, 64, 0], ["rope"], []):
        with pytest.raises(ImageError, match="sections"):
            Image.from_bytes(packed(memory, put(table, ("sections", 1), change)))


def test_a_program_of_nonsense_is_refused():
    image, _ = whole()
    _, table = parts()
    offset, size = image.sections["program"]
    memory = image.memory[:offset] + b"\xff" * size + image.memory[offset + size :]
    with pytest.raises(ImageError, match="instruction 0: "):
        Image.from_bytes(packed(memory, put(table, ("sections", 1, 3), zlib.crc32(b"\xff" * size))))


def test_a_model_that_does_not_fit_is_not_compiled():
    config = accelerator_preset("test")
    with pytest.raises(ConfigError, match="model layers must be at most 1"):
        compile_image(integers(), config.replace(max_layers=1))
    with pytest.raises(ProgramError, match="program_words is 64"):
        compile_image(integers(), config.replace(program_words=64))
