"""Files that appear together and whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["published"]


@contextmanager
def published(folder: Path, last: str) -> Iterator[Path]:
    """Give a temporary folder; its files move to ``folder`` when the block ends well.

    Parameters
    ----------
    folder
        Where the files go; made when it is missing.
    last
        Name of the file that moves last: once it is there, the others are.

    Raises
    ------
    OSError
        When the folder cannot be made or written.  Nothing new is left then.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    new: list[Path] = []
    try:
        # Inside the folder, because only a rename within one file system is atomic.
        with TemporaryDirectory(prefix=".report-", dir=folder) as temporary:
            yield Path(temporary)
            for file in sorted(Path(temporary).iterdir(), key=lambda f: (f.name == last, f.name)):
                target = folder / file.name
                if not target.exists():
                    new.append(target)
                os.replace(file, target)
    except BaseException:
        for target in new:
            target.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise
