"""The memory map of a model on an accelerator, as documentation and as JSON."""

from __future__ import annotations

import json
from typing import Any

from .compiler.layout import Layout

__all__ = ["to_dict", "to_json", "to_markdown"]

_IMAGE = {
    "header": "magic, version, sizes, hashes of hardware and model, checksum",
    "program": "instructions of 16 bytes",
    "embedding": "a row of 16-bit values a token of the vocabulary",
    "positions": "a row of 16-bit values a place in the frame; empty without frame embedding",
    "rope": "cosines and sines, a row of 16-bit values a position",
    "layers": "parameters, layer after layer",
    "final_norm": "gains of the last norm, 16 bits each",
    "head": "output matrix, a row a token of the vocabulary",
}
_LAYER = {
    "attn_norm": "gains in front of the attention, 16 bits each",
    "query": "query matrix; for each tile two beats of scales, then a beat a K-step, as in every matrix",
    "key": "key matrix",
    "value": "value matrix",
    "output": "matrix behind the attention",
    "mlp_norm": "gains in front of the MLP, 16 bits each",
    "gate": "gate matrix of the MLP",
    "up": "up matrix of the MLP",
    "down": "down matrix of the MLP",
}
_HEAP = {
    "keys": "key cache: blocks of positions, by layer, lane and head",
    "values": "value cache: a beat a position and slice of a head",
    "slots": "replay cache: the MLP output of each place in the frame, by layer and lane",
    "tokens": "a beat a position and lane, the token in its first four bytes",
    "forced": "recorded decisions: a beat a position and layer, a bit a lane (1 = compute)",
}


def to_dict(layout: Layout) -> dict[str, Any]:
    """Return the map as plain values: image, one layer inside of it, and heap; all numbers are bytes."""

    def rows(sections: dict[str, tuple[int, int]], meanings: dict[str, str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "offset": offset, "bytes": size, "doc": meanings[name]}
            for name, (offset, size) in sections.items()
            if name in meanings
        ]

    layer = {name: (offset, beats * layout.beat) for name, (offset, beats) in layout.layer_sections.items()}
    return {
        "beat_bytes": layout.beat,
        "image": {"bytes": layout.image_bytes, "sections": rows(layout.image_sections, _IMAGE)},
        "layer": {
            "bytes": layout.layer_bytes,
            "count": layout.model.layers,
            "first": layout.image_sections["layers"][0],
            "sections": rows(layer, _LAYER),
        },
        "heap": {"bytes": layout.heap_bytes, "sections": rows(layout.heap_sections, _HEAP)},
    }


def to_json(layout: Layout) -> str:
    """Return the map as JSON text."""
    return json.dumps(to_dict(layout), indent=1) + "\n"


def to_markdown(layout: Layout) -> str:
    """Return the map as three tables."""
    found = to_dict(layout)
    layer, count = found["layer"], found["layer"]["count"]
    titles = {
        "image": f"## Image\n\n{found['image']['bytes']} bytes from `image_base` on.",
        "layer": f"## Layer\n\n{count} times {layer['bytes']} bytes from {layer['first']:#x} of the image on.",
        "heap": f"## Heap\n\n{found['heap']['bytes']} bytes from `heap_base` on; needs no initial content.",
    }
    lines = ["# Memory map", "", f"Offsets are in bytes; a beat is {layout.beat} bytes."]
    for name, title in titles.items():
        lines += ["", title, "", "| offset | bytes | section | content |", "|---|---|---|---|"]
        for row in found[name]["sections"]:
            lines.append(f"| {row['offset']:#x} | {row['bytes']} | `{row['name']}` | {row['doc']} |")
    return "\n".join(lines) + "\n"
