"""From an image back to the quantized model, so that the twin can run what the hardware runs."""

from __future__ import annotations

import numpy as np

from ..image import Image, ImageError
from ..model import ModelError
from ..quantized import LINEARS, NORMS, QuantizedModel, assemble

__all__ = ["quantized_model"]


def quantized_model(image: Image) -> QuantizedModel:
    """Return the model that an image was compiled from, bit for bit.

    Raises
    ------
    ImageError
        When the content is no model, or not the one whose hash the image carries.
    """
    try:
        model = assemble(image.model, _arrays(image), image.constants, "image")
        found = model.hash
    except (AttributeError, KeyError, TypeError, ValueError, ModelError) as error:
        raise ImageError(f"image does not hold a model: {error}") from None
    if found != image.model_hash:
        raise ImageError(f"image must hold the model {image.model_hash:016x}, not {found:016x}")
    return model


def _arrays(image: Image) -> dict[str, np.ndarray]:
    m, layout, cols = image.model, image.layout, image.accelerator.cols
    memory = np.frombuffer(image.memory, dtype=np.uint8)

    def rows16(offset: int, rows: int, width: int) -> np.ndarray:
        stride = layout.beats16(width) * layout.beat
        raw = memory[offset : offset + rows * stride].reshape(rows, stride)[:, : 2 * width]
        return np.ascontiguousarray(raw).view("<i2").astype(np.int16)

    def matrix(offset: int, out: int, width: int) -> dict[str, np.ndarray]:
        """Take the tiles apart: two beats of scales, then a beat a K-step."""
        tiles = memory[offset : offset + layout.matrix_beats(out, width) * layout.beat].reshape(out // cols, -1)
        scales = np.ascontiguousarray(tiles[:, : 2 * cols]).view("<u2").reshape(out)
        weights = tiles[:, 2 * cols :].reshape(out // cols, width, cols).transpose(0, 2, 1).reshape(out, width)
        return {"scale": scales.astype(np.uint16), "weight": np.ascontiguousarray(weights).view(np.int8)}

    start = {name: offset for name, (offset, _) in image.sections.items()}
    arrays = {
        "embedding": rows16(start["embedding"], m.vocab, m.hidden),
        "rope": rows16(start["rope"], m.max_seq, m.head_dim),
        "final_norm.gain": rows16(start["final_norm"], 1, m.hidden)[0],
    }
    if m.frame_embedding:
        arrays["positions"] = rows16(start["positions"], m.tokens_per_frame, m.hidden)
    shapes = {
        "query": (m.q_dim, m.hidden), "key": (m.kv_dim, m.hidden), "value": (m.kv_dim, m.hidden),
        "output": (m.hidden, m.q_dim), "gate": (m.ffn, m.hidden), "up": (m.ffn, m.hidden), "down": (m.hidden, m.ffn),
    }  # fmt: skip
    for i in range(m.layers):
        base = start["layers"] + i * layout.layer_bytes
        for name in NORMS:
            arrays[f"layers.{i}.{name}.gain"] = rows16(base + layout.layer_sections[name][0], 1, m.hidden)[0]
        for name in LINEARS:
            found = matrix(base + layout.layer_sections[name][0], *shapes[name])
            arrays |= {f"layers.{i}.{name}.{part}": value for part, value in found.items()}
    return arrays | {f"head.{part}": v for part, v in matrix(start["head"], m.vocab, m.hidden).items()}
