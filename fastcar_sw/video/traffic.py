"""Procedural traffic seen from above: the world that the shipped model was trained on.

A scene is eight rows of eight pixels: meadows with trees and houses, roads of two lanes, rivers with drifting
logs, and a railway.  A row moves as a whole, an even number of pixels a frame, on a torus 64 pixels wide; so
whoever has seen two frames can tell every later one.  Two rules keep the number of different 8x8 patches
small, and the set of them exact: vehicles of a row are at least eight pixels apart, hence never share a
patch, and water is calm around what floats on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .sprites import backgrounds, furniture, vehicles

__all__ = ["FRAME_SIZE", "PATCH", "Scenes", "draw_scenes", "generate", "patch_dictionary"]

#: Pixels of a frame's side and of a patch's side.
FRAME_SIZE = 64
PATCH = 8

_ROWS = FRAME_SIZE // PATCH
#: Least distance of two vehicles of a lane, and the grid of their positions and speeds, in pixels.
_GAP = 8
_GRID = 2
#: Moving bands of a scene, as (roads, rivers, railways), and how likely each mixture is.
_MIXTURES = ((1, 1, 0), (1, 1, 1), (2, 0, 0), (2, 0, 1), (2, 1, 0), (1, 0, 1))
_MIXTURE_WEIGHTS = (0.25, 0.2, 0.15, 0.15, 0.15, 0.1)
_SMALL = ("grass", "tuft", "flowers", "bush", "sapling", "rock")
_SMALL_WEIGHTS = (0.38, 0.18, 0.14, 0.1, 0.14, 0.06)
_LARGE = ("tree", "house", "blue_house")
_CARS = ("car0", "car1", "car2", "car3", "truck0")
_CAR_WEIGHTS = (0.23, 0.23, 0.22, 0.2, 0.12)
_FLOATS = ("log", "long_log", "duck")
_FLOAT_WEIGHTS = (0.4, 0.25, 0.35)
#: What a lane may carry, its speeds in pixels a frame, and its directions (+1 is to the right).
_LANES = {
    "road_upper": (_CARS, (2, 4, 6), (-1,)),
    "road_lower": (_CARS, (2, 4, 6), (1,)),
    "river_upper": (_FLOATS, (2, 4), (-1, 1)),
    "river_lower": (_FLOATS, (2, 4), (-1, 1)),
    "rail": (("train",), (4, 6), (-1, 1)),
}

_VEHICLES = vehicles()
_FURNITURE = furniture()
_CELLS = backgrounds()


@dataclass(frozen=True, eq=False)
class Scenes:
    """Scenes before they are rendered.

    Attributes
    ----------
    ground : numpy.ndarray
        uint8 (clips, 8 rows, 8, 64, 3): what lies below the vehicles; water is calm.
    waves : numpy.ndarray
        uint8 (clips, 8 rows, 2 phases, 8, 64, 3): the same with the waves of either phase.
    layer : numpy.ndarray
        uint8 (clips, 8 rows, 8, 64, 4): the vehicles in frame 0, RGB and alpha.
    velocity : numpy.ndarray
        int64 (clips, 8 rows): pixels a frame, positive to the right.
    """

    ground: np.ndarray
    waves: np.ndarray
    layer: np.ndarray
    velocity: np.ndarray

    def render(self, frames: int, first: int = 0) -> np.ndarray:
        """Return the frames ``first`` to ``first + frames - 1``, uint8 (clips, frames, 64, 64, 3)."""
        clips = len(self.ground)
        time = np.arange(first, first + frames)
        # Pixel x of frame t shows what was at x - v*t: (clips, rows, frames, 64).
        source = (np.arange(FRAME_SIZE) - self.velocity[..., None, None] * time[:, None]) % FRAME_SIZE
        layer = self.layer[
            np.arange(clips)[:, None, None, None, None],
            np.arange(_ROWS)[:, None, None, None],
            np.arange(PATCH)[:, None],
            source[:, :, :, None, :],
        ]  # (clips, rows, frames, 8, 64, 4)
        solid = layer[..., 3:] > 0
        cells = solid.reshape(*solid.shape[:4], _ROWS, PATCH)
        busy = np.repeat(cells.any((3, 5), keepdims=True), PATCH, 5).reshape(
            *solid.shape[:3], 1, FRAME_SIZE, 1
        )
        ground = np.where(busy, self.ground[:, :, None], self.waves[:, :, time % 2])
        pixels = np.where(solid, layer[..., :3], ground)
        return np.ascontiguousarray(pixels.swapaxes(1, 2).reshape(clips, frames, FRAME_SIZE, FRAME_SIZE, 3))


def _sprite(name: str, direction: int) -> np.ndarray:
    """Return a vehicle that heads into a direction.  Logs look the same either way."""
    sprite = _VEHICLES[name]
    return sprite[:, ::-1] if direction < 0 and "log" not in name else sprite


def _lane(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, int]:
    """Return the vehicles of a lane, uint8 (8, 64, 4), and their velocity."""
    names, speeds, directions = _LANES[kind]
    direction, speed = int(rng.choice(directions)), int(rng.choice(speeds))
    if kind == "rail":
        chosen = ["train"]
    elif kind.startswith("road"):
        chosen = list(rng.choice(names, rng.integers(1, 4), p=_CAR_WEIGHTS))
    else:
        chosen = list(rng.choice(names, rng.integers(1, 3), p=_FLOAT_WEIGHTS))
    sprites = [_sprite(name, direction) for name in chosen]
    while sum(s.shape[1] + _GAP for s in sprites) > FRAME_SIZE:
        sprites.pop()
    slack = (FRAME_SIZE - sum(s.shape[1] + _GAP for s in sprites)) // _GRID
    spaces = rng.multinomial(slack, np.full(len(sprites), 1 / len(sprites))) * _GRID + _GAP
    strip = np.zeros((PATCH, FRAME_SIZE, 4), np.uint8)
    x = int(rng.integers(FRAME_SIZE // _GRID)) * _GRID
    for sprite, space in zip(sprites, spaces, strict=True):
        strip[:, np.arange(x, x + sprite.shape[1]) % FRAME_SIZE] = sprite
        x += sprite.shape[1] + int(space)
    return strip, direction * speed


def _meadow(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return ground, uint8 (rows, 8, 64, 3), with houses and trees where two rows are adjacent."""
    small = rng.choice(_SMALL, (rows, _ROWS), p=_SMALL_WEIGHTS)
    ground = np.stack([np.concatenate([_FURNITURE[name] for name in row], 1) for row in small])
    for top in range(0, rows - 1, 2):
        column = int(rng.integers(0, 3))
        while column <= _ROWS - 2:
            big = _FURNITURE[str(rng.choice(_LARGE))]
            x = column * PATCH
            ground[top, :, x : x + 2 * PATCH] = big[:PATCH]
            ground[top + 1, :, x : x + 2 * PATCH] = big[PATCH:]
            column += int(rng.integers(2, 5))
    return ground


