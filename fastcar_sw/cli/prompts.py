"""Tokens from files: prompts and calibration clips."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from .common import UsageError

__all__ = ["load_tokens"]


def load_tokens(path: Path, vocab: int, what: str = "prompt") -> np.ndarray:
    """Return the tokens of a file, int64 (lanes, positions).

    Parameters
    ----------
    path
        A ``.npy`` file of integers, or a ``.json`` file with a list of tokens for each lane.
    vocab
        Tokens are below.
    what
        Name of the file's role, for messages.

    Raises
    ------
    UsageError
        When the file is unreadable or damaged, or has another shape, or a token is out of the vocabulary.
    """
    readers = {".npy": _numpy, ".json": _json}
    if path.suffix not in readers:
        raise UsageError(f"{what} {path} must be a .npy or a .json file")
    try:
        tokens = readers[path.suffix](path)
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except _Rule as error:
        raise UsageError(f"{what} {path} must {error}") from None
    except (ArithmeticError, EOFError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        # The reader of NumPy meets damage at many places.
        raise UsageError(f"{what} {path} is damaged: {str(error) or type(error).__name__}") from None
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise UsageError(f"tokens of {what} {path} must be in 0..{vocab - 1}, not {low}..{high}")
    return tokens.astype(np.int64)


class _Rule(Exception):
    """What the content must be; the message completes "it must ..."."""


def _numpy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        tokens = np.lib.format.read_array(file, allow_pickle=False)
    if tokens.ndim != 2 or tokens.size == 0 or tokens.dtype.kind not in "iu":
        raise _Rule(f"hold integers (lanes, positions), not {tokens.dtype.name} of shape {tokens.shape}")
    return tokens


def _json(path: Path) -> np.ndarray:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise _Rule("hold a list with a list of tokens for each lane")
    if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise _Rule("give every lane the same number of tokens, at least one")
    wrong = next((token for row in rows for token in row if type(token) is not int), None)
    if wrong is not None or any(token is None for row in rows for token in row):
        raise _Rule(f"hold integers, not {json.dumps(wrong)}")
    # Python's integers: a number of any size is compared with the vocabulary.
    return np.array(rows, dtype=object)
