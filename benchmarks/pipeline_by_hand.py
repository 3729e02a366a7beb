"""The pipeline of `hal.demo.pipeline` on raw queues and buffers, ordered by timeline semaphores.

Step g (of all passes over all tiles, from 0) uses one of a few sets of buffers,
the *slots*, in turn, and raises three semaphores to g + 1:

=========  ============================  ============================================
queue      does                          waits for
=========  ============================  ============================================
upload     region to the slot's bytes    ``computed`` of the slot's step before (its
                                         bytes are free)
compute    the kernels                   ``uploaded`` g + 1, and ``downloaded`` of the
                                         slot's step before
download   the slot's edges to the host  ``computed`` g + 1
=========  ============================  ============================================

The queues keep their order. The host submits all of it without waiting, and
waits once, for the last value of ``downloaded``.
"""

from __future__ import annotations

from typing import Self

from hal.demo.host import HostTiles
from hal.demo.kernels import EDGES, TILE, TileKernels
from hal.flow.scheduler import TraceFunction

__all__ = ["TilePipeline"]


class TilePipeline:
    """A `hal.demo.pipeline.TilePipeline`, by hand."""

    def __init__(
        self,
        kernels: TileKernels,
        host: HostTiles,
        *,
        slots: int,
        trace: TraceFunction | None = None,
    ) -> None:
        device = kernels.device
        self._host = host
        self._trace = trace
        self._queues = device.queues
        self._uploaded = device.create_semaphore(name="uploaded")
        self._computed = device.create_semaphore(name="computed")
        self._downloaded = device.create_semaphore(name="downloaded")
        self._steps = 0
        with device.record(slots=kernels.slots, hazards="auto") as self._commands:
            kernels.record(self._commands)
        self._slots = [
            [device.allocate(size, dtype=dtype) for dtype, size in kernels.slots]
            for _ in range(slots)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the device memory back; no tile may be on its way."""
        for buffers in self._slots:
            for buffer in buffers:
                buffer.close()

    def send(self) -> None:
        """Send every tile through once; return at once."""
        for tile in range(len(self._host.regions)):
            self._send(tile)

    def wait(self, timeout: float = 120.0) -> None:
        """Block until all tiles are back on the host, for `timeout` seconds at most."""
        self._downloaded.wait(self._steps, timeout=timeout)

    def _send(self, tile: int) -> None:
        uploaded, computed, downloaded = self._uploaded, self._computed, self._downloaded
        buffers = self._slots[self._steps % len(self._slots)]
        self._steps += 1
        step = self._steps
        # The slot's step before; 0 if there was none, which every semaphore has reached.
        before = max(0, step - len(self._slots))

        waits = [computed.at(before)]
        submission = self._queues.upload.write(
            buffers[TILE], self._host.regions[tile], wait=waits, signal=uploaded.at(step)
        )
        if self._trace is not None:
            self._trace(submission, waits)

        waits = [uploaded.at(step), downloaded.at(before)]
        submission = self._queues.compute.execute(
            self._commands, bindings=buffers, wait=waits, signal=computed.at(step)
        )
        if self._trace is not None:
            self._trace(submission, waits)

        waits = [computed.at(step)]
        submission = self._queues.download.read(
            buffers[EDGES], self._host.edges[tile], wait=waits, signal=downloaded.at(step)
        )
        if self._trace is not None:
            self._trace(submission, waits)
