"""Memory map: where everything lies, in bytes from the start of the image or of the heap (docs/architecture.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fastcar_hw.config import AcceleratorConfig, ModelConfig
from fastcar_hw.isa import PROGRAM_BYTES
from fastcar_hw.sequencer import ImageHeader

__all__ = ["Layout"]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Layout:
    """Offsets and sizes for one model on one accelerator.

    Parameters
    ----------
    model, config
        The pair; `AcceleratorConfig.check_model` must have passed.
    program_words
        Instructions.
    """

    model: ModelConfig
    config: AcceleratorConfig
    program_words: int

    @cached_property
    def beat(self) -> int:
        """Bytes of a beat."""
        return self.config.derived.beat_bytes

    def beats16(self, elements: int) -> int:
        """Beats of a vector of 16-bit values."""
        return _ceil_div(2 * elements, self.beat)

    def matrix_beats(self, out: int, width: int) -> int:
        """Beats of a weight matrix: for each tile two of scales and one a K-step."""
        return out // self.config.cols * (2 + width)

    @cached_property
    def layer_sections(self) -> dict[str, tuple[int, int]]:
        """Offset in the layer and size in beats of each section of a layer."""
        m = self.model
        sizes = {
            "attn_norm": self.beats16(m.hidden),
            "query": self.matrix_beats(m.q_dim, m.hidden),
            "key": self.matrix_beats(m.kv_dim, m.hidden),
            "value": self.matrix_beats(m.kv_dim, m.hidden),
            "output": self.matrix_beats(m.hidden, m.q_dim),
            "mlp_norm": self.beats16(m.hidden),
            "gate": self.matrix_beats(m.ffn, m.hidden),
            "up": self.matrix_beats(m.ffn, m.hidden),
            "down": self.matrix_beats(m.hidden, m.ffn),
        }
        table, offset = {}, 0
        for name, beats in sizes.items():
            table[name] = (offset, beats)
            offset += beats * self.beat
        table["end"] = (offset, 0)
        return table

    @cached_property
    def layer_bytes(self) -> int:
        """Bytes of a layer's parameters."""
        return self.layer_sections["end"][0]

    @cached_property
    def image_sections(self) -> dict[str, tuple[int, int]]:
        """Offset and bytes of each section of the image."""
        m = self.model
        align = max(self.beat, ImageHeader.BYTES)
        program = _ceil_div(self.program_words * PROGRAM_BYTES, align) * align
        sizes = {
            "header": align,
            "program": program,
            "embedding": m.vocab * self.beats16(m.hidden) * self.beat,
            "positions": m.tokens_per_frame * self.beats16(m.hidden) * self.beat if m.frame_embedding else 0,
            "rope": m.max_seq * self.beats16(m.head_dim) * self.beat,
            "layers": m.layers * self.layer_bytes,
            "final_norm": self.beats16(m.hidden) * self.beat,
            "head": self.matrix_beats(m.vocab, m.hidden) * self.beat,
        }
        return _stack(sizes)

    @cached_property
    def image_bytes(self) -> int:
        """Bytes of the image."""
        offset, size = self.image_sections["head"]
        return offset + size

    @cached_property
    def key_block(self) -> int:
        """Bytes of a block of keys."""
        return (self.model.head_dim + 2) * self.beat

    @cached_property
    def key_head(self) -> int:
        """Bytes of the keys of a head."""
        return self.model.max_seq // self.config.cols * self.key_block

    @cached_property
    def value_slice(self) -> int:
        """Bytes of `cols` channels of the values of a head."""
        return self.model.max_seq * self.beat

    @cached_property
    def slices(self) -> int:
        """Slices of a head."""
        return self.model.head_dim // self.config.cols

    @cached_property
    def slot(self) -> int:
        """Bytes of a replay slot."""
        return (1 + self.beats16(self.model.hidden)) * self.beat

    @cached_property
    def heap_sections(self) -> dict[str, tuple[int, int]]:
        """Offset and bytes of each region of the heap."""
        m, c = self.model, self.config
        pairs = m.layers * c.lanes
        return _stack(
            {
                "keys": pairs * m.kv_heads * self.key_head,
                "values": pairs * m.kv_heads * self.slices * self.value_slice,
                "slots": pairs * m.tokens_per_frame * self.slot,
                "tokens": m.max_seq * c.lanes * self.beat,
                "forced": m.max_seq * m.layers * self.beat,
            }
        )

    @cached_property
    def heap_bytes(self) -> int:
        """Bytes of the heap."""
        offset, size = self.heap_sections["forced"]
        return offset + size

    def token_offset(self, position: int, lane: int) -> int:
        """Heap offset of a token."""
        return self.heap_sections["tokens"][0] + (position * self.config.lanes + lane) * self.beat

    def forced_offset(self, position: int, layer: int) -> int:
        """Heap offset of a recorded decision."""
        return self.heap_sections["forced"][0] + (position * self.model.layers + layer) * self.beat


def _stack(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    table, offset = {}, 0
    for name, size in sizes.items():
        table[name] = (offset, size)
        offset += size
    return table
