"""Files of a command: all of them appear when it ends well, none when it does not."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ..interrupts import held_interrupts
from .common import UsageError, is_special, json_text

__all__ = ["Outputs"]


class Outputs:
    """A folder of files, and single files elsewhere, that appear together.

    A context manager: inside, everything is written under temporary names in the same file systems; at the end it
    gets its names, unless an exception left the context.

    Parameters
    ----------
    folder
        Where `path` puts files; None when the command has no folder.
    json_file
        Where `result` goes: a file, ``-`` for standard output, or None.

    Raises
    ------
    UsageError
        On entering, when something cannot be written: before any work is done.
    """

    def __init__(self, folder: Path | None, json_file: Path | None = None) -> None:
        self._folder, self._json = folder, json_file
        self._token = f".fastcar-{secrets.token_hex(4)}"
        self._stage: Path | None = None
        self._made: list[Path] = []
        self._moves: list[tuple[Path, Path]] = []
        self._json_path: Path | None = None
        self._printed = ""

    def __enter__(self) -> Self:
        try:
            if self._folder is not None:
                self._open_folder(self._folder)
            if self._json is not None and str(self._json) != "-":
                self._json_path = self.file(self._json)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with held_interrupts():
                    self._commit()
        finally:
            self._clean()
        if kind is None:
            sys.stdout.write(self._printed)

    def path(self, name: str) -> Path:
        """Return where to write a file that will be ``name`` in the folder."""
        if self._stage is None:
            raise ValueError("outputs must have a folder, and be entered")
        return self._stage / name

    def text(self, name: str, text: str) -> None:
        """Write a text file into the folder; line ends are the same on every machine."""
        self.path(name).write_bytes(text.encode())

    def file(self, final: Path) -> Path:
        """Return where to write a file that will be ``final``, wherever that is: in the folder, too.

        Raises
        ------
        UsageError
            When it cannot be written.
        """
        if self._folder is not None and os.path.abspath(final.parent) == os.path.abspath(self._folder):
            return self.path(final.name)
        temporary = final.parent / f"{self._token}-{len(self._moves)}"
        try:
            if is_special(final):
                return final
            if final.is_dir():
                raise UsageError(f"file {final} cannot be written: it is a folder")
            with temporary.open("xb"):
                pass
        except OSError as error:
            raise UsageError(f"file {final} cannot be written: {error.strerror}") from None
        self._moves.append((temporary, final))
        return temporary

    def result(self, value: dict[str, Any]) -> None:
        """Set the machine-readable result."""
        if self._json is None:
            return
        if str(self._json) == "-":
            self._printed = json_text(value)
        elif self._json_path is not None:
            self._json_path.write_text(json_text(value), encoding="utf-8")

    def _open_folder(self, folder: Path) -> None:
        try:
            if folder.exists():
                stage = folder / self._token
            else:
                missing = [path for path in folder.parents if not path.exists()]
                for path in reversed(missing):
                    path.mkdir()
                    self._made.append(path)
                stage = folder.parent / self._token
            stage.mkdir()
        except OSError as error:
            raise UsageError(f"folder {folder} cannot be written: {error.strerror}") from None
        self._stage = stage

    def _commit(self) -> None:
        moves = list(self._moves)
        if self._stage is not None and self._folder is not None:
            if self._folder.exists():
                moves = [(path, self._folder / path.name) for path in sorted(self._stage.iterdir())] + moves
            else:
                moves = [(self._stage, self._folder), *moves]
        # A folder in the way is the one thing that an existing place can hold against a file.
        for source, final in moves:
            if source.is_file() and final.is_dir():
                raise UsageError(f"file {final} cannot be written: it is a folder")
        for source, final in moves:
            try:
                os.replace(source, final)
            except OSError as error:
                raise UsageError(f"{final} cannot be written: {error.strerror}") from None
        self._made.clear()

    def _clean(self) -> None:
        """Remove what is left: nothing after a commit, everything otherwise."""
        if self._stage is not None:
            shutil.rmtree(self._stage, ignore_errors=True)
        for temporary, _ in self._moves:
            # An error on the way out would hide the one that led here.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        for path in reversed(self._made):
            try:
                path.rmdir()
            except OSError:
                # Somebody else uses it by now.
                break