def _bands(rng: np.random.Generator) -> list[str]:
    """Return the kind of each of the eight rows, from top to bottom."""
    roads, rivers, rails = _MIXTURES[rng.choice(len(_MIXTURES), p=_MIXTURE_WEIGHTS)]
    moving = (
        [["road_upper", "road_lower"]] * roads
        + [["river_upper", "river_lower"]] * rivers
        + [["rail"]] * rails
    )
    order = [moving[i] for i in rng.permutation(len(moving))]
    spare = _ROWS - sum(map(len, moving))
    green = rng.multinomial(spare, np.full(len(order) + 1, 1 / (len(order) + 1)))
    rows = ["meadow"] * int(green[0])
    for band, meadows in zip(order, green[1:], strict=True):
        rows += band + ["meadow"] * int(meadows)
    return rows


def draw_scenes(clips: int, seed: int, first_clip: int = 0) -> Scenes:
    """Draw random scenes.

    Parameters
    ----------
    clips
        How many.
    seed, first_clip
        Scene i depends on ``(seed, first_clip + i)`` only, whatever the number of clips.
    """
    shape = (clips, _ROWS, PATCH, FRAME_SIZE)
    ground = np.zeros((*shape, 3), np.uint8)
    waves = np.zeros((clips, _ROWS, 2, PATCH, FRAME_SIZE, 3), np.uint8)
    layer, velocity = np.zeros((*shape, 4), np.uint8), np.zeros(shape[:2], np.int64)
    for i in range(clips):
        rng = np.random.default_rng((seed, first_clip + i))
        kinds = _bands(rng)
        row = 0
        while row < _ROWS:
            kind = kinds[row]
            if kind == "meadow":
                rows = 1
                while row + rows < _ROWS and kinds[row + rows] == "meadow":
                    rows += 1
                ground[i, row : row + rows] = _meadow(rng, rows)
                waves[i, row : row + rows] = ground[i, row : row + rows, None]
                row += rows
                continue
            ground[i, row] = np.tile(_calm(kind), (1, _ROWS, 1))
            for phase in range(2):
                # Every second column has waves; their phases alternate, so that the river glitters.
                columns = [_wave_cell(kind, column, phase) for column in range(_ROWS)]
                waves[i, row, phase] = np.concatenate(columns, 1)
            layer[i, row], velocity[i, row] = _lane(rng, kind)
            row += 1
    return Scenes(ground, waves, layer, velocity)


