"""Measure how far copies and kernels overlap: ``python hardware/overlap.py --device cuda``.

The demo's kernels over its tiles, with the host's side in pinned memory. Each
stage alone, then all three in a pipeline; times are the device's own, taken on
its queues. Writes a picture of the pipeline's timeline and, as JSON, the
numbers: the seconds of the parts, their sum, the longest, and the pipeline's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

import hal
from hal.demo.drawing import BACKGROUND, MARGIN, Canvas, Color
from hal.demo.kernels import EDGES, HEADER, TILE, TileKernels
from hal.demo.observe import STAGES
from hal.demo.tiles import Tile, cut

SIGMA: Final = 2.0
SLOTS: Final = 4
ROUNDS: Final = 11
_COLORS: Final[Sequence[Color]] = ((86, 156, 214), (220, 160, 80), (120, 190, 120), (200, 110, 160))
_ROW: Final = 64

Span = tuple[str, int, float, float]
"""A stage, a tile, and from when to when, in seconds."""


class Overlap:
    """Hold the tiles of a picture in pinned memory, and what works on them."""

    def __init__(self, device: hal.Device, side: int, tile_size: int) -> None:
        self._device = device
        self.tiles: Sequence[Tile] = cut(side, side, tile_size)
        kernels = TileKernels(device, SIGMA, self.tiles[0])
        with device.record(slots=kernels.slots, hazards="auto") as self._commands:
            kernels.record(self._commands)
        self._slots = [
            [device.allocate(size, dtype=dtype) for dtype, size in kernels.slots]
            for _ in range(SLOTS)
        ]
        (_, bytes_of_tile), (_, pixels) = kernels.slots[TILE], kernels.slots[EDGES]
        self._sources = [device.allocate(bytes_of_tile, memory="host") for _ in self.tiles]
        self._results = [device.allocate(pixels, memory="host") for _ in self.tiles]
        for number, (source, tile) in enumerate(zip(self._sources, self.tiles, strict=True)):
            view = source.map("write")
            view[:HEADER].view(np.int32)[:] = tile.width, tile.height
            colors = np.random.default_rng(number).integers(0, 255, view.size - HEADER, np.uint8)
            view[HEADER:] = colors
            del view

    def run(self, stages: Sequence[str]) -> list[Span]:
        """Send every tile through some of the stages; return when the device did what."""
        queues = self._device.queues
        work: dict[str, Callable[..., hal.Submission]] = {
            "upload": lambda tile, slot, **order: queues.upload.copy(
                self._sources[tile], slot[TILE], **order
            ),
            "compute": lambda _, slot, **order: queues.compute.execute(
                self._commands, bindings=slot, **order
            ),
            "download": lambda tile, slot, **order: queues.download.copy(
                slot[EDGES], self._results[tile], **order
            ),
        }
        reached = {stage: hal.create_semaphore() for stage in STAGES}
        times = []
        begin = queues.compute.timestamp()
        begin.wait()
        for tile in range(len(self.tiles)):
            slot = self._slots[tile % SLOTS]
            for number, stage in enumerate(STAGES):
                if stage not in stages:
                    continue
                queue = getattr(queues, stage)
                # The stage before of this tile, and the one behind of the slot's tile before.
                waits = [reached[each].at(tile + 1) for each in STAGES[:number] if each in stages][
                    -1:
                ]
                if tile >= SLOTS:
                    behind = [each for each in STAGES[number + 1 :] if each in stages]
                    waits += [reached[each].at(tile - SLOTS + 1) for each in behind[:1]]
                start = queue.timestamp(wait=waits)
                work[stage](tile, slot, signal=[reached[stage].at(tile + 1)])
                times.append((stage, tile, start, queue.timestamp()))
        self._device.wait_idle()
        return [
            (stage, tile, start.seconds_since(begin), end.seconds_since(begin))
            for stage, tile, start, end in times
        ]


def elapsed(spans: Sequence[Span]) -> float:
    """Return the seconds from the first beginning to the last end."""
    return max(span[3] for span in spans) - min(span[2] for span in spans)


def draw(spans: Sequence[Span], path: Path, lines: Sequence[str]) -> None:
    """Write the timeline: a row for each queue, a bar for each tile."""
    first = min(span[2] for span in spans)
    top = MARGIN + 26 * len(lines) + 12
    canvas = Canvas(top + _ROW * len(STAGES) + 48, top, elapsed(spans))
    for number, line in enumerate(lines):
        canvas.text((MARGIN, MARGIN + 26 * number), line, 18)
    for row, stage in enumerate(STAGES):
        y = top + row * _ROW
        canvas.band(y + 4, _ROW - 8, stage, f"{len(spans) // len(STAGES)} tiles")
        for name, tile, start, end in spans:
            if name == stage:
                box = (canvas.x(start - first), y + 8, canvas.x(end - first), y + _ROW - 8)
                canvas.pen.rectangle(box, fill=_COLORS[tile % len(_COLORS)], outline=BACKGROUND)
    canvas.axis(top + _ROW * len(STAGES))
    canvas.image.save(path)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure the overlap of copies and kernels.")
    parser.add_argument("--device", default="cuda", help="as for hal.create_device")
    parser.add_argument("--side", type=int, default=8192, help="pixels along the picture's side")
    parser.add_argument("--tile", type=int, default=2048, help="pixels along a tile's side")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    parser.add_argument("--picture", type=Path, help="where the timeline is written")
    options = parser.parse_args()
    with hal.create_device(options.device) as device:
        overlap = Overlap(device, options.side, options.tile)
        overlap.run(STAGES)
        seconds = {
            stage: statistics.median(elapsed(overlap.run([stage])) for _ in range(ROUNDS))
            for stage in STAGES
        }
        runs = sorted((overlap.run(STAGES) for _ in range(ROUNDS)), key=elapsed)
        spans = runs[len(runs) // 2]
        facts = {
            "device": device.info.name,
            "driver": device.info.driver,
            "picture": f"{options.side} x {options.side} pixels, {len(overlap.tiles)} tiles",
            **{f"{stage} alone, ms": 1e3 * value for stage, value in seconds.items()},
            "sum of the parts, ms": 1e3 * sum(seconds.values()),
            "longest part, ms": 1e3 * max(seconds.values()),
            "pipeline, ms": 1e3 * elapsed(spans),
        }
    for name, value in facts.items():
        print(f"{name}: {value if isinstance(value, str) else round(value, 3)}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if options.picture:
        parts = ", ".join(f"{stage} {1e3 * value:.2f}" for stage, value in seconds.items())
        lines = (
            f"{facts['picture']} through {facts['device']}: {1e3 * elapsed(spans):.2f} ms",
            f"alone, in ms: {parts}; in all {1e3 * sum(seconds.values()):.2f}",
        )
        draw(spans, options.picture, lines)


if __name__ == "__main__":
    main()
