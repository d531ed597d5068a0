"""The strip: frames of one lane side by side, a row a run, with what replay changed and where the hardware computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .data import ReportData
from .formats import percent
from .frames import allowed, as_tiles, changed_tokens, png, token_grid

__all__ = ["strip_rows"]

#: Frames of the strip; of longer videos evenly spaced ones are shown.
_FRAMES_SHOWN = 12
#: Least height of a frame in pixels: outlines need room.
_HEIGHT = 192
#: Colours of a token that was computed by decision, and by rule; between those of the light and of the dark theme.
_COMPUTED, _BARRED = (51, 150, 214), (128, 136, 146, 110)


def strip_rows(report: ReportData, lane: int, uri: Callable[[bytes], str]) -> dict[str, Any]:
    """Return the frames of one lane.

    Parameters
    ----------
    report
        What to show.
    lane
        Which sequence.
    uri
        Makes an address of a PNG file.

    Returns
    -------
    dict
        ``frames``: numbers of the frames; ``prompt``: how many were given; ``marked``: whether tokens could be
        compared; ``rows``: each with ``title``, ``note``, ``kind`` (``video`` or ``work``), and ``cells`` with ``src``
        and ``alt``.
    """
    count = report.runs[0].video.shape[1]
    shown = np.unique(np.linspace(0, count - 1, min(count, _FRAMES_SHOWN)).round().astype(int)).tolist()
    grid = token_grid(report)
    scale = max(1, _HEIGHT // report.runs[0].video.shape[2])
    rows: list[dict[str, Any]] = []

    def video(title: str, frames: np.ndarray, marks: np.ndarray | None) -> None:
        cells = []
        for number in shown:
            marked = None if marks is None else marks[number]
            alt = f"{title}, frame {number}"
            if marked is not None:
                alt += f", {int(marked.sum())} of {marked.size} tokens differ from the dense run"
            cells.append({"src": uri(png(frames[number], scale=scale, marked=marked)), "alt": alt})
        rows.append({"title": title, "note": "", "kind": "video", "cells": cells})

    if report.source is not None:
        video("real continuation", report.source[lane], None)
    for run in report.runs:
        if run.gate == "never":
            video(run.title, run.video[lane], None)
            continue
        frames = run.video[lane]
        marks = None if grid is None else changed_tokens(frames, report.runs[0].video[lane], grid)
        video(run.title, frames, marks)
        if marks is not None:
            rows[-1]["note"] = f"{int(marks.sum())} of {marks.size} tokens differ"
        if grid is not None:
            shares = as_tiles(run.compute[:, :, lane].mean(1), count, grid)
            barred = as_tiles(~allowed(run), count, grid) == 1
            cells = []
            for number in shown:
                known = shares[number][~np.isnan(shares[number])]
                share = percent(float(known.mean())) if known.size else "nothing"
                cells.append({"src": uri(png(_tint(shares[number], barred[number]))),
                              "alt": f"{run.title}, frame {number}: {share} computed"})  # fmt: skip
            rows.append({"title": "computed", "note": "", "kind": "work", "cells": cells})
    return {"frames": shown, "prompt": report.prompt_frames, "rows": rows, "marked": grid is not None}


def _tint(tile: np.ndarray, barred: np.ndarray) -> np.ndarray:
    """Return a share a token as a colour whose opacity is the share: right on light and on dark ground."""
    pixels = np.empty((*tile.shape, 4), np.uint8)
    pixels[..., :3] = _COMPUTED
    pixels[..., 3] = np.nan_to_num(255 * tile).round()
    pixels[barred] = _BARRED
    pixels[np.isnan(tile)] = 0
    return pixels
