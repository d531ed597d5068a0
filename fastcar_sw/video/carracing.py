"""Frames of Gymnasium's CarRacing: a world in which nearly every patch changes, hence a hard one for replay.

Needs ``gymnasium[box2d]``, which is no dependency of the package; it is imported only here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .io import VideoError, resize

__all__ = ["drive"]

#: What the simulator shows: the lowest rows of its 96x96 picture are instruments.
_VISIBLE = 84
#: Frames in which the camera zooms in at the start of an episode.
_ZOOM = 50
#: Green of the grass is far above the red; the road is grey.
_GRASS = 40
#: Rows of the picture, in front of the car, that the driver looks at, and the column of the car.
_AHEAD = slice(44, 64)
_CENTRE = 47.5
_GAIN, _SPEED = 0.035, 0.35


def drive(
    frames: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (64, 64),
    stride: int = 4,
    episode: int = 400,
    progress: Callable[[int, int], object] | None = None,
) -> list[np.ndarray]:
    """Drive along random tracks and film it.

    Parameters
    ----------
    frames
        How many, over all episodes.
    seed
        Of the tracks and of the driver's clumsiness.
    size
        Height and width of a frame in pixels.
    stride
        Steps of the simulator (1/50 s) between two frames.
    episode
        Frames of an episode at most.
    progress
        Called with (frames done, frames in all) after every episode.

    Returns
    -------
    list of numpy.ndarray
        A video an episode, uint8 (frames, H, W, 3); one that leaves the field is shorter.

    Raises
    ------
    VideoError
        When Gymnasium or Box2D is missing, or a number is out of range.
    """
    if min(frames, stride, episode) < 1:
        raise VideoError(
            f"frames, stride and episode must be at least 1, not {frames}, {stride} and {episode}"
        )
    environment = _environment()
    rng = np.random.default_rng(seed)
    videos: list[np.ndarray] = []
    done = 0
    try:
        while done < frames:
            shots = _episode(environment, rng, min(episode, frames - done) * stride)[::stride]
            if not shots:
                continue  # left the field while the camera was still zooming in
            videos.append(resize(np.stack(shots)[:, :_VISIBLE], size))
            done += len(shots)
            if progress is not None:
                progress(done, frames)
    finally:
        environment.close()
    return videos


def _environment() -> Any:
    # Nobody looks: the simulator must not ask for a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        # Box2D's bindings warn while they are imported, and crash the interpreter when warnings are errors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import gymnasium

            return gymnasium.make("CarRacing-v3", render_mode=None, max_episode_steps=-1)
    except ImportError as error:
        name = error.name or str(error)
        raise VideoError(f"CarRacing needs gymnasium[box2d], of which {name} is missing") from None
    except Exception as error:  # Gymnasium has its own errors for a missing Box2D.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VideoError(f"CarRacing cannot be started: {reason}") from None


def _episode(environment: Any, rng: np.random.Generator, steps: int) -> list[np.ndarray]:
    """Return the frames, uint8 (96, 96, 3), of at most ``steps`` steps, without the zoom at the start."""
    frame, _ = environment.reset(seed=int(rng.integers(1 << 31)))
    shots: list[np.ndarray] = []
    noise = 0.0
    for step in range(_ZOOM + steps):
        noise = 0.95 * noise + 0.06 * rng.normal()
        frame, _, terminated, _, _ = environment.step(_controls(environment, frame, noise))
        if step >= _ZOOM:
            shots.append(frame)
        if terminated:
            break  # a full round, or off the field
    return shots


def _controls(environment: Any, frame: np.ndarray, noise: float) -> np.ndarray:
    """Return steering, gas and brake of a driver who aims at the middle of the road ahead."""
    picture = frame[_AHEAD].astype(np.int32)
    road = picture[..., 1] - picture[..., 0] < _GRASS
    columns = np.nonzero(road)[1]
    target = columns.mean() if len(columns) else _CENTRE
    steer = float(np.clip(_GAIN * (target - _CENTRE) + noise, -1, 1))
    velocity = environment.unwrapped.car.hull.linearVelocity
    speed = float(np.hypot(velocity[0], velocity[1])) / 100
    gas = 0.25 if speed < _SPEED * (1 - 0.5 * abs(steer)) else 0.0
    brake = 0.2 if speed > _SPEED * 1.3 else 0.0
    return np.array([steer, gas, brake], np.float32)
