"""How near two videos are, and how much a video moves."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["change_rate", "exact_share", "psnr", "ssim"]


def psnr(video: np.ndarray, reference: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB over all pixels; infinite for equal videos.

    Parameters
    ----------
    video, reference
        uint8, the same shape (..., H, W, 3).
    """
    _check_pair(video, reference)
    error = np.mean((video.astype(np.float64) - reference.astype(np.float64)) ** 2)
    return math.inf if error == 0 else float(10 * np.log10(255**2 / error))


def ssim(video: np.ndarray, reference: np.ndarray) -> float:
    """Return the mean structural similarity of the frames, 1 for equal videos.

    Parameters
    ----------
    video, reference
        uint8, the same shape (..., H, W, 3), at least 7 pixels high and wide.
    """
    from skimage.metrics import structural_similarity  # here: slow to import

    _check_pair(video, reference)
    shape = video.shape[-3:]
    pairs = zip(video.reshape(-1, *shape), reference.reshape(-1, *shape), strict=True)
    return float(np.mean([structural_similarity(a, b, channel_axis=-1) for a, b in pairs]))


def change_rate(tokens: np.ndarray, first_frame: int = 1) -> float:
    """Return the share of tokens that differ from the same place of the frame before.

    Parameters
    ----------
    tokens
        Integers (..., frames, tokens_per_frame).
    first_frame
        First frame that is compared with its predecessor, at least 1.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim < 2 or not 1 <= first_frame < tokens.shape[-2]:
        raise ValueError(
            f"first_frame must be in 1..frames-1, not {first_frame} for the shape {tokens.shape}"
        )
    return float(np.mean(tokens[..., first_frame:, :] != tokens[..., first_frame - 1 : -1, :]))


def exact_share(tokens: np.ndarray, reference: np.ndarray, rows: int, first_frame: int = 2) -> float:
    """Return the share of moving rows that are exactly right in every frame from ``first_frame`` on.

    Only rows of patches that move in the reference count: this says whether motion is right, where PSNR
    and the share of right tokens mostly say that the background is.

    Parameters
    ----------
    tokens, reference
        Integers, the same shape (clips, frames, tokens_per_frame).
    rows
        Rows of patches of a frame.
    first_frame
        First generated frame.
    """
    tokens, reference = np.asarray(tokens), np.asarray(reference)
    if tokens.shape != reference.shape or tokens.ndim != 3:
        raise ValueError(
            f"both must have one shape (clips, frames, tokens), not {tokens.shape}, {reference.shape}"
        )
    shape = (*tokens.shape[:2], rows, -1)
    want = reference.reshape(shape)
    moves = (want[:, 1:] != want[:, :-1]).any((1, 3))
    right = (tokens.reshape(shape) == want)[:, first_frame:].all((1, 3))
    return float(right[moves].mean()) if moves.any() else 1.0


def _check_pair(video: np.ndarray, reference: np.ndarray) -> None:
    if (
        video.shape != reference.shape
        or video.ndim < 3
        or video.dtype != np.uint8
        or reference.dtype != np.uint8
    ):
        raise ValueError(
            f"both videos must be uint8 of one shape, not {video.dtype} {video.shape}, "
            f"{reference.dtype} {reference.shape}"
        )
