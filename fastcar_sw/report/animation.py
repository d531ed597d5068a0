"""Moving pictures: a GIF file a run, and one GIF inside the page that holds all of them in step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..video.io import write_gif
from .data import ReportData
from .frames import liveliest_lane, png

__all__ = ["Animation", "Tile", "make_animation", "write_videos"]

#: Lanes of the animation; more would be stamps.
_LANES_SHOWN = 8
_FRAMES_A_SECOND = 4.0
#: Least height of a frame in the GIF files, in pixels.
_GIF_HEIGHT = 256
#: White pixels between the lanes of a file, before enlargement.
_MARGIN = 2


def _videos(report: ReportData) -> list[tuple[str, np.ndarray]]:
    """Return name and video of the real continuation, if it is known, and of each run."""
    real = [("real continuation", report.source)] if report.source is not None else []
    return real + [(run.title, run.video) for run in report.runs]


def write_videos(folder: Path, report: ReportData) -> list[str]:
    """Write a GIF for each run and for the real continuation, named after them; return the names of the files."""
    names: list[str] = []
    for title, video in _videos(report):
        # A title may hold anything, a file's name may not.
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "_", title).strip("_.") or "run"
        name, number = f"{stem}.gif", 2
        while name in names:
            name, number = f"{stem}_{number}.gif", number + 1
        names.append(name)
        padding = ((0, 0), (0, 0), (0, 0), (0, _MARGIN), (0, 0))
        lanes = np.concatenate(list(np.pad(video, padding, constant_values=255)), 2)[:, :, :-_MARGIN]
        write_gif(folder / name, lanes, scale=max(1, _GIF_HEIGHT // video.shape[2]), fps=_FRAMES_A_SECOND)
    return names


@dataclass(frozen=True)
class Tile:
    """A lane of a run inside the animation: what it shows, and its column and row."""

    title: str
    lane: int
    column: int
    row: int


@dataclass(frozen=True)
class Animation:
    """One moving picture with a run a column and a lane a row.

    A page shows its parts: pictures of their own would drift apart.

    Attributes
    ----------
    gif, still
        Files: GIF, and the last frame as PNG.
    columns, rows
        Runs (and the real continuation), lanes that are shown.
    height, width
        Of a lane, in pixels.
    chosen
        Lane that is worth a large picture.
    tiles
        By column, then by row.
    """

    gif: bytes
    still: bytes
    columns: int
    rows: int
    height: int
    width: int
    chosen: int
    tiles: list[list[Tile]]


def make_animation(folder: Path, report: ReportData) -> Animation:
    """Return the animation of a report; the folder is for a file that does not stay."""
    videos = _videos(report)
    chosen = liveliest_lane(report.runs[0])
    lanes = list(range(len(report.runs[0].video)))[:_LANES_SHOWN]
    if chosen not in lanes:
        lanes[-1] = chosen
    frames = np.concatenate([np.concatenate(list(video[lanes]), 1) for _, video in videos], 2)
    file = folder / "animation.part.gif"
    write_gif(file, frames, scale=1, fps=_FRAMES_A_SECOND)
    moving = file.read_bytes()
    file.unlink()
    return Animation(
        gif=moving,
        still=png(frames[-1]),
        columns=len(videos),
        rows=len(lanes),
        height=videos[0][1].shape[2],
        width=videos[0][1].shape[3],
        chosen=chosen,
        tiles=[
            [Tile(title, lane, column, row) for row, lane in enumerate(lanes)]
            for column, (title, _) in enumerate(videos)
        ],
    )
