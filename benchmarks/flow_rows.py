"""Measure tracked buffers: what an operation costs more than the same one on a raw queue.

Timed is the submitting thread. The device is busy meanwhile, so that no sample pays for waking it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import merge_rows
import numpy as np
from harness import Row, Sample

import hal
from hal.flow import Flow, TrackedBuffer

__all__ = ["rows"]

_STEPS: Final = 300
_BUSY: Final = 256 << 20
_LIVE: Final = (10, 1_000, 100_000)
_SOURCE = """
extern "C" __global__ void HAL_BLOCK(16) add(const int *x, int *y, int value) {
  y[threadIdx.x] += x[threadIdx.x] + value;
}
"""

_clock = time.perf_counter


def rows(device: hal.Device, *, quick: bool) -> list[Row]:
    """Return rows in microseconds an operation."""
    flow = Flow(device)
    kernel = device.compile(_SOURCE, filename="add.cpp")["add"]
    found = [
        _fills(device, flow),
        _dispatches(device, flow, kernel),
        _executions(device, flow, kernel),
    ]
    found += [_live_row(device, flow, count) for count in (_LIVE[:2] if quick else _LIVE)]
    return found + merge_rows.rows(device, quick=quick)


def _fills(device: hal.Device, flow: Flow) -> Row:
    """Fill one buffer over and over: each comes after the one before."""
    raw, tracked = device.allocate(256), flow.allocate(256)
    queue = device.queue

    def by_hand() -> None:
        last = queue.fill(raw, 0)
        for _ in range(_STEPS):
            last = queue.fill(raw, 0, wait=(last,))

    def unordered() -> None:
        for _ in range(_STEPS):
            queue.fill(raw, 0)

    def with_flow() -> None:
        for _ in range(_STEPS):
            flow.fill(tracked, 0)

    return _row(device, "fill one buffer", flow=with_flow, raw=by_hand, free=unordered)


def _dispatches(device: hal.Device, flow: Flow, kernel: hal.Kernel) -> Row:
    """Launch a kernel forth and back between two buffers."""
    zeros = np.zeros(16, np.int32)
    x, y = device.upload(zeros), device.upload(zeros)
    a, b = flow.from_host(zeros), flow.from_host(zeros)
    queue = device.queue

    def by_hand() -> None:
        last, source, target = queue.barrier(), x, y
        for _ in range(_STEPS):
            last = queue.dispatch(kernel, grid=1, args=(source, target, 1), wait=(last,))
            source, target = target, source

    def unordered() -> None:
        source, target = x, y
        for _ in range(_STEPS):
            queue.dispatch(kernel, grid=1, args=(source, target, 1))
            source, target = target, source

    def with_flow() -> None:
        source, target = a, b
        for _ in range(_STEPS):
            flow.dispatch(kernel, grid=1, args=(source, target, 1))
            source, target = target, source

    return _row(device, "dispatch on two buffers", flow=with_flow, raw=by_hand, free=unordered)


def _executions(device: hal.Device, flow: Flow, kernel: hal.Kernel) -> Row:
    """Execute a recording of that launch, with the two buffers in its slots."""
    zeros = np.zeros(16, np.int32)
    x, y = device.upload(zeros), device.upload(zeros)
    a, b = flow.from_host(zeros), flow.from_host(zeros)
    with device.record(slots=2) as commands:
        commands.dispatch(kernel, grid=1, args=(*commands.slots, 1))
    with flow.record(slots=2) as recording:
        recording.dispatch(kernel, grid=1, args=(*recording.slots, 1))
    queue = device.queue

    def by_hand() -> None:
        last, source, target = queue.barrier(), x, y
        for _ in range(_STEPS):
            last = queue.execute(commands, bindings=(source, target), wait=(last,))
            source, target = target, source

    def unordered() -> None:
        source, target = x, y
        for _ in range(_STEPS):
            queue.execute(commands, bindings=(source, target))
            source, target = target, source

    def with_flow() -> None:
        source, target = a, b
        for _ in range(_STEPS):
            flow.execute(recording, bindings=(source, target))
            source, target = target, source

    return _row(device, "execute on two buffers", flow=with_flow, raw=by_hand, free=unordered)


def _live_row(device: hal.Device, flow: Flow, count: int) -> Row:
    """Fill buffers in turn, out of many that have all been used."""
    whole = device.allocate(256 * count)
    raw = [whole.subspan(256 * index, 256) for index in range(count)]
    tracked: list[TrackedBuffer] = [flow.adopt(each) for each in raw]
    last: list[hal.Submission] = [device.queue.fill(each, 0) for each in raw]
    for each in tracked:
        flow.fill(each, 0)
    flow.wait_idle()
    queue, place = device.queue, [0, 0]

    def by_hand() -> None:
        at = place[0]
        for _ in range(_STEPS):
            last[at] = queue.fill(raw[at], 0, wait=(last[at],))
            at = (at + 1) % count
        place[0] = at

    def with_flow() -> None:
        at = place[1]
        for _ in range(_STEPS):
            flow.fill(tracked[at], 0)
            at = (at + 1) % count
        place[1] = at

    return _row(device, f"fill out of {count} live buffers", flow=with_flow, raw=by_hand)


def _row(
    device: hal.Device,
    name: str,
    *,
    flow: Callable[[], None],
    raw: Callable[[], None],
    free: Callable[[], None] | None = None,
) -> Row:
    sides = {"hal.flow": _timed(device, flow), "hal, waits by hand": _timed(device, raw)}
    if free is not None:
        sides["hal, no waits"] = _timed(device, free)
    return Row(name, "us", sides)


def _timed(device: hal.Device, work: Callable[[], None]) -> Sample:
    busy = device.allocate(_BUSY)

    def sample() -> Mapping[str, float]:
        device.wait_idle()
        device.queue.fill(busy, 0)
        start = _clock()
        work()
        elapsed = _clock() - start
        device.wait_idle()
        return {"": 1e6 * elapsed / _STEPS}

    return sample
