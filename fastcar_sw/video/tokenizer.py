"""Frames as discrete tokens: every patch becomes the index of an entry of a codebook."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["PatchTokenizer", "TokenizerError", "fit_kmeans"]

#: Patches whose distances are computed at once: bounds the memory to a few tens of MB.
_CHUNK = 8192


class TokenizerError(ValueError):
    """Frames, tokens or a codebook do not fit; the message is one line that says which rule broke."""


class PatchTokenizer:
    """Square patches of RGB frames, in raster order, by a codebook.

    Parameters
    ----------
    codebook
        uint8 (vocab, patch, patch, 3).  Of equal entries only the first is ever produced.
    grid
        Patches of a frame: (rows, columns).

    Raises
    ------
    TokenizerError
        When the codebook or the grid has the wrong shape.
    """

    def __init__(self, codebook: np.ndarray, grid: tuple[int, int]) -> None:
        shape, kind = np.shape(codebook), np.asarray(codebook).dtype
        if len(shape) != 4 or shape[0] < 1 or shape[1] != shape[2] or shape[1] < 1 or shape[3] != 3:
            raise TokenizerError(f"codebook must have the shape (vocab, patch, patch, 3), not {tuple(shape)}")
        if kind != np.uint8:
            raise TokenizerError(f"codebook must be uint8, not {kind}")
        if len(grid) != 2 or min(grid) < 1:
            raise TokenizerError(f"grid must be (rows, columns), each at least 1, not {grid!r}")
        self._codebook = np.array(codebook)
        self._codebook.flags.writeable = False
        self._grid = (int(grid[0]), int(grid[1]))
        self._index: dict[bytes, int] = {}
        for i, entry in enumerate(self._codebook):
            self._index.setdefault(entry.tobytes(), i)

    @classmethod
    def from_patches(
        cls, patches: np.ndarray, grid: tuple[int, int], vocab: int | None = None
    ) -> PatchTokenizer:
        """Make an exact tokenizer of a dictionary.

        Parameters
        ----------
        patches
            uint8 (count, patch, patch, 3).
        grid
            Patches of a frame.
        vocab
            Entries of the codebook; missing ones repeat the first patch, so that every token can be shown.

        Raises
        ------
        TokenizerError
            When there are more patches than ``vocab``.
        """
        vocab = len(patches) if vocab is None else vocab
        if len(patches) > vocab:
            raise TokenizerError(f"dictionary must have at most vocab={vocab} patches, not {len(patches)}")
        filler = np.repeat(patches[:1], vocab - len(patches), 0)
        return cls(np.concatenate([patches, filler]), grid)

    @property
    def codebook(self) -> np.ndarray:
        """The entries, uint8 (vocab, patch, patch, 3), read-only."""
        return self._codebook

    @property
    def grid(self) -> tuple[int, int]:
        """Patches of a frame: (rows, columns)."""
        return self._grid

    @property
    def vocab(self) -> int:
        """Number of entries."""
        return len(self._codebook)

    @property
    def patch(self) -> int:
        """Side of a patch in pixels."""
        return self._codebook.shape[1]

    @property
    def tokens_per_frame(self) -> int:
        """Patches of a frame."""
        return self._grid[0] * self._grid[1]

    @property
    def frame_shape(self) -> tuple[int, int]:
        """Height and width of a frame in pixels."""
        return self._grid[0] * self.patch, self._grid[1] * self.patch

    def patches(self, frames: np.ndarray) -> np.ndarray:
        """Cut frames, uint8 (..., H, W, 3), into patches, uint8 (..., tokens_per_frame, patch, patch, 3)."""
        frames = np.asarray(frames)
        if frames.dtype != np.uint8 or frames.ndim < 3 or frames.shape[-3:] != (*self.frame_shape, 3):
            raise TokenizerError(
                f"frames must be uint8 (..., {self.frame_shape[0]}, {self.frame_shape[1]}, 3), "
                f"not {frames.dtype} {frames.shape}"
            )
        return _cut(frames, self.patch)

    def encode(self, frames: np.ndarray, *, exact: bool = False) -> np.ndarray:
        """Return the token of every patch.

        Parameters
        ----------
        frames
            uint8 (..., F, H, W, 3).
        exact
            Refuse patches that are not in the codebook, instead of taking the nearest entry (squared error).

        Returns
        -------
        numpy.ndarray
            int64 (..., F, tokens_per_frame), raster order.

        Raises
        ------
        TokenizerError
            When the frames have the wrong shape or type, or a patch is unknown and ``exact`` is set.
        """
        patches = self.patches(frames)
        flat = patches.reshape(-1, self.patch**2 * 3)
        tokens = np.array([self._index.get(row.tobytes(), -1) for row in flat], np.int64)
        unknown = np.flatnonzero(tokens < 0)
        if exact and len(unknown):
            raise TokenizerError(
                f"{len(unknown)} of {len(tokens)} patches must be in the codebook, but are not"
            )
        if len(unknown):
            centres = torch.from_numpy(self._codebook.reshape(self.vocab, -1).astype(np.float32))
            tokens[unknown] = _nearest(torch.from_numpy(flat[unknown]).float(), centres).numpy()
        return tokens.reshape(patches.shape[:-3])

    def decode(self, tokens: np.ndarray | Tensor) -> np.ndarray:
        """Return the frames that tokens mean.

        Parameters
        ----------
        tokens
            Integers (..., F, tokens_per_frame).

        Returns
        -------
        numpy.ndarray
            uint8 (..., F, H, W, 3).

        Raises
        ------
        TokenizerError
            When a token is out of range or the last axis is not a frame.
        """
        tokens = np.asarray(tokens)
        if tokens.ndim < 1 or tokens.shape[-1] != self.tokens_per_frame:
            raise TokenizerError(
                f"tokens must have the shape (..., {self.tokens_per_frame}), not {tokens.shape}"
            )
        if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise TokenizerError(f"tokens must be in 0..{self.vocab - 1}, not {tokens.min()}..{tokens.max()}")
        cells = self._codebook[tokens].reshape(*tokens.shape[:-1], *self._grid, self.patch, self.patch, 3)
        return np.ascontiguousarray(cells.swapaxes(-4, -3)).reshape(*tokens.shape[:-1], *self.frame_shape, 3)


def _cut(frames: np.ndarray, patch: int) -> np.ndarray:
    """Cut (..., H, W, 3) into (..., rows * columns, patch, patch, 3)."""
    *lead, height, width, _ = frames.shape
    rows, columns = height // patch, width // patch
    cells = frames.reshape(*lead, rows, patch, columns, patch, 3).swapaxes(-4, -3)
    return np.ascontiguousarray(cells).reshape(*lead, rows * columns, patch, patch, 3)


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the centre, float (K, n), that is nearest to each row, float (rows, n)."""
    norms = centres.square().sum(1)
    # The square of the row itself does not change which centre is nearest.
    return torch.cat([torch.addmm(norms, part, centres.T, alpha=-2).argmin(1) for part in rows.split(_CHUNK)])


