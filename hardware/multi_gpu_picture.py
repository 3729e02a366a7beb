"""Draw what `multi_gpu.py` has found: verdicts, rates of copies, losses, and some steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multi_gpu_findings import Findings
from PIL import Image

from digits import curves
from hal.demo.drawing import (
    BACKGROUND,
    BAND,
    FAINT,
    GRID,
    LEFT,
    MARGIN,
    RIGHT,
    WIDTH,
    Canvas,
    Color,
    round_step,
)

__all__ = ["draw"]

SIDES: dict[str, Color] = {
    "raw": (120, 120, 130),
    "hal": (86, 156, 214),
    "flow": (232, 132, 60),
    "staged": (120, 94, 200),
}
_HEIGHT = 480
_GOOD, _BAD = (70, 150, 90), (200, 60, 60)


def draw(parts: Sequence[Findings], record: dict[str, Any], path: Path) -> None:
    """Write the picture, 1800 pixels wide: what there is of each part, one below the other."""
    found = {part.name: part for part in parts}
    pictures = [_verdicts(parts, record)]
    rates = found.get("rates")
    if rates is not None and rates.rows:
        pictures.append(_rates(rates))
    trained = found["training"].drawn if "training" in found else {}
    where = f"{record['settings']['devices']} devices of {record['settings']['backend']}"
    if "losses" in trained:
        pictures.append(
            curves.draw_loss(
                trained["losses"],
                title=f"Training on {where}",
                subtitle="a network for handwritten digits, its batches divided among the devices",
            )
        )
    if "steps" in trained:
        pictures.append(
            curves.draw_steps(
                trained["steps"],
                trained["kinds"],
                title="Three steps of the training",
                subtitle="a gradient on each device, merged into the first, from which all learn",
            )
        )
    whole = Image.new("RGB", (WIDTH, sum(each.height for each in pictures)), BACKGROUND)
    top = 0
    for each in pictures:
        whole.paste(each, (0, top))
        top += each.height
    whole.save(path)


def _verdicts(parts: Sequence[Findings], record: dict[str, Any]) -> Image.Image:
    machine = record["machine"]
    names = ", ".join(
        f"{machine['devices'].count(name)} x {name}" for name in dict.fromkeys(machine["devices"])
    )
    height = MARGIN + 100 + 34 * len(parts)
    canvas = Canvas(height + MARGIN, 0, 1.0)
    canvas.text((MARGIN, MARGIN - 4), f"Several devices together: {names}", 30)
    shared = f", as {record['settings']['devices']} virtual devices" if machine["virtual"] else ""
    canvas.text((MARGIN, MARGIN + 40), f"driver {machine['driver']}{shared}; {machine['date']}", 18)
    for index, part in enumerate(parts):
        y = MARGIN + 96 + 34 * index
        canvas.text((MARGIN, y), part.name, 20)
        canvas.text((LEFT, y), f"{part.seconds:.1f} s", 20, FAINT)
        told = "; ".join(part.problems) or f"passed, {len(part.rows)} rows"
        canvas.text((LEFT + 120, y), told[:140], 20, _BAD if part.problems else _GOOD)
    return canvas.image


def _rates(part: Findings) -> Image.Image:
    """Draw the rates of the first pair over the size, for each way."""
    pair = part.rows[0]["pair"]
    rows = [row for row in part.rows if row["pair"] == pair]
    top = MARGIN + 120
    bottom = top + _HEIGHT
    canvas = Canvas(bottom + 190, top, 1.0)
    subtitle = (
        "some in a row, from the first submission until the host knows the end of the last; "
        "medians, and the part of the raw call's"
    )
    canvas.heading(f"Copies from device {pair}, GB/s", subtitle)
    canvas.pen.rectangle((LEFT, top, RIGHT, bottom), fill=BAND)
    values = [row[f"{side} GB/s"] for row in rows for side in SIDES if f"{side} GB/s" in row]
    step = round_step(max(values) / 6)
    high = step * math.ceil(max(values) / step)

    def place(index: int, value: float) -> tuple[float, float]:
        x = LEFT + (index + 0.5) * (RIGHT - LEFT) / len(rows)
        return x, bottom - value / high * _HEIGHT

    for number in range(round(high / step) + 1):
        _, y = place(0, number * step)
        canvas.pen.line((LEFT, y, RIGHT, y), fill=GRID)
        canvas.text((LEFT - 12, y), f"{number * step:g}", 16, FAINT, "rm")
    shown = [side for side in SIDES if any(f"{side} GB/s" in row for row in rows)]
    for index, row in enumerate(rows):
        canvas.text((place(index, 0)[0], bottom + 8), f"{row['MiB']} MiB", 17, FAINT, "ma")
    for line, side in enumerate(shown):
        color = SIDES[side]
        points = [
            place(index, row[f"{side} GB/s"])
            for index, row in enumerate(rows)
            if f"{side} GB/s" in row
        ]
        canvas.pen.line(points, fill=color, width=9 - 2 * line, joint="curve")
        y = bottom + 48 + 26 * line
        canvas.pen.line((MARGIN, y, MARGIN + 40, y), fill=color, width=9 - 2 * line)
        canvas.text((MARGIN + 56, y), side, 18, anchor="lm")
        for index, row in enumerate(rows):
            if f"{side} GB/s" in row:
                ratio = f" ({row[f'{side} / raw']:.3f})" if f"{side} / raw" in row else ""
                text = f"{row[f'{side} GB/s']:.1f}{ratio}"
                canvas.text((place(index, 0)[0], y), text, 17, color, "mm")
    return canvas.image
