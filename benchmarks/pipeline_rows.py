"""Measure the demo's pipeline: a picture through it, on tracked buffers and by hand.

Both take the same kernels and tiles, and what they make of them is compared: with
each other, byte by byte, and with the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pipeline_by_hand as by_hand
from harness import Row, Sample

import hal
from hal.demo import picture, pipeline, reference
from hal.demo.host import HostTiles
from hal.demo.kernels import TileKernels
from hal.demo.tiles import choose_size

__all__ = ["rows"]

_SIGMA: Final = 2.0
_SLOTS: Final = 3

_clock = time.perf_counter


def rows(device: hal.Device, *, quick: bool) -> list[Row]:
    """Return the rows, in megapixels/s from the host, through the device and back.

    The demo's picture, and with all of it nine of them in one, with tiles for
    which a GPU takes longer than the host takes to submit.
    """
    _, pixels = picture.load_shipped()
    if quick:
        return [_row(device, pixels, 2)]
    return [_row(device, pixels, 10), _row(device, np.tile(pixels, (3, 3, 1)), 2)]


def _row(device: hal.Device, pixels: npt.NDArray[np.uint8], passes: int) -> Row:
    height, width, _ = pixels.shape
    size = choose_size(width, height)
    sides: dict[str, Sample] = {}
    found = []
    for side, kind in (("hal.flow", pipeline.TilePipeline), ("hal, by hand", by_hand.TilePipeline)):
        # Arrays of its own: what one has found is not the other's.
        host = HostTiles(device, pixels, sigma=_SIGMA, tile_size=size)
        made = kind(TileKernels(device, _SIGMA, host.tiles[0]), host, slots=_SLOTS)
        host.forget()
        made.send()
        made.wait()
        found.append(host.picture())
        sides[side] = _timed(made.send, made.wait, 1e-6 * width * height, passes)
    if not np.array_equal(*found):
        message = "the two pipelines do not find the same edges"
        raise RuntimeError(message)
    if not np.abs(found[0] - reference.edges(pixels, _SIGMA)).max() <= reference.tolerance(_SIGMA):
        message = "the pipelines do not find the reference's edges"
        raise RuntimeError(message)
    name = f"{width} x {height} pixels, {len(host.tiles)} tiles of {size}"
    return Row(name, "megapixels/s", sides, higher_is_better=True)


def _timed(
    send: Callable[[], None], wait: Callable[[], None], megapixels: float, passes: int
) -> Sample:
    def sample() -> Mapping[str, float]:
        start = _clock()
        for _ in range(passes):
            send()
        wait()
        return {"": passes * megapixels / (_clock() - start)}

    return sample
