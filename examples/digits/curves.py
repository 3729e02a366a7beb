"""Draw a training: its loss, and what its devices did in some steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from hal.demo.drawing import (
    BACKGROUND,
    BAND,
    BAR,
    FAINT,
    GRID,
    LEFT,
    MARGIN,
    RIGHT,
    TEXT,
    Canvas,
    Color,
    mix,
)
from hal.demo.observe import Observation, OperationTimes

__all__ = ["draw_loss", "draw_steps"]

_COLORS: Final[tuple[Color, ...]] = (
    (86, 156, 214),
    (232, 132, 60),
    (120, 94, 200),
    (214, 76, 110),
    (70, 160, 96),
    (28, 33, 46),
)
_TOP: Final = MARGIN + 150
_HEIGHT: Final = 640
_ROW: Final = 42
_GAP: Final = 8
_LEAST_BAR: Final = 2.0

Floats = npt.NDArray[np.float32]


def draw_loss(curves: dict[str, Floats], *, title: str, subtitle: str) -> Image.Image:
    """Return the losses of some runs, step by step, as a picture, 1800 pixels wide.

    The scale is logarithmic. The first run is drawn broad, the others above
    it, so that an equal one shows inside it.
    """
    canvas = Canvas(_TOP + _HEIGHT + 90, _TOP, 1.0)
    canvas.heading(title, subtitle)
    bottom = _TOP + _HEIGHT
    canvas.pen.rectangle((LEFT, _TOP, RIGHT, bottom), fill=BAND)
    logs = {name: np.log10(np.maximum(curve, 1e-9)) for name, curve in curves.items()}
    low = math.floor(min(float(curve.min()) for curve in logs.values()))
    high = math.ceil(max(float(curve.max()) for curve in logs.values()))
    steps = max(len(curve) for curve in curves.values())

    def place(step: float, log: float) -> tuple[float, float]:
        return canvas.x(step / max(1, steps - 1)), bottom - (log - low) / (high - low) * _HEIGHT

    for power in range(low, high + 1):
        for digit in (1, 2, 5):
            log = power + math.log10(digit)
            if log <= high:
                x, y = place(0, log)
                canvas.pen.line((x, y, RIGHT, y), fill=GRID)
                canvas.text((LEFT - 16, y), f"{digit * 10.0**power:g}", 16, FAINT, "rm")
    tenth = max(1, round(steps / 10))
    for number in range(0, steps, tenth):
        canvas.text((place(number, low)[0], bottom + 8), str(number), 16, FAINT, "ma")
    canvas.text(((LEFT + RIGHT) / 2, bottom + 38), "step", 18, FAINT, "ma")
    for index, (name, curve) in enumerate(logs.items()):
        color = mix(_COLORS[0], BACKGROUND, 0.5) if index == 0 else _COLORS[index]
        width = 11 if index == 0 else 3
        points = [place(step, float(log)) for step, log in enumerate(curve)]
        canvas.pen.line(points, fill=color, width=width, joint="curve")
        key = _TOP + 24 + 32 * index
        canvas.pen.line((RIGHT - 380, key, RIGHT - 330, key), fill=color, width=width)
        canvas.text((RIGHT - 312, key), name, 19, TEXT, "lm")
    return canvas.image


def draw_steps(
    observation: Observation, kinds: Sequence[str], *, title: str, subtitle: str
) -> Image.Image:
    """Return some observed steps as a picture, 1800 pixels wide.

    One row for each queue that had work, one colour for each of `kinds` that
    occurs; an operation's ``tile`` is its kind's number. `title` and `subtitle`
    are one line each.
    """
    rows: dict[str, list[OperationTimes]] = {stage: [] for stage in observation.stages}
    for operation in observation.operations:
        rows[operation.stage].append(operation)
    rows = {stage: operations for stage, operations in rows.items() if operations}
    bottom = _TOP + len(rows) * (_ROW + _GAP)
    canvas = Canvas(bottom + 130, _TOP, observation.seconds)
    canvas.heading(title, subtitle)
    seen = sorted({operation.tile for operation in observation.operations})
    for column, index in enumerate(seen):
        key = LEFT + 220 * column
        canvas.pen.rectangle((key, MARGIN + 92, key + 28, MARGIN + 112), fill=_COLORS[index])
        canvas.text((key + 40, MARGIN + 102), kinds[index], 19, TEXT, "lm")
    tops = {stage: _TOP + index * (_ROW + _GAP) for index, stage in enumerate(rows)}
    for stage, top in tops.items():
        canvas.band(top, _ROW, *stage.rsplit(" ", 1))
    canvas.axis(bottom)
    for stage, operations in rows.items():
        for each in operations:
            left = canvas.x(each.ready)
            right = max(canvas.x(each.retired), left + _LEAST_BAR)
            box = (left, tops[stage] + 4, right, tops[stage] + _ROW - 4)
            canvas.pen.rectangle(box, fill=_COLORS[each.tile])
    canvas.caption(bottom + 58, (BAR, observation.lateness))
    return canvas.image
