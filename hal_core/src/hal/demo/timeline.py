"""Draw the timeline of an observed run: queues, their progress, and their overlap."""

from __future__ import annotations

import colorsys
import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from hal.demo.drawing import (
    BACKGROUND,
    BAR,
    FAINT,
    LEFT,
    LINE_HEIGHT,
    MARGIN,
    RIGHT,
    ROOM_FOR_TEXT,
    TEXT,
    Canvas,
    Color,
    font,
    mix,
)
from hal.demo.observe import STAGES, Observation, OperationTimes
from hal.demo.tiles import Tile

_MAP_HEIGHT: Final = 168
_TOP: Final = MARGIN + _MAP_HEIGHT + 44
_QUEUE_HEIGHT: Final = 78
_PROGRESS_HEIGHT: Final = 104
_GAP: Final = 12
_ISSUE_STRIP: Final = 12
_LEAST_BAR: Final = 2.0
_TEXT_HEIGHT: Final = 12

_PROGRESS: Final = ("uploaded", "computed", "downloaded")


class RunTimeline(Canvas):
    """A picture of a run: a row for each queue, one for its progress, a colour for each tile."""

    def __init__(self, observation: Observation, tiles: Sequence[Tile]) -> None:
        self._observation = observation
        self._tiles = tiles
        self._colors = [_color(index, len(tiles)) for index in range(len(tiles))]
        self._steps = 1 + max(operation.number for operation in observation.operations)
        rows = LINE_HEIGHT + len(STAGES) * (_QUEUE_HEIGHT + _GAP) + 2 * _GAP
        rows += len(STAGES) * (_PROGRESS_HEIGHT + _GAP)
        super().__init__(_TOP + rows + 172, _TOP, observation.seconds)

    def draw(self, picture: npt.NDArray[np.uint8], title: str, subtitle: str) -> Image.Image:
        """Draw it, and return it; `picture` becomes the legend, and both titles are one line."""
        overlap = self._observation.overlap()
        self.heading(title, subtitle)
        self.text(
            (MARGIN, MARGIN + 86),
            f"{100 * overlap.together:.0f} % of the time two or more queues were busy at once",
            21,
        )
        self.text(
            (MARGIN, MARGIN + 120),
            "busy:  "
            + ",  ".join(f"{stage} {100 * overlap.busy[stage]:.0f} %" for stage in STAGES),
            18,
            FAINT,
        )
        self._map(picture)

        top = _TOP
        by_stage = {
            stage: [o for o in self._observation.operations if o.stage == stage] for stage in STAGES
        }
        tops: dict[str, int] = {}
        self.band(top, LINE_HEIGHT, "host", "submits")
        host_top = top
        top += LINE_HEIGHT + _GAP
        for stage in STAGES:
            busy = f"{len(by_stage[stage])} operations"
            self.band(top, _QUEUE_HEIGHT, f"queue {stage}", busy)
            tops[stage] = top
            top += _QUEUE_HEIGHT + _GAP
        top += _GAP
        for name in _PROGRESS:
            self.band(top, _PROGRESS_HEIGHT, f"tiles\n{name}", "how many")
            tops[name] = top
            top += _PROGRESS_HEIGHT + _GAP
        self.axis(top)

        for operation in self._observation.operations:
            self._tick(host_top + 4, LINE_HEIGHT - 8, operation.submitted, operation.tile)
        self._links(by_stage, tops)
        for stage in STAGES:
            self._queue(by_stage[stage], tops[stage])
        for name, stage in zip(_PROGRESS, STAGES, strict=True):
            self._staircase(by_stage[stage], tops[name])
        self.caption(
            top + 58,
            (
                f"{BAR} Tick above the bars: issued.",
                f"Line between queues: one tile on its way. {self._observation.lateness}",
                (
                    "What the device did inside a bar the host cannot see: a bar holds start-up "
                    "and waiting for a processor too. Of several runs this is the one with the "
                    "shortest gap between two looks."
                ),
            ),
        )
        return self.image

    def _map(self, picture: npt.NDArray[np.uint8]) -> None:
        """Draw the picture with its tiles, each in its colour, at the upper right."""
        height, width, _ = picture.shape
        scale = min(_MAP_HEIGHT / height, 420 / width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        grey = Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS).convert("L")
        thumbnail = grey.convert("RGB")
        tint = Image.new("RGB", size)
        pen = ImageDraw.Draw(tint)
        boxes = []
        for tile, color in zip(self._tiles, self._colors, strict=True):
            left, top = tile.left * scale, tile.top * scale
            box = (left, top, left + tile.width * scale, top + tile.height * scale)
            pen.rectangle(box, fill=color)
            boxes.append(box)
        thumbnail = Image.blend(thumbnail, tint, 0.55)
        pen = ImageDraw.Draw(thumbnail)
        for index, box in enumerate(boxes):
            pen.rectangle(box, outline=BACKGROUND)
            middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            if box[2] - box[0] > ROOM_FOR_TEXT and box[3] - box[1] > _TEXT_HEIGHT:
                pen.text(middle, str(index), fill=BACKGROUND, font=font(13), anchor="mm")
        left = RIGHT - size[0]
        self.image.paste(thumbnail, (left, MARGIN))
        self.text((left - 16, MARGIN + 8), "tiles", 18, anchor="ra")
        self.text((left - 16, MARGIN + 34), "one colour each", 15, FAINT, "ra")

    def _tick(self, top: float, height: float, seconds: float, tile: int) -> None:
        x = self.x(seconds)
        self.pen.line((x, top, x, top + height), fill=self._colors[tile], width=2)

    def _bar(self, operation: OperationTimes) -> tuple[float, float]:
        left = self.x(operation.ready)
        return left, max(self.x(operation.retired), left + _LEAST_BAR)

    def _links(self, by_stage: dict[str, list[OperationTimes]], tops: dict[str, int]) -> None:
        """Join the bars of one tile from queue to queue."""
        for upper, lower in itertools.pairwise(STAGES):
            for source, target in zip(by_stage[upper], by_stage[lower], strict=True):
                start = self.x(source.retired)
                end = self.x(target.ready)
                color = mix(self._colors[source.tile], BACKGROUND, 0.45)
                self.pen.line(
                    (start, tops[upper] + _QUEUE_HEIGHT - 4, end, tops[lower] + _ISSUE_STRIP + 4),
                    fill=color,
                    width=2,
                )

    def _queue(self, operations: Sequence[OperationTimes], top: int) -> None:
        for operation in operations:
            self._tick(top + 1, _ISSUE_STRIP - 3, operation.issued, operation.tile)
        upper, lower = top + _ISSUE_STRIP, top + _QUEUE_HEIGHT - 4
        for operation in operations:
            left, right = self._bar(operation)
            color = self._colors[operation.tile]
            self.pen.rectangle((left, upper, right, lower), fill=color)
            if right - left > 2 * _LEAST_BAR:
                self.pen.line((right, upper, right, lower), fill=BACKGROUND)
            if right - left > ROOM_FOR_TEXT:
                middle = ((left + right) / 2, (upper + lower) / 2)
                self.text(middle, str(operation.tile), 15, BACKGROUND, "mm")

    def _staircase(self, operations: Sequence[OperationTimes], top: int) -> None:
        """Draw how many steps have ended as a staircase, with the numbers written to it."""
        floor, ceiling = top + _PROGRESS_HEIGHT - 6, top + 22
        rise = (floor - ceiling) / self._steps
        self.text((RIGHT + 14, ceiling), str(self._steps), 15, FAINT, "lm")
        self.text((RIGHT + 14, floor), "0", 15, FAINT, "lm")
        x, y = float(LEFT), float(floor)
        written = -1e9
        for operation in operations:
            next_x = self.x(operation.retired)
            next_y = floor - (operation.number + 1) * rise
            self.pen.line((x, y, next_x, y), fill=TEXT, width=2)
            color = self._colors[operation.tile]
            self.pen.line((next_x, y, next_x, next_y), fill=TEXT, width=2)
            self.pen.ellipse((next_x - 4, next_y - 4, next_x + 4, next_y + 4), fill=color)
            value = str(operation.number + 1)
            if next_x - written > 12 + 9 * len(value):
                middle = min(max(next_x - 6, LEFT + 10), RIGHT - 12)
                self.text((middle, next_y - 6), value, 14, TEXT, "mb")
                written = next_x
            x, y = next_x, next_y
        self.pen.line((x, y, RIGHT, y), fill=TEXT, width=2)


def _color(index: int, count: int) -> Color:
    """Return the colour of a tile: round the circle in order, every other one darker."""
    red, green, blue = colorsys.hls_to_rgb(
        0.58 + 0.82 * index / max(1, count), 0.50 if index % 2 else 0.40, 0.62
    )
    return round(255 * red), round(255 * green), round(255 * blue)
