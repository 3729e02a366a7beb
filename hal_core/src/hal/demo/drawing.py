"""A canvas with rows for queues and a time axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]

WIDTH: Final = 1800
MARGIN: Final = 36
LEFT: Final = 190
RIGHT: Final = WIDTH - 80
LINE_HEIGHT: Final = 34
ROOM_FOR_TEXT: Final = 20

BACKGROUND: Final = (255, 255, 255)
BAND: Final = (247, 248, 251)
GRID: Final = (222, 226, 234)
TEXT: Final = (28, 33, 46)
FAINT: Final = (108, 116, 134)

BAR: Final = (
    "Bar: from the moment when nothing held the operation back (issued, what it waits for ended, "
    "its predecessor in the queue retired) to its retirement."
)
"""The caption of an operation's bar."""


class Canvas:
    """A picture, `WIDTH` pixels wide, and its time scale, while it is drawn.

    Its rows begin at `top`; from `LEFT` to `RIGHT` it is `seconds` long.
    """

    def __init__(self, height: int, top: int, seconds: float) -> None:
        self.image = Image.new("RGB", (WIDTH, height), BACKGROUND)
        self.pen = ImageDraw.Draw(self.image)
        self.top = top
        self.seconds = seconds

    def x(self, seconds: float) -> float:
        """Return the position of a moment, from the left."""
        return LEFT + seconds * (RIGHT - LEFT) / (self.seconds or 1e-9)

    def text(
        self,
        at: tuple[float, float],
        text: str,
        size: int,
        color: Color = TEXT,
        anchor: str | None = None,
    ) -> None:
        """Write a line, as ASCII."""
        plain = text.encode("ascii", "replace").decode()
        self.pen.text(at, plain, fill=color, font=font(size), anchor=anchor)

    def heading(self, title: str, subtitle: str) -> None:
        """Write the title, and a line below it."""
        self.text((MARGIN, MARGIN - 4), title, 30)
        self.text((MARGIN, MARGIN + 40), subtitle, 18, FAINT)

    def caption(self, top: float, lines: Iterable[str]) -> None:
        """Write lines of explanation, from `top` down."""
        for index, line in enumerate(lines):
            self.text((MARGIN, top + 26 * index), line, 17, FAINT)

    def band(self, top: int, height: int, label: str, note: str) -> None:
        """Draw the band of a row, with its label beside it."""
        self.pen.rectangle((LEFT, top, RIGHT, top + height), fill=BAND)
        lines = [*label.split("\n"), note] if height > LINE_HEIGHT else [f"{label} {note}"]
        line = top + height / 2 - 11 * (len(lines) - 1)
        for index, text in enumerate(lines):
            last = index == len(lines) - 1 and len(lines) > 1
            self.text((LEFT - 16, line), text, 15 if last else 18, FAINT if last else TEXT, "rm")
            line += 22

    def axis(self, top: int) -> None:
        """Draw the time axis, down to `top`."""
        milliseconds = self.seconds * 1e3
        step = round_step(milliseconds / 12)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        for index in range(int(milliseconds / step) + 1):
            x = self.x(index * step / 1e3)
            self.pen.line((x, self.top - 8, x, top), fill=GRID)
            if x < RIGHT - 2 * ROOM_FOR_TEXT:
                self.text((x, top + 6), f"{index * step:.{digits}f}", 16, FAINT, "ma")
        self.text((RIGHT + 14, top + 6), "ms", 16, FAINT)


# It has no Greek letters and no signs beyond ASCII.
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, the same on every machine."""
    return ImageFont.load_default(size)


def mix(color: Color, other: Color, part: float) -> Color:
    """Return a colour with a `part` of another one."""
    red, green, blue = (round(a * (1 - part) + b * part) for a, b in zip(color, other, strict=True))
    return red, green, blue


def round_step(least: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, ... that is at least `least` milliseconds."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-6)))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least - 1e-12)
