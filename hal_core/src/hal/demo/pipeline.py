"""Send a picture through a device, tile by tile, on tracked buffers.

Three queues work at once: one brings tiles to the device, one computes, one
brings edges back. Tiles in flight use a few sets of buffers in turn. The program
names no waits: the flow knows that the kernels read what the upload
wrote, and that bytes are free when they were used.

The kernels are recorded once, with slots for their buffers: each tile binds
the next set.
"""

from __future__ import annotations

from typing import Self

from hal.demo.host import HostTiles
from hal.demo.kernels import EDGES, TILE, TileKernels
from hal.flow import Flow
from hal.flow.scheduler import TraceFunction


class TilePipeline:
    """A pipeline of the host's tiles through the kernels, `slots` of them at once.

    One thread at a time. Close it, or use it in a with-statement, before the
    host's tiles.
    """

    def __init__(
        self,
        kernels: TileKernels,
        host: HostTiles,
        *,
        slots: int,
        trace: TraceFunction | None = None,
    ) -> None:
        """Record and allocate; raises the errors of `hal.Device.allocate`.

        `trace` is called with each submission and the list of what it waits for.
        """
        self._host = host
        self._flow = Flow(kernels.device, trace=trace)
        with self._flow.record(slots=kernels.slots) as commands:
            kernels.record(commands)
        self._pipeline = self._flow.pipeline(commands, depth=slots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the device memory; no tile may be in flight."""
        self._pipeline.close()
        self._flow.close()

    def send(self) -> None:
        """Send every tile through once; return at once."""
        for region, edges in zip(self._host.regions, self._host.edges, strict=True):
            self._pipeline.run({TILE: region}, {EDGES: edges})

    def wait(self, timeout: float = 120.0) -> None:
        """Block until all tiles are back on the host, for at most `timeout` seconds.

        Raises `hal.errors.DeadlineExceededError`, and failures on the device.
        """
        self._pipeline.wait(timeout)
