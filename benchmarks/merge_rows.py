"""Measure merge buffers: what one device has, added to what another one has, over and over.

Each step writes the source on its device and merges it on the other; timed is all of it, until the
last merge has ended. By hand it is the same work with the waits that a careful program writes: the
kernel reads the source in place, or what was copied beside its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from harness import Row, Sample

import hal
from hal.flow import Flow, virtual_devices
from hal.flow.merging import MergeMode

__all__ = ["rows"]

_STEPS: Final = 100
_SIZES: Final = ((64 << 10, "64 KiB"), (16 << 20, "16 MiB"))
_BLOCK: Final = 256
_SOURCE: Final = """
__global__ void HAL_BLOCK(256) merge(const float *theirs, float *ours, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) ours[i] += theirs[i];
}
"""

_clock = time.perf_counter


def rows(device: hal.Device, *, quick: bool) -> list[Row]:
    """Return rows in microseconds a step, on two virtual devices of the device's hardware."""
    # They are closed when the interpreter exits.
    ours, theirs = (
        each.device for each in virtual_devices(f"{device.backend}:{device.info.index}", 2)
    )
    kernel = ours.compile(_SOURCE, filename="merge.cpp")["merge"]
    return [
        Row(f"merge {name}", "us", _sides(ours, theirs, kernel, size, quick=quick))
        for size, name in _SIZES
    ]


def _sides(
    device: hal.Device, other: hal.Device, kernel: hal.Kernel, size: int, *, quick: bool
) -> dict[str, Sample]:
    steps = _STEPS if size < 1 << 20 else _STEPS // 5
    if quick:
        steps //= 5
    count = size // 4
    grid = -(-count // _BLOCK)
    flow = Flow(device, other)
    zeros = np.zeros(count, np.float32)

    def tracked(mode: MergeMode) -> Callable[[], None]:
        target, source = flow.from_host(zeros, device), flow.from_host(zeros, other)
        merge = flow.merge_buffer(device)

        def work() -> None:
            for _ in range(steps):
                flow.fill(source, 1.0)
                merge.load(source, mode)
                last = flow.dispatch(kernel, grid=grid, args=(merge.expect(source), target, count))
            last.wait()

        return work

    def in_place() -> None:
        last = device.queue.barrier()
        for _ in range(steps):
            written = other.queue.fill(source, 1.0, wait=(last,))
            last = device.queue.dispatch(
                kernel, grid=grid, args=(source, target, count), wait=(written,)
            )
        last.wait()

    def copied() -> None:
        last = copy = device.queue.barrier()
        for _ in range(steps):
            written = other.queue.fill(source, 1.0, wait=(copy,))
            copy = other.queues.download.copy(source, room, wait=(written, last))
            last = device.queue.dispatch(
                kernel, grid=grid, args=(room, target, count), wait=(copy,)
            )
        last.wait()

    source, target, room = other.upload(zeros), device.upload(zeros), device.allocate(size)
    works = {"hal.flow, streaming": tracked("streaming"), "hal.flow, copy": tracked("copy")}
    if device.can_access(other):
        device.enable_access(other)
        works |= {"by hand, in place": in_place, "by hand, copied": copied}
    return {name: _timed(work, steps) for name, work in works.items()}


def _timed(work: Callable[[], None], steps: int) -> Sample:
    def sample() -> Mapping[str, float]:
        start = _clock()
        work()
        return {"": 1e6 * (_clock() - start) / steps}

    return sample
