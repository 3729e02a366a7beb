"""Send a picture through a device, tile by tile, on tracked buffers.

Three queues work at once: one brings tiles to the device, one computes, one
brings edges back. Tiles in flight use a few sets of buffers in turn. Nobody
says what waits for what: the flow knows that the kernels read what the upload
wrote, and that bytes are free when they were used.

The kernels are recorded once, with slots for their buffers: each tile binds
the next set, and its own width and height. Their order follows from the bytes
that they read and write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

import hal
from hal.demo.kernels import BLOCK, SOURCE, defines
from hal.demo.tiles import Tile, cut, extend
from hal.flow import Flow, Recording

__all__ = ["STAGES", "Pipeline", "Step", "gaussian"]

STAGES: Final = ("upload", "compute", "download")
"""The stages of a step, each on the queue of this name, in order."""

_STAGE_OF: Final = dict(zip(("write", "execute", "read"), STAGES, strict=True))
_RGB, _EDGES, _SIZE = 0, 3, 4
"""Slots of the recording: a tile's colours, its edges, its width and height."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Step(NamedTuple):
    """Describe one submission: its tile, its stage, what it waits for."""

    tile: int
    stage: str
    waits: Sequence[object]
    submission: hal.Submission


class Pipeline:
    """Hold everything that a run needs: kernels, buffers, a recording, host arrays.

    One thread at a time. Close it, or use it in a with-statement, before the
    device.
    """

    def __init__(
        self, device: hal.Device, picture: Bytes, *, sigma: float, tile_size: int, slots: int
    ) -> None:
        """Compile, record and allocate for a picture of shape (height, width, 3).

        `sigma` is the blur's standard deviation in pixels, `slots` the number
        of tiles in flight. Raises what `hal.Device.compile` and
        `hal.Device.allocate` raise.
        """
        weights = gaussian(sigma)
        # One pixel more than the blur needs, for the neighbours that Sobel looks at.
        self.halo = len(weights) // 2 + 1
        self._shape = picture.shape[:2]
        self.tiles = cut(self._shape[1], self._shape[0], tile_size)
        self.slots = min(slots, len(self.tiles))
        self._tile = 0
        self._submitted: Callable[[Step], None] | None = None
        self._flow = Flow(device, trace=self._trace)
        program = device.compile(SOURCE, filename="demo.cpp", defines=defines(weights))
        # The first tile is as large as any.
        self._pipeline = self._flow.pipeline(self._record(program, self.tiles[0]), depth=self.slots)
        extended = extend(picture, self.halo)
        # As bytes, which nobody can change while they are on their way: they are not copied.
        self._regions = [extended[tile.region(self.halo)].tobytes() for tile in self.tiles]
        self._sizes = [
            self._flow.from_host(np.array((tile.width, tile.height), np.int32))
            for tile in self.tiles
        ]
        self._edges = [np.empty((tile.height, tile.width), np.float32) for tile in self.tiles]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the device memory back; no run may be under way."""
        for size in self._sizes:
            size.close()
        self._pipeline.close()
        self._flow.close()

    def run(
        self,
        *,
        passes: int = 1,
        timeout: float = 120.0,
        submitted: Callable[[Step], None] | None = None,
        drained: Callable[[], None] | None = None,
    ) -> float:
        """Send every tile through, `passes` times over; return the seconds it took.

        From the first submission to the moment when the last tile is back on
        the host. `submitted` is called after each submission, `drained` once
        after the last and before the wait, both on this thread and within the
        time. Raises `hal.errors.DeadlineExceededError` after `timeout` seconds of
        waiting, and whatever failed on the device.
        """
        start = time.perf_counter()
        self._submitted = submitted
        downloads: list[hal.Submission] = []
        for index in [*range(len(self.tiles))] * passes:
            self._tile = index
            inputs = {_RGB: self._regions[index], _SIZE: self._sizes[index]}
            downloads += self._pipeline.run(inputs, {_EDGES: self._edges[index]})
        if drained is not None:
            drained()
        for download in reversed(downloads):  # the last one first: the others have ended then
            download.wait(timeout)
        return time.perf_counter() - start

    def forget(self) -> None:
        """Overwrite the host's results, so that a tile which does not come back is noticed."""
        for edges in self._edges:
            edges.fill(np.nan)

    def edges(self) -> Floats:
        """Return the edge magnitude of the whole picture, put together from the last pass."""
        whole = np.full(self._shape, np.nan, np.float32)
        for tile, edges in zip(self.tiles, self._edges, strict=True):
            whole[tile.area] = edges
        return whole

    def _trace(self, submission: hal.Submission, waits: Sequence[object]) -> None:
        if self._submitted is not None:
            self._submitted(Step(self._tile, _STAGE_OF[submission.kind], waits, submission))

    def _record(self, program: hal.Executable, largest: Tile) -> Recording:
        """Record the kernels for a tile of any size; each one's result is smaller than its source.

        The grids are those of the largest tile; a smaller one leaves threads idle.
        """
        both = 2 * self.halo
        region = (largest.width + both) * (largest.height + both)
        floats = (np.float32, 4 * region)
        pixels = (np.float32, 4 * largest.width * largest.height)
        slots = ((np.uint8, 3 * region), floats, floats, pixels, np.int32)
        with self._flow.record(slots=slots) as commands:
            rgb, grey, scratch, edges, size = commands.slots
            for name, source, target, right, below in (
                ("luminance", rgb, grey, both, both),
                ("blur_rows", grey, scratch, 2, both),
                ("blur_columns", scratch, grey, 2, 2),
                ("sobel", grey, edges, 0, 0),
            ):
                width, height = largest.width + right, largest.height + below
                commands.dispatch(
                    program[name],
                    grid=(-(-width // BLOCK[0]), -(-height // BLOCK[1])),
                    block=BLOCK,
                    args=(source, target, size, right, below),
                )
        return commands


def gaussian(sigma: float) -> Floats:
    """Return the weights of a Gaussian that ends at four standard deviations; their sum is 1."""
    radius = int(4.0 * sigma + 0.5)
    bell = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    total = math.fsum(bell)
    return np.array([weight / total for weight in bell], dtype=np.float32)