def fit_kmeans(
    frames: np.ndarray,
    patch: int,
    vocab: int,
    *,
    seed: int = 0,
    iterations: int = 20,
    samples: int = 60_000,
    progress: Callable[[int, int], object] | None = None,
) -> PatchTokenizer:
    """Fit a codebook to any video by k-means with k-means++ starts.

    A video with at most ``vocab`` different patches gets an exact codebook.

    Parameters
    ----------
    frames
        uint8 (..., H, W, 3); H and W must be multiples of ``patch``.
    patch, vocab
        Side of a patch in pixels; entries of the codebook.
    seed
        Of the choice of samples and starts.
    iterations, samples
        Lloyd steps; patches that they look at.
    progress
        Called with (steps done, steps in all).

    Raises
    ------
    TokenizerError
        When the frames do not fit the patches.
    """
    frames = np.asarray(frames)
    if frames.dtype != np.uint8 or frames.ndim < 4 or frames.shape[-1] != 3 or frames.size == 0:
        raise TokenizerError(f"frames must be uint8 (frames, H, W, 3), not {frames.dtype} {frames.shape}")
    height, width = frames.shape[-3:-1]
    if patch < 1 or height % patch or width % patch:
        raise TokenizerError(f"height and width must be multiples of patch={patch}, not {height}x{width}")
    if vocab < 2:
        raise TokenizerError(f"vocab must be at least 2, not {vocab}")
    grid = (height // patch, width // patch)
    rows = _cut(frames.reshape(-1, height, width, 3), patch).reshape(-1, patch * patch * 3)
    unique = np.unique(rows[:: max(1, len(rows) // samples)], axis=0)
    if len(unique) <= vocab:
        unique = np.unique(rows, axis=0)
        if len(unique) <= vocab:
            return PatchTokenizer.from_patches(unique.reshape(-1, patch, patch, 3), grid, vocab)
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rows[rng.permutation(len(rows))[:samples]]).float()
    centres = _plus_plus(points, vocab, rng)
    for step in range(iterations):
        index = _nearest(points, centres)
        counts = torch.bincount(index, minlength=vocab)
        sums = torch.zeros_like(centres).index_add_(0, index, points)
        # An empty cluster keeps its centre.
        centres = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp_min(1), centres)
        if progress is not None:
            progress(step + 1, iterations)
    codebook = centres.round().clamp(0, 255).to(torch.uint8).numpy()
    return PatchTokenizer(codebook.reshape(vocab, patch, patch, 3), grid)


def _plus_plus(points: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Choose starts far from one another: each with a probability proportional to its squared distance."""
    chosen = [int(rng.integers(len(points)))]
    distance = (points - points[chosen[0]]).square().sum(1)
    while len(chosen) < count:
        total = distance.double().cumsum(0)
        # All points chosen: any will do, its cluster stays empty.
        pick = int(torch.searchsorted(total, rng.random() * float(total[-1])))
        chosen.append(min(pick, len(points) - 1))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen]
