"""Film Gymnasium's CarRacing, for training a second model: ``pip install 'fastcar[train]'`` first.

    python examples/film_carracing.py frames --frames 8000
    fastcar train --video frames/00.npy --video frames/01.npy ... --vocab 512 --out carracing.safetensors

Each episode becomes an array file, uint8 (frames, 64, 64, 3).  Gymnasium is under the MIT licence.  The card of the
shipped model ``carracing`` has the whole command.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fastcar_sw.video.carracing import drive
from fastcar_sw.video.io import write_contact_sheet


def main(
    folder: Annotated[Path, typer.Argument(help="Where the episodes go.")],
    frames: Annotated[int, typer.Option(help="Frames over all episodes.")] = 8000,
    seed: Annotated[int, typer.Option(help="Of tracks and driver.")] = 0,
) -> None:
    """Drive along random tracks and keep the frames."""
    folder.mkdir(parents=True, exist_ok=True)
    videos = drive(frames, seed=seed, progress=lambda done, total: print(f"{done} of {total} frames", flush=True))
    for number, video in enumerate(videos):
        np.save(folder / f"{number:02d}.npy", video)
    write_contact_sheet(folder / "sample.png", np.stack([video[:8] for video in videos[:6] if len(video) >= 8]))


if __name__ == "__main__":
    typer.run(main)
