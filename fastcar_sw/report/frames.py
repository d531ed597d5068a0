"""Frames as pictures: where their tokens are, which of them differ, and which the hardware computed."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from .data import ReportData, RunData

__all__ = ["allowed", "as_tiles", "changed_tokens", "liveliest_lane", "png", "token_grid"]

#: Marks tokens that differ: nothing in nature, and on few roads, is of this colour.
_MARK = (255, 0, 200)


def token_grid(report: ReportData) -> tuple[int, int] | None:
    """Return rows and columns of a frame's tokens, if its tokens are square patches; None otherwise."""
    height, width = report.runs[0].video.shape[2:4]
    side = math.isqrt(height * width // report.tokens_per_frame)
    if side == 0 or height % side or width % side or (height // side) * (width // side) != report.tokens_per_frame:
        return None
    return height // side, width // side


def liveliest_lane(run: RunData) -> int:
    """Return the lane whose pixels change most from frame to frame; the first of equals."""
    changes = run.video[:, 1:] != run.video[:, :-1]
    return int(changes.reshape(len(changes), -1).sum(1).argmax())


def changed_tokens(video: np.ndarray, reference: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return where patches of two videos, uint8 (frames, H, W, 3), differ: bool (frames, rows, columns)."""
    (frames, height, width, _), (rows, columns) = video.shape, grid
    cells = (video != reference).reshape(frames, rows, height // rows, columns, width // columns, 3)
    return cells.any((2, 4, 5))


def allowed(run: RunData) -> np.ndarray:
    """Return the positions where replay was allowed, bool; everywhere where the run does not say."""
    positions = len(run.compute)
    return run.eligible.astype(bool) if run.eligible.shape == (positions,) else np.ones(positions, bool)


def as_tiles(values: np.ndarray, frames: int, grid: tuple[int, int]) -> np.ndarray:
    """Return numbers of positions as frames, float (frames, rows, columns), NaN where there is none."""
    rows, columns = grid
    tiles = np.full(frames * rows * columns, np.nan)
    known = min(len(values), len(tiles))
    tiles[:known] = values[:known]
    return tiles.reshape(frames, rows, columns)


def png(frame: np.ndarray, *, scale: int = 1, marked: np.ndarray | None = None) -> bytes:
    """Return a frame as a PNG file.

    Parameters
    ----------
    frame
        uint8 (H, W, 3) or (H, W, 4).
    scale
        Size of a pixel.
    marked
        bool (rows, columns): tokens that get an outline.

    Returns
    -------
    bytes
        The file.
    """
    pixels = frame.repeat(scale, 0).repeat(scale, 1)
    if marked is not None and marked.any():
        inside = marked.repeat(pixels.shape[0] // marked.shape[0], 0).repeat(pixels.shape[1] // marked.shape[1], 1)
        # A bright rim, and a white one inside it, so that it stands out from every colour.
        core = _shrunk(inside, 3)
        pixels[inside & ~core] = _MARK
        pixels[core & ~_shrunk(core, 1)] = 255
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "PNG", optimize=True)
        return file.getvalue()


def _shrunk(region: np.ndarray, by: int) -> np.ndarray:
    """Return a region, bool (height, width), without the pixels that are so near its rim."""
    padded, core = np.pad(region, by), region.copy()
    for down in range(2 * by + 1):
        for right in range(2 * by + 1):
            core &= padded[down : down + region.shape[0], right : right + region.shape[1]]
    return core
