"""Pixel art of the traffic world, drawn in characters.

Every picture is 8 or 16 pixels high, seen from above.  A dot is transparent; vehicles keep clear of the first
and the last pixel row, so that kerbs and lane markings below them are never hidden.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "CAR_COLOURS",
    "PALETTE",
    "TRUCK_COLOURS",
    "backgrounds",
    "car",
    "furniture",
    "picture",
    "vehicles",
]

#: Colours by character, 8-bit RGB.
PALETTE: dict[str, tuple[int, int, int]] = {
    # meadow, from dark to light; flowers
    "g": (86, 152, 66), "G": (98, 168, 74), "v": (74, 136, 58), "y": (250, 214, 74), "i": (240, 240, 250),
    "P": (226, 104, 150),
    # leaves and trunk
    "1": (30, 78, 42), "2": (42, 104, 52), "3": (60, 132, 62), "4": (92, 164, 78), "n": (104, 72, 46),
    # roofs (two tones and ridge), chimney
    "r": (176, 68, 52), "R": (204, 88, 66), "q": (140, 50, 42), "u": (92, 96, 128), "U": (116, 122, 156),
    "x": (70, 74, 104), "c": (214, 196, 170),
    # asphalt, markings, kerb
    "a": (66, 68, 76), "A": (72, 74, 82), "m": (228, 226, 214), "k": (150, 148, 142),
    # water, foam, sand
    "w": (44, 112, 178), "W": (60, 130, 194), "f": (150, 204, 236),
    "s": (222, 200, 142), "S": (196, 172, 116),
    # wood
    "d": (92, 58, 34), "D": (126, 82, 48), "e": (154, 106, 64), "E": (206, 164, 112),
    # ballast, sleepers, rails
    "b": (142, 132, 120), "B": (124, 114, 104), "t": (92, 70, 56), "T": (196, 200, 208),
    # lights, glass, rubber, white paint
    "L": (255, 240, 150), "l": (224, 40, 40), "z": (40, 58, 84), "Z": (92, 130, 168), "K": (28, 28, 32),
    "H": (238, 240, 244), "h": (204, 208, 216),
    # train
    "o": (22, 104, 112), "O": (32, 140, 146), "p": (14, 72, 80),
    # duck
    "j": (250, 204, 60), "J": (238, 126, 40),
}  # fmt: skip

#: Outline, body and highlight of the cars and of the trucks' loads.
CAR_COLOURS = (
    ((136, 26, 36), (212, 48, 52), (240, 92, 84)),
    ((26, 62, 140), (52, 104, 206), (104, 152, 236)),
    ((176, 120, 16), (242, 188, 44), (255, 220, 112)),
    ((150, 152, 160), (226, 228, 234), (250, 250, 252)),
)
TRUCK_COLOURS = (((60, 110, 60), (104, 168, 96), (140, 200, 128)),)

_CAR = """
............
.###KK##KK#.
l+*zZZZZzz*L
++*z****Zz++
++*z****Zz++
l+*zzzzzzz*L
.###KK##KK#.
............
"""
_TRUCK = """
....................
.#############.##KK.
l*************#hzZHL
l+++++++++++++hhzZHh
l+++++++++++++hhzZHh
l+++++++++++++#hzzHL
.#############.##KK.
....................
"""
_LOG_END = """
........
..dddddd
.EDDeDDD
dEeeeeee
dEDDDDDe
.EDeeDDD
..dddddd
........
"""
_LOG_MIDDLE = """
........
dddddddd
DDDeDDDD
eeeeeDee
DDDeeeDD
DeDDDDDD
dddddddd
........
"""
_DUCK = """
......
......
.HH...
HHHjj.
HhHjjJ
.hHH..
......
......
"""
_LOCOMOTIVE = """
................
.pppppppppppp...
pOOOOOOOOOOOOHH.
pOoooozzoooozZHL
pOoooozzoooozZHL
pOOOOOOOOOOOOHH.
.pppppppppppp...
................
"""
_WAGON = """
................
.pppppppppppppp.
.oOOOOOOOOOOOOo.
KozzozzoozzozzoK
KozzozzoozzozzoK
.oOOOOOOOOOOOOo.
.pppppppppppppp.
................
"""
_MEADOW = {
    "grass": "GGGGGGGG GGgGGGGG GGGGGGgG GGGGGGGG GgGGGGGG GGGGGGGG GGGGgGGG GGGGGGGG",
    "tuft": "GGGGGGGG GGvGvGGG GGgvgGGG GGGvGGGG GGGGGGGG GGGGGvGv GgGGGgvg GGGGGGvG",
    "flowers": "GGGGGGGG GyGGGGGG yPyGGiGG GyGGiyiG GvGGGiGG GGGyGvGG GGyPyGGG GGGyGGGG",
    "bush": "GGGGGGGG GG2332GG G234432G 23443321 23433321 12333211 G122211v GvvvvvvG",
    "sapling": "GG1331GG G134431G 13443321 13433221 12332211 G122211v GG1n1vvv GGGvvvvG",
    "rock": "GGGGGGGG GGGGGGGG GGGhkkGG GGhHhkkG GhhhkkbG GkkkkbbB GGbbbBBv GGGvvvvG",
}
_TREE = """
GGGGGG1111GGGGGG
GGGG11222211GGGG
GGG1233433221GGG
GG123444433221GG
G12344444332211G
G12344443333221G
1234444333322211
1233443333232211
1233333332222211
1223333322222111
G12233322322111v
G1122222222111vv
GG11222221111vvv
GGG111221111vvvG
GGGGG1nn11vvvvGG
GGGGGGvvvvvvGGGG
"""
_HOUSE = """
GGGGGGGGGGGGGGGG
GqqqqqqqqqqqqqqG
GRRRRRRRRRRRRRqG
GRrRrRrRrRcccRqv
GRRRRRRRRRckcRqv
GrRrRrRrRrcccrqv
GRRRRRRRRRRRRRqv
GHHHHHHHHHHHHHqv
Grrrrrrrrrrrrrqv
Gqrqrqrqrqrqrqqv
Grrrrrrrrrrrrrqv
Grqrqrqrqrqrqrqv
Grrrrrrrrrrrrrqv
Gqqqqqqqqqqqqqqv
Gvvvvvvvvvvvvvvv
GGGGGGGGGGGGGGGG
"""
_ROAD_UPPER = "kkkkkkkk mmmmmmmm aaaaaaaa aaAaaaaa aaaaaaAa aaaaaaaa aaaaaaaa aammmmaa"
_ROAD_LOWER = "aaaaaaaa aaaaaaaa aaAaaaaa aaaaaaAa aaaaaaaa aaaaaaaa mmmmmmmm kkkkkkkk"
_RAIL = "bbBbbbbB bttbbttb TTTTTTTT BttbbttB bttBbttb TTTTTTTT bttbbttb BbbbbBbb"
#: Middle of the river; the banks replace the first or the last row.
_CALM = "wwwwwwww wwwwwwww wwwwwwww wwwwwwww wwwwwwww wwwwwwww wwwwwwww wwwwwwww"
_WAVE_A = "wwwwwwww wwwwwwww wwffwwww wfWWfwww wwwwwwww wwwwwwww wwwwwWWw wwwwwwww"
_WAVE_B = "wwwwwwww wwwwwwww wWWwwwww wwwwwwww wwwwwffw wwwwfWWf wwwwwwww wwwwwwww"


def picture(text: str, colours: dict[str, tuple[int, int, int]] | None = None) -> np.ndarray:
    """Return the picture that characters draw.

    Parameters
    ----------
    text
        Rows of equal length, separated by white space.
    colours
        Characters beyond `PALETTE`.

    Returns
    -------
    numpy.ndarray
        uint8 (height, width, 4): RGB and alpha (0 or 255).
    """
    lookup = PALETTE | (colours or {})
    rows = [[(0, 0, 0, 0) if ch == "." else (*lookup[ch], 255) for ch in row] for row in text.split()]
    return np.array(rows, np.uint8)


def car(text: str, colour: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """Return a vehicle that faces right, with outline ``#``, body ``+`` and highlight ``*`` in a colour."""
    return picture(text, dict(zip("#+*", colour, strict=True)))


