"""Memory image: program and parameters in one checksummed container."""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastcar_hw.config import AcceleratorConfig, ConfigError, ModelConfig
from fastcar_hw.isa import PROGRAM_BYTES, ProgramError, disassemble
from fastcar_hw.sequencer import ImageHeader

from .compiler.assembler import words
from .compiler.layout import Layout
from .compiler.program import build_program
from .quantized import QuantizedLinear, QuantizedModel

__all__ = ["Image", "ImageError", "compile_image", "matrix_tiles"]

#: Behind the table: its length, its checksum, and what marks the end.
_FOOTER, _FOOTER_MAGIC = "<II8s", b"FCARSECT"
_PAGE = 4096


class ImageError(ValueError):
    """An image is truncated, damaged, or for something else; the message is one line."""


@dataclass(frozen=True)
class Image:
    """A compiled model.

    Parameters
    ----------
    memory
        Bytes that the accelerator reads, from IMAGE base on.
    model, config_hash, model_hash
        Shapes; identities of hardware and model.
    program_words, heap_bytes
        Instructions; working memory that the run needs.
    sections
        Offset and bytes of each section.
    accelerator
        The hardware that the image is for.
    constants
        `QuantizedModel.constants`: with the memory, everything that the twin needs.
    """

    memory: bytes
    model: ModelConfig
    config_hash: int
    model_hash: int
    program_words: int
    heap_bytes: int
    sections: dict[str, tuple[int, int]]
    accelerator: AcceleratorConfig
    constants: dict[str, Any]

    @property
    def logit_fraction(self) -> int:
        """Fraction bits of the logits."""
        return self.constants["logit_fraction"]

    @property
    def layout(self) -> Layout:
        """Memory map."""
        return Layout(self.model, self.accelerator, self.program_words)

    def check(self, config: AcceleratorConfig) -> None:
        """Raise `ImageError` when the image is for other hardware."""
        if self.config_hash != config.hash:
            raise ImageError(
                f"image is for hardware {self.config_hash:016x}, but {config.name!r} is {config.hash:016x}"
            )

    def listing(self) -> list[str]:
        """Return the disassembled program, one line an instruction.

        Raises
        ------
        ImageError
            When a word is no instruction.
        """
        offset, _ = self.sections["program"]
        lines = []
        for number in range(self.program_words):
            raw = self.memory[offset + number * PROGRAM_BYTES : offset + (number + 1) * PROGRAM_BYTES]
            try:
                lines.append(f"{number:5d}  {disassemble(int.from_bytes(raw, 'little'))}")
            except ProgramError as error:
                raise ImageError(f"instruction {number}: {error}") from None
        return lines

    def to_bytes(self) -> bytes:
        """Return the container: memory, then a table with a checksum a section."""
        table = {
            "model": self.model.to_dict(),
            "accelerator": self.accelerator.to_dict(),
            "constants": self.constants,
            "heap_bytes": self.heap_bytes,
            "sections": [
                [name, offset, size, zlib.crc32(self.memory[offset : offset + size])]
                for name, (offset, size) in self.sections.items()
            ],
        }
        text = json.dumps(table, sort_keys=True).encode()
        return self.memory + text + struct.pack(_FOOTER, len(text), zlib.crc32(text), _FOOTER_MAGIC)

    def save(self, path: Path) -> None:
        """Write the container; the file appears as a whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(self.to_bytes())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path | str) -> Image:
        """Read a container and check everything that can be checked.

        Raises
        ------
        ImageError
            When it is unreadable, foreign, truncated or damaged.
        """
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ImageError(f"image {path} cannot be read: {error.strerror}") from None
        try:
            return cls.from_bytes(raw)
        except ImageError as error:
            raise ImageError(f"image {path} {error}") from None

    @classmethod
    def from_bytes(cls, raw: bytes) -> Image:
        """Return the image that `to_bytes` gave.

        Raises
        ------
        ImageError
            When the bytes are foreign, truncated or damaged; the message continues "image FILE ...".
        """
        memory, text = _split(raw)
        fields = _header(memory)
        try:
            return _described(memory, fields, json.loads(text))
        except ImageError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            # The checksum was right, so whoever wrote the table made the mistake.
            reason = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ImageError(f"has a table that makes no sense: {reason}") from None


def _split(raw: bytes) -> tuple[bytes, bytes]:
    """Return memory and table of a container."""
    if not raw.startswith(ImageHeader.MAGIC):
        raise ImageError("is not a FastCar image")
    footer = struct.calcsize(_FOOTER)
    if len(raw) < ImageHeader.BYTES + footer or not raw.endswith(_FOOTER_MAGIC):
        raise ImageError("is truncated")
    length, crc, _ = struct.unpack(_FOOTER, raw[-footer:])
    if length > len(raw) - footer - ImageHeader.BYTES or zlib.crc32(raw[-footer - length : -footer]) != crc:
        raise ImageError("is damaged: its table does not match its checksum")
    return raw[: -footer - length], raw[-footer - length : -footer]


def _header(memory: bytes) -> tuple[int, ...]:
    """Return the words of the header."""
    fields = struct.unpack("<16I", memory[: ImageHeader.BYTES])
    if zlib.crc32(memory[: ImageHeader.BYTES - 4]) != fields[ImageHeader.CRC_WORD]:
        raise ImageError("is damaged: its header does not match its checksum")
    version = fields[ImageHeader.VERSION_WORD]
    if version != ImageHeader.VERSION:
        raise ImageError(f"has format {version}, but this program reads {ImageHeader.VERSION}")
    return fields


def _described(memory: bytes, fields: tuple[int, ...], table: Any) -> Image:
    """Return an image whose header and table agree with the one memory map that they allow."""
    model = ModelConfig.from_dict(table["model"])
    accelerator = AcceleratorConfig.from_dict(table["accelerator"])
    accelerator.check_model(model)
    config_hash, model_hash = (
        fields[word] | fields[word + 1] << 32 for word in (ImageHeader.CONFIG_HASH_WORD, ImageHeader.MODEL_HASH_WORD)
    )
    if config_hash != accelerator.hash:
        raise ImageError(f"is for hardware {config_hash:016x}, but describes {accelerator.hash:016x}")
    program_words = fields[ImageHeader.PROGRAM_WORDS_WORD]
    if not 1 <= program_words <= accelerator.program_words:
        raise ImageError(f"must have 1..{accelerator.program_words} instructions, not {program_words}")
    # Everything else follows, so nothing has to be believed.
    layout = Layout(model, accelerator, program_words)
    for name, found, expected in (
        ("image bytes", fields[ImageHeader.IMAGE_BYTES_WORD], layout.image_bytes),
        ("bytes of memory", len(memory), layout.image_bytes),
        ("program offset", fields[ImageHeader.PROGRAM_OFFSET_WORD], layout.image_sections["program"][0]),
        ("heap bytes", fields[ImageHeader.HEAP_BYTES_WORD], layout.heap_bytes),
        ("heap bytes in its table", table["heap_bytes"], layout.heap_bytes),
    ):
        if found != expected:
            raise ImageError(f"must have {expected} {name}, not {found}")
    sections = layout.image_sections
    if [row[:3] for row in table["sections"]] != [[name, *place] for name, place in sections.items()]:
        raise ImageError("has sections that are not those of its model and hardware")
    for name, offset, size, crc in table["sections"]:
        if zlib.crc32(memory[offset : offset + size]) != crc:
            raise ImageError(f"is damaged: section {name} does not match its checksum")
    constants = table["constants"]
    if type(constants["logit_fraction"]) is not int:
        raise ImageError(f"must have an integer logit_fraction, not {constants['logit_fraction']!r}")
    image = Image(
        memory=memory, model=model, config_hash=config_hash, model_hash=model_hash, program_words=program_words,
        heap_bytes=layout.heap_bytes, sections=dict(sections), accelerator=accelerator, constants=constants,
    )  # fmt: skip
    image.listing()
    return image


def _rows16(values: np.ndarray, beat: int) -> bytes:
    """Return rows of int16, each padded to whole beats."""
    rows = np.atleast_2d(values).astype("<i2")
    padding = -2 * rows.shape[1] % beat
    raw = np.pad(rows.view(np.uint8).reshape(rows.shape[0], -1), ((0, 0), (0, padding)))
    return raw.tobytes()


def matrix_tiles(linear: QuantizedLinear, cols: int) -> bytes:
    """Return the tiles of a matrix: two beats of scales, then a beat a K-step."""
    out, width = linear.weight.shape
    weights = linear.weight.reshape(out // cols, cols, width).transpose(0, 2, 1).reshape(out // cols, -1)
    scales = linear.scale.astype("<u2").reshape(out // cols, cols).view(np.uint8)
    return np.concatenate((scales, np.ascontiguousarray(weights).view(np.uint8)), axis=1).tobytes()


def compile_image(model: QuantizedModel, config: AcceleratorConfig) -> tuple[Image, Layout]:
    """Compile a quantized model for an accelerator.

    Returns
    -------
    image, layout
        The container and its memory map.

    Raises
    ------
    ConfigError
        When the model does not fit the accelerator.
    ProgramError
        When its program does not.
    """
    program, layout = build_program(model, config)
    # As the driver places them: each from a page of its own on.
    needed = sum(-(-size // _PAGE) * _PAGE for size in (layout.image_bytes, layout.heap_bytes))
    if needed > 1 << config.address_width:
        raise ConfigError(
            f"address_width must be at least {(needed - 1).bit_length()} for the {needed} bytes that model "
            f"{model.config.name!r} takes, not {config.address_width}"
        )
    beat, cols = layout.beat, config.cols
    header = bytearray(layout.image_sections["header"][1])
    code = b"".join(word.to_bytes(PROGRAM_BYTES, "little") for word in words(program))
    parts = {
        "program": code,
        "embedding": _rows16(model.embedding, beat),
        "positions": b"" if model.positions is None else _rows16(model.positions, beat),
        "rope": _rows16(model.rope, beat),
        "layers": b"".join(
            _rows16(getattr(layer, name).gain, beat)
            if name.endswith("norm")
            else matrix_tiles(getattr(layer, name), cols)
            for layer in model.layers
            for name in layout.layer_sections
            if name != "end"
        ),
        "final_norm": _rows16(model.final_norm.gain, beat),
        "head": matrix_tiles(model.head, cols),
    }
    fields = [0] * 16
    fields[0], fields[1] = struct.unpack("<II", ImageHeader.MAGIC)
    fields[ImageHeader.VERSION_WORD] = ImageHeader.VERSION
    fields[ImageHeader.PROGRAM_WORDS_WORD] = len(program)
    fields[4], fields[5] = config.hash & 0xFFFFFFFF, config.hash >> 32
    fields[6], fields[7] = model.hash & 0xFFFFFFFF, model.hash >> 32
    fields[ImageHeader.PROGRAM_OFFSET_WORD] = layout.image_sections["program"][0]
    fields[ImageHeader.IMAGE_BYTES_WORD] = layout.image_bytes
    fields[ImageHeader.HEAP_BYTES_WORD] = layout.heap_bytes
    raw = struct.pack("<15I", *fields[:15])
    header[: ImageHeader.BYTES] = raw + struct.pack("<I", zlib.crc32(raw))
    memory = bytearray(header)
    for name, part in parts.items():
        offset, size = layout.image_sections[name]
        if len(memory) != offset or len(part) > size:
            raise ImageError(f"section {name} does not fit its place in the memory map")
        memory += part + bytes(size - len(part))
    image = Image(
        memory=bytes(memory),
        model=model.config,
        config_hash=config.hash,
        model_hash=model.hash,
        program_words=len(program),
        heap_bytes=layout.heap_bytes,
        sections=dict(layout.image_sections),
        accelerator=config.replace(trace=False),
        constants=model.constants(),
    )
    return image, layout
