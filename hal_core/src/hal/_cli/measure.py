"""Measure a device's timeline and transfers: the work of ``hal bench``."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

import hal

_FILL_BYTES: Final = 256
_BATCH: Final = 50  # submissions of one sample
_CHAIN: Final = 1000
_LARGEST: Final = 64 << 20  # bytes of a transfer, if the device has 16 times as much
_FEWEST: Final = 5  # the fewest samples, however long they take

_clock = time.perf_counter


class Row(NamedTuple):
    """One measurement: its name, its unit, and the samples' median and spread.

    ``low`` and ``high`` are the 10th and the 90th percentile.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    samples: int


def measure(device: hal.Device, seconds: float) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield the name of each row and the function that measures it.

    A row takes samples for `seconds`, and at least `_FEWEST`. The work of a
    submission is one fill of 256 bytes.
    """
    timeline = _TimelineSamples(device)
    for name, sample in (
        ("submit", timeline.submit),
        ("chain of 1000, a step", timeline.chain),
        ("round trip", timeline.round_trip),
        ("host signal, work, host wait", timeline.host_signal),
    ):
        yield name, lambda name=name, sample=sample: _row(name, "us", sample, seconds)  # type: ignore[misc]
    for name, sample in _transfers(device):
        yield name, lambda name=name, sample=sample: _row(name, "GB/s", sample, seconds)  # type: ignore[misc]


def _row(name: str, unit: str, sample: Callable[[], float], seconds: float) -> Row:
    """Take samples without the collector's interruptions, after one that does not count."""
    sample()
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        found: list[float] = []
        end = _clock() + seconds
        while len(found) < _FEWEST or _clock() < end:
            found.append(sample())
    finally:
        if was_enabled:
            gc.enable()
    deciles = statistics.quantiles(found, n=10, method="inclusive")
    return Row(name, unit, statistics.median(found), deciles[0], deciles[-1], len(found))


class _TimelineSamples:
    """Samples of the timeline, in microseconds per operation."""

    def __init__(self, device: hal.Device) -> None:
        self._queue = device.queue
        self._buffer = device.allocate(_FILL_BYTES)
        self._met = hal.create_semaphore(1)

    def submit(self) -> float:
        """Submit: one wait met long ago, one fill, one signal; only the submitting thread."""
        queue, buffer, met = self._queue, self._buffer, self._met
        semaphores = [hal.create_semaphore() for _ in range(_BATCH)]
        start = _clock()
        for semaphore in semaphores:
            queue.fill(buffer, 1, wait=(met.at(1),), signal=(semaphore.at(1),))
        elapsed = _clock() - start
        hal.wait_all([semaphore.at(1) for semaphore in semaphores])
        return elapsed / _BATCH * 1e6

    def chain(self) -> float:
        """Submit operations that each wait for the one before; wait for the last."""
        queue, buffer, semaphore = self._queue, self._buffer, hal.create_semaphore()
        start = _clock()
        for value in range(_CHAIN):
            queue.fill(buffer, 1, wait=(semaphore.at(value),), signal=(semaphore.at(value + 1),))
        semaphore.wait(_CHAIN)
        return (_clock() - start) / _CHAIN * 1e6

    def round_trip(self) -> float:
        """Submit one operation and wait for it."""
        semaphore = hal.create_semaphore()
        start = _clock()
        self._queue.fill(self._buffer, 1, wait=(self._met.at(1),), signal=(semaphore.at(1),))
        semaphore.wait(1)
        return (_clock() - start) * 1e6

    def host_signal(self) -> float:
        """Signal the value that a pending operation waits for; wait for its own signal."""
        ready, done = hal.create_semaphore(), hal.create_semaphore()
        self._queue.fill(self._buffer, 1, wait=(ready.at(1),), signal=(done.at(1),))
        start = _clock()
        ready.signal(1)
        done.wait(1)
        return (_clock() - start) * 1e6


def _transfers(device: hal.Device) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield functions that sample transfers until the bytes are there, in 10^9 bytes a second."""
    size = min(_LARGEST, device.info.total_memory // 16)
    title = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} B"
    host, back = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    source, target = device.allocate(size), device.allocate(size)
    queues = device.queues
    works: tuple[tuple[str, Callable[[], hal.Submission]], ...] = (
        ("write", lambda: queues.upload.write(source, host)),
        ("read", lambda: queues.download.read(source, back)),
        ("copy", lambda: queues.compute.copy(source, target)),
        ("fill", lambda: queues.compute.fill(source, 1)),
    )
    for name, work in works:

        def sample(work: Callable[[], hal.Submission] = work) -> float:
            start = _clock()
            work().wait()
            return 1e-9 * size / (_clock() - start)

        yield f"{name} {title}", sample