def vehicles() -> dict[str, np.ndarray]:
    """Return everything that moves, facing right: uint8 (8, length, 4) by name, in pixels."""
    log = picture(_LOG_END)
    middle = picture(_LOG_MIDDLE)
    found = {f"car{i}": car(_CAR, colour) for i, colour in enumerate(CAR_COLOURS)}
    found |= {f"truck{i}": car(_TRUCK, colour) for i, colour in enumerate(TRUCK_COLOURS)}
    found["log"] = np.concatenate([log, log[:, ::-1]], 1)
    found["long_log"] = np.concatenate([log, middle, log[:, ::-1]], 1)
    found["duck"] = picture(_DUCK)
    found["train"] = np.concatenate([picture(_WAGON), picture(_WAGON), picture(_LOCOMOTIVE)], 1)
    return found


def furniture() -> dict[str, np.ndarray]:
    """Return what stands on the meadow: uint8 RGB (8, 8, 3) or (16, 16, 3) by name."""
    found = {name: picture(text)[..., :3] for name, text in _MEADOW.items()}
    found["tree"] = picture(_TREE)[..., :3]
    found["house"] = picture(_HOUSE)[..., :3]
    blue = dict(zip("rRq", (PALETTE[ch] for ch in "uUx"), strict=True))
    found["blue_house"] = picture(_HOUSE, blue)[..., :3]
    return found


def backgrounds() -> dict[str, np.ndarray]:
    """Return one cell of every kind of lane: uint8 RGB (8, 8, 3) by name.

    ``upper`` and ``lower`` name the two lanes of a road or a river; ``a`` and ``b`` the phases of waves.
    """
    road = {"road_upper": _ROAD_UPPER, "road_lower": _ROAD_LOWER, "rail": _RAIL}
    found = {name: picture(text)[..., :3] for name, text in road.items()}
    for phase, text in (("calm", _CALM), ("a", _WAVE_A), ("b", _WAVE_B)):
        rows = text.split()
        found[f"river_upper_{phase}"] = picture(" ".join(["SsssSsss", *rows[1:]]))[..., :3]
        found[f"river_lower_{phase}"] = picture(" ".join([*rows[:-1], "sssSsssS"]))[..., :3]
    return found
