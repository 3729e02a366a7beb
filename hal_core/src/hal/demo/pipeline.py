"""Send a picture through a device, tile by tile, ordered by timeline semaphores alone.

Three queues work at once: one brings tiles to the device, one computes, one
brings edges back. Step g (of all passes over all tiles, from 0) uses one of a
few sets of buffers, the *slots*, and raises three semaphores to g + 1:

=========  ==============================  ==========================================
queue      does                            waits for
=========  ==============================  ==========================================
upload     region to the slot's bytes      ``uploaded`` g, and ``computed`` of the
                                           slot's step before (its bytes are free)
compute    luminance, blur, blur, Sobel    ``uploaded`` g + 1, ``computed`` g, and
                                           ``downloaded`` of the slot's step before
download   the slot's edges to the host    ``computed`` g + 1, ``downloaded`` g
=========  ==============================  ==========================================

The host submits all of it without waiting and waits once, for the last value
of ``downloaded``. Nothing relies on the order of a queue.

The kernels are recorded once, in a command buffer that takes the place of its
buffers from a table: each step binds its slot's, and its tile's width and
height. Their order follows from the bytes that they read and write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

import hal
from hal.demo.kernels import BLOCK, SOURCE, defines
from hal.demo.tiles import Tile, cut, extend

__all__ = ["STAGES", "Pipeline", "Step", "gaussian"]

STAGES: Final = ("upload", "compute", "download")
"""The stages of a step, each on the queue of this name, in order."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Step(NamedTuple):
    """Describe one submission: its number over all passes, its tile, its stage, its waits."""

    number: int
    tile: int
    stage: str
    waits: tuple[hal.Timepoint, ...]
    submission: hal.Submission


class _Slot(NamedTuple):
    """Hold the buffers that one tile in flight uses."""

    rgb: hal.Buffer
    grey: hal.Buffer
    scratch: hal.Buffer
    edges: hal.Buffer


class Pipeline:
    """Hold everything that a run needs: kernels, buffers, recordings, host arrays.

    One thread at a time. Close it, or use it in a with-statement, before the
    device.
    """

    def __init__(
        self, device: hal.Device, picture: Bytes, *, sigma: float, tile_size: int, slots: int
    ) -> None:
        """Compile, allocate and record for a picture of shape (height, width, 3).

        `sigma` is the blur's standard deviation in pixels, `slots` the number
        of tiles in flight. Raises what `hal.Device.compile` and
        `hal.Device.allocate` raise.
        """
        height, width, _ = picture.shape
        weights = gaussian(sigma)
        # One pixel more than the blur needs, for the neighbours that Sobel looks at.
        self.halo = len(weights) // 2 + 1
        self.tiles = cut(width, height, tile_size)
        self.slots = min(slots, len(self.tiles))
        self.uploaded = device.create_semaphore(name="uploaded")
        self.computed = device.create_semaphore(name="computed")
        self.downloaded = device.create_semaphore(name="downloaded")
        self._device = device
        self._shape = (height, width)
        self._steps = 0
        self._last_step_of_slot: dict[int, int] = {}
        self._program = device.compile(SOURCE, filename="demo.cpp", defines=defines(weights))
        # The first tile is as large as any.
        first, both = self.tiles[0], 2 * self.halo
        region = (first.width + both) * (first.height + both)
        self._slots = [
            _Slot(
                rgb=device.allocate(3 * region, dtype=np.uint8),
                grey=device.allocate(4 * region, dtype=np.float32),
                scratch=device.allocate(4 * region, dtype=np.float32),
                edges=device.allocate(4 * first.width * first.height, dtype=np.float32),
            )
            for _ in range(self.slots)
        ]
        sizes = np.array([(tile.width, tile.height) for tile in self.tiles], np.int32)
        self._sizes = device.upload(sizes)
        # Each tile keeps its slot.
        self._bindings = [
            (*self._slots[index % self.slots], self._sizes.subspan(8 * index, 8))
            for index in range(len(self.tiles))
        ]
        self._commands = self._record(first)
        extended = extend(picture, self.halo)
        self._regions = [
            np.ascontiguousarray(extended[tile.region(self.halo)]) for tile in self.tiles
        ]
        self._edges = [np.empty((tile.height, tile.width), np.float32) for tile in self.tiles]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the device memory back; no run may be under way."""
        for buffers in (*self._slots, *self._bindings, (self._sizes,)):
            for buffer in buffers:
                buffer.close()

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
        for _ in range(passes):
            for tile in range(len(self.tiles)):
                self._submit(tile, submitted)
        if drained is not None:
            drained()
        self.downloaded.wait(self._steps, timeout=timeout)
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

    def _submit(self, index: int, submitted: Callable[[Step], None] | None) -> None:
        step = self._steps
        slot = index % self.slots
        buffers = self._slots[slot]
        # 0 if the slot was never used: every semaphore has reached that.
        before = self._last_step_of_slot.get(slot, -1) + 1
        self._last_step_of_slot[slot] = step
        self._steps = after = step + 1
        uploaded, computed, downloaded = self.uploaded, self.computed, self.downloaded
        queues = self._device.queues
        waits: tuple[hal.Timepoint, ...]

        waits = (uploaded.at(step), computed.at(before))
        signal = (uploaded.at(after),)
        submission = queues.upload.write(
            buffers.rgb, self._regions[index], wait=waits, signal=signal
        )
        if submitted is not None:
            submitted(Step(step, index, "upload", waits, submission))

        waits = (uploaded.at(after), computed.at(step), downloaded.at(before))
        signal = (computed.at(after),)
        submission = queues.compute.execute(
            self._commands, bindings=self._bindings[index], wait=waits, signal=signal
        )
        if submitted is not None:
            submitted(Step(step, index, "compute", waits, submission))

        waits = (computed.at(after), downloaded.at(step))
        signal = (downloaded.at(after),)
        submission = queues.download.read(
            buffers.edges, self._edges[index], wait=waits, signal=signal
        )
        if submitted is not None:
            submitted(Step(step, index, "download", waits, submission))

    def _record(self, largest: Tile) -> hal.CommandBuffer:
        """Record the kernels for a tile of any size; each one's result is smaller than its source.

        The grids are those of the largest tile; a smaller one leaves threads idle.
        """
        both = 2 * self.halo
        types = (np.uint8, np.float32, np.float32, np.float32, np.int32)
        with self._device.record(slots=types, hazards="auto") as commands:
            rgb, grey, scratch, edges, size = commands.slots
            for name, source, target, right, below in (
                ("luminance", rgb, grey, both, both),
                ("blur_rows", grey, scratch, 2, both),
                ("blur_columns", scratch, grey, 2, 2),
                ("sobel", grey, edges, 0, 0),
            ):
                width, height = largest.width + right, largest.height + below
                commands.dispatch(
                    self._program[name],
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
