"""Colours of pictures and page, in light and dark; the categories are Okabe and Ito's, made for every kind of sight."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.colors import LinearSegmentedColormap

__all__ = ["DARK", "LIGHT", "THEMES", "Theme"]


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours that belong together; the page's style sheet and the pictures both read them.

    Attributes
    ----------
    name
        ``light`` or ``dark``, as the media query calls it.
    ink, muted, line, surface, page
        Text; text of second rank; rules and axes; ground of a card; ground of the page.
    accent
        Whatever stands for work that was done.
    replayed, barred
        Work that was saved; places where replay was not allowed.
    good, bad, unsure
        Verdicts.
    bus
        What a beat of the memory bus carried, by the name of its counter without ``beats_``.
    """

    name: str
    ink: str
    muted: str
    line: str
    surface: str
    page: str
    accent: str
    replayed: str
    barred: str
    good: str
    bad: str
    unsure: str
    bus: dict[str, str] = field(hash=False)

    @property
    def work(self) -> LinearSegmentedColormap:
        """Colours from everything replayed (0) to everything computed (1)."""
        return LinearSegmentedColormap.from_list(f"work-{self.name}", [self.replayed, self.accent])

    def runs(self, count: int) -> list[str]:
        """Return a colour a run: grey for the first, the dense one, then steps of the accent from pale to full."""
        colours = [self.muted]
        ramp = LinearSegmentedColormap.from_list("runs", [self.replayed, self.accent])
        for number in range(1, count):
            red, green, blue, _ = ramp(0.3 + 0.7 * number / max(1, count - 1))
            colours.append(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")
        return colours


LIGHT = Theme(
    name="light",
    ink="#1c2128",
    muted="#5b6572",
    line="#d5dae1",
    surface="#ffffff",
    page="#f5f6f8",
    accent="#0072b2",
    replayed="#dcebf5",
    barred="#c3c8cf",
    good="#00704f",
    bad="#b3261e",
    unsure="#8a5a00",
    bus={
        "weights": "#0072b2",
        "kv": "#56b4e9",
        "replay": "#e69f00",
        "params": "#009e73",
        "control": "#cc79a7",
        "written": "#d55e00",
        "idle": "#e6e9ed",
    },
)

DARK = Theme(
    name="dark",
    ink="#e7ebf0",
    muted="#9ba6b3",
    line="#39424d",
    surface="#191e25",
    page="#10141a",
    accent="#5cb8f0",
    replayed="#22374a",
    barred="#4a525c",
    good="#3fd1a1",
    bad="#ff8a7a",
    unsure="#f0b849",
    bus={
        "weights": "#2f8fd0",
        "kv": "#8accf2",
        "replay": "#f0b440",
        "params": "#1fb88c",
        "control": "#dd97bd",
        "written": "#e8743b",
        "idle": "#2c343e",
    },
)

THEMES = (LIGHT, DARK)
