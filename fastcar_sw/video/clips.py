"""Where training and evaluation take clips of tokens from."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .tokenizer import PatchTokenizer
from .traffic import FRAME_SIZE, PATCH, generate, patch_dictionary

__all__ = ["ClipError", "ClipSource", "HELD_OUT_SEED", "TrafficClips", "VideoClips", "traffic_tokenizer"]

#: Scenes of traffic that no training sees: training refuses this seed.
HELD_OUT_SEED = 2_000_000_011


class ClipError(ValueError):
    """A video gives no clips of the shape that was asked for; the message is one line that says why."""


class ClipSource(Protocol):
    """Clips of tokens, some of them kept away from training.

    Attributes
    ----------
    tokenizer
        What the tokens look like.
    frames
        Frames of a clip.
    """

    tokenizer: PatchTokenizer
    frames: int

    def train(self, clips: int, step: int) -> np.ndarray:
        """Return the clips of a training step, int64 (clips, frames * tokens_per_frame)."""
        ...

    def held_out(self, clips: int) -> np.ndarray:
        """Return at most so many clips that no training step contains, shaped like those of `train`."""
        ...


def traffic_tokenizer(vocab: int = 256) -> PatchTokenizer:
    """Return the exact tokenizer of the traffic world; entries beyond its dictionary repeat the first one."""
    side = FRAME_SIZE // PATCH
    return PatchTokenizer.from_patches(patch_dictionary(), (side, side), vocab)


class TrafficClips:
    """Endless scenes of the procedural traffic.

    Parameters
    ----------
    frames
        Frames of a clip.
    seed
        Of the scenes of the training.
    vocab
        Entries of the codebook.

    Raises
    ------
    ClipError
        When the seed is that of the held-out scenes.
    """

    def __init__(self, frames: int, seed: int, vocab: int = 256) -> None:
        if seed == HELD_OUT_SEED:
            raise ClipError(f"seed must not be {HELD_OUT_SEED}, that of the held-out scenes")
        self.tokenizer = traffic_tokenizer(vocab)
        self.frames, self._seed = frames, seed

    def _clips(self, clips: int, seed: int, first: int) -> np.ndarray:
        frames = generate(clips, seed, self.frames, first)
        return self.tokenizer.encode(frames, exact=True).reshape(clips, -1)

    def train(self, clips: int, step: int) -> np.ndarray:
        """Return the clips of a training step; no scene comes twice."""
        return self._clips(clips, self._seed, step * clips)

    def held_out(self, clips: int) -> np.ndarray:
        """Return held-out scenes, always the same ones."""
        return self._clips(clips, HELD_OUT_SEED, 0)


class VideoClips:
    """Windows of one or more videos; the last tenth of each video is held out.

    Parameters
    ----------
    videos
        uint8 (frames, H, W, 3) each.
    tokenizer
        For all of them.
    frames
        Frames of a clip.
    seed
        Of the choice of windows.
    stride
        Distance of neighbouring frames of a clip in frames of the video.

    Raises
    ------
    ClipError
        When a video is too short for one training and one held-out clip.
    """

    #: Part of a video that is held out.
    HELD_OUT_SHARE = 0.1

    def __init__(
        self, videos: list[np.ndarray], tokenizer: PatchTokenizer, frames: int, seed: int, stride: int = 1
    ) -> None:
        self.tokenizer, self.frames = tokenizer, frames
        self._seed, self._stride = seed, stride
        span = (frames - 1) * stride + 1
        self._parts, self._held = [], []
        for i, video in enumerate(videos):
            held = max(span, round(len(video) * self.HELD_OUT_SHARE))
            if len(video) < span + held:
                raise ClipError(f"video {i + 1} must have at least {2 * span} frames for clips of {frames} "
                                f"(stride {stride}), not {len(video)}")  # fmt: skip
            tokens = tokenizer.encode(video)
            self._parts.append(tokens[:-held])
            self._held.append(tokens[-held:])

    def _window(self, tokens: np.ndarray, start: int) -> np.ndarray:
        return tokens[start : start + (self.frames - 1) * self._stride + 1 : self._stride].reshape(-1)

    def _starts(self, tokens: np.ndarray) -> int:
        return len(tokens) - (self.frames - 1) * self._stride

    def train(self, clips: int, step: int) -> np.ndarray:
        """Return random windows; a video is as likely as it is long."""
        rng = np.random.default_rng((self._seed, step))
        counts = np.array([self._starts(part) for part in self._parts])
        chosen = rng.choice(len(counts), clips, p=counts / counts.sum())
        return np.stack([self._window(self._parts[i], int(rng.integers(counts[i]))) for i in chosen])

    def held_out(self, clips: int) -> np.ndarray:
        """Return windows of the held-out ends, spread evenly."""
        places = [(i, start) for i, part in enumerate(self._held) for start in range(self._starts(part))]
        chosen = np.unique(np.linspace(0, len(places) - 1, min(clips, len(places))).round().astype(int))
        return np.stack([self._window(self._held[places[k][0]], places[k][1]) for k in chosen])