def _calm(kind: str) -> np.ndarray:
    """Return the ground of a lane's column below and beside vehicles."""
    return _CELLS[f"{kind}_calm" if kind.startswith("river") else kind]


def _wave_cell(kind: str, column: int, phase: int) -> np.ndarray:
    """Return the ground of a lane's column in frames of a phase (0 even, 1 odd)."""
    if not kind.startswith("river") or (column + kind.endswith("lower")) % 2:
        return _calm(kind)
    return _CELLS[f"{kind}_{'ab'[(phase + column // 2) % 2]}"]


def generate(clips: int, seed: int, frames: int = 8, first_clip: int = 0) -> np.ndarray:
    """Return random clips of traffic.

    Parameters
    ----------
    clips, frames
        How many clips, of how many frames.
    seed, first_clip
        Clip i depends on ``(seed, first_clip + i)`` only; other seeds give other scenes.

    Returns
    -------
    numpy.ndarray
        uint8 (clips, frames, 64, 64, 3).
    """
    return draw_scenes(clips, seed, first_clip).render(frames)


def patch_dictionary() -> np.ndarray:
    """Return every patch that can occur, uint8 (patches, 8, 8, 3), without duplicates, in a fixed order."""
    found = [picture[y : y + PATCH, x : x + PATCH]
             for picture in _FURNITURE.values()
             for y in range(0, len(picture), PATCH)
             for x in range(0, len(picture), PATCH)]  # fmt: skip
    found += list(_CELLS.values())
    for kind, (names, _, directions) in _LANES.items():
        ground = np.tile(_calm(kind), (1, _ROWS, 1))
        for name in names:
            for direction in directions:
                sprite = _sprite(name, direction)
                for offset in range(0, PATCH, _GRID):
                    strip = ground.copy()
                    part = strip[:, offset : offset + sprite.shape[1]]
                    part[...] = np.where(sprite[..., 3:] > 0, sprite[..., :3], part)
                    found += list(strip.reshape(PATCH, _ROWS, PATCH, 3).swapaxes(0, 1))
    unique: dict[bytes, np.ndarray] = {}
    for patch in found:
        unique.setdefault(patch.tobytes(), patch)
    return np.stack(list(unique.values()))
