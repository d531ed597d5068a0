"""Memory image: program and parameters in one checksummed container."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastcar_hw.config import AcceleratorConfig, ModelConfig
from fastcar_hw.isa import PROGRAM_BYTES, disassemble
from fastcar_hw.sequencer import ImageHeader

from .compiler.assembler import words
from .compiler.layout import Layout
from .compiler.program import build_program
from .quantized import QuantizedLinear, QuantizedModel

__all__ = ["Image", "ImageError", "compile_image"]

_FOOTER_MAGIC = b"FCARSECT"


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
        """Return the disassembled program, one line an instruction."""
        offset, _ = self.sections["program"]
        lines = []
        for number in range(self.program_words):
            raw = self.memory[offset + number * PROGRAM_BYTES : offset + (number + 1) * PROGRAM_BYTES]
            lines.append(f"{number:5d}  {disassemble(int.from_bytes(raw, 'little'))}")
        return lines

    def save(self, path: Path) -> None:
        """Write the container atomically: memory, then a table with a checksum a section."""
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
        tail = text + struct.pack("<II8s", len(text), zlib.crc32(text), _FOOTER_MAGIC)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.memory)
                file.write(tail)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: Path) -> Image:
        """Read a container and check everything that can be checked.

        Raises
        ------
        ImageError
            When it is unreadable, foreign, truncated or damaged.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ImageError(f"image {path} cannot be read: {error.strerror}") from None
        if not raw.startswith(ImageHeader.MAGIC):
            raise ImageError(f"image {path} is not a FastCar image")
        if len(raw) < ImageHeader.BYTES + 16 or raw[-8:] != _FOOTER_MAGIC:
            raise ImageError(f"image {path} is truncated")
        length, crc, _ = struct.unpack("<II8s", raw[-16:])
        if length > len(raw) - 16 - ImageHeader.BYTES or zlib.crc32(text := raw[-16 - length : -16]) != crc:
            raise ImageError(f"image {path} is damaged: its table does not match its checksum")
        table = json.loads(text)
        memory = raw[: -16 - length]
        fields = struct.unpack("<16I", memory[: ImageHeader.BYTES])
        if zlib.crc32(memory[: ImageHeader.BYTES - 4]) != fields[ImageHeader.CRC_WORD]:
            raise ImageError(f"image {path} is damaged: its header does not match its checksum")
        if fields[ImageHeader.VERSION_WORD] != ImageHeader.VERSION:
            raise ImageError(f"image {path} has format {fields[2]}, but this program reads {ImageHeader.VERSION}")
        sections = {}
        for name, offset, size, expected in table["sections"]:
            if zlib.crc32(memory[offset : offset + size]) != expected:
                raise ImageError(f"image {path} is damaged: section {name} does not match its checksum")
            sections[name] = (offset, size)
        return cls(
            memory=memory,
            model=ModelConfig.from_dict(table["model"]),
            config_hash=fields[4] | fields[5] << 32,
            model_hash=fields[6] | fields[7] << 32,
            program_words=fields[3],
            heap_bytes=table["heap_bytes"],
            sections=sections,
            accelerator=AcceleratorConfig.from_dict(table["accelerator"]),
            constants=table["constants"],
        )


def _rows16(values: np.ndarray, beat: int) -> bytes:
    """Return rows of int16, each padded to whole beats."""
    rows = np.atleast_2d(values).astype("<i2")
    padding = -2 * rows.shape[1] % beat
    raw = np.pad(rows.view(np.uint8).reshape(rows.shape[0], -1), ((0, 0), (0, padding)))
    return raw.tobytes()


def _matrix(linear: QuantizedLinear, cols: int) -> bytes:
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
    """
    program, layout = build_program(model, config)
    beat, cols = layout.beat, config.cols
    header = bytearray(layout.image_sections["header"][1])
    code = b"".join(word.to_bytes(PROGRAM_BYTES, "little") for word in words(program))
    parts = {
        "program": code,
        "embedding": _rows16(model.embedding, beat),
        "positions": b"" if model.positions is None else _rows16(model.positions, beat),
        "rope": _rows16(model.rope, beat),
        "layers": b"".join(
            _rows16(getattr(layer, name).gain, beat) if name.endswith("norm") else _matrix(getattr(layer, name), cols)
            for layer in model.layers
            for name in layout.layer_sections
            if name != "end"
        ),
        "final_norm": _rows16(model.final_norm.gain, beat),
        "head": _matrix(model.head, cols),
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
