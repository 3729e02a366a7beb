"""Take the same samples through IREE's Python bindings, for comparison.

`iree.runtime` can put no fill on a queue by itself: the fill is recorded once
into a reusable command buffer, the cheapest it offers, and `queue_execute`
submits that. Its ``local-task`` queue keeps no order of its own, ours does.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Mapping

import iree.runtime as rt
import numpy as np
from timeline_rows import FILL_BYTES, PATTERN, ping_pong

__all__ = ["IreeSide", "version"]

_clock = time.perf_counter


def version() -> str:
    """Return the version of the bindings."""
    return importlib.metadata.version("iree-base-runtime")


class IreeSide:
    """Measure one device of one of IREE's drivers; see `timeline_rows.TimelineSide`."""

    def __init__(self, driver: str) -> None:
        self._device = rt.get_driver(driver).create_default_device()
        memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        self._buffer = self._device.allocator.allocate_buffer(
            memory, rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING, FILL_BYTES
        )
        self._commands = rt.HalCommandBuffer(self._device)
        pattern = np.frombuffer(PATTERN, np.uint32)
        self._commands.fill(self._buffer, pattern, 0, FILL_BYTES, end=True)
        self._met = self._device.create_semaphore(1)

    def submit(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.submit`."""
        execute, commands, met = self._device.queue_execute, self._commands, self._met
        semaphores, everything = self._semaphores(count)
        start = _clock()
        for semaphore in semaphores:
            execute(commands, [(met, 1)], [(semaphore, 1)])
        elapsed = _clock() - start
        everything.wait()
        return {"": elapsed / count * 1e6}

    def chain(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.chain`."""
        execute, commands = self._device.queue_execute, self._commands
        semaphore = self._device.create_semaphore(0)
        start = _clock()
        for value in range(count):
            execute(commands, [(semaphore, value)], [(semaphore, value + 1)])
        semaphore.wait(count)
        return {"": (_clock() - start) / count * 1e6}

    def round_trip(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.round_trip`."""
        execute, commands, met = self._device.queue_execute, self._commands, self._met
        semaphore = self._device.create_semaphore(0)
        start = _clock()
        for value in range(1, count + 1):
            execute(commands, [(met, 1)], [(semaphore, value)])
            semaphore.wait(value)
        return {"": (_clock() - start) / count * 1e6}

    def host_signal(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.host_signal`."""
        execute, commands = self._device.queue_execute, self._commands
        ready, done = self._device.create_semaphore(0), self._device.create_semaphore(0)
        samples = []
        for value in range(1, count + 1):
            execute(commands, [(ready, value)], [(done, value)])
            start = _clock()
            ready.signal(value)
            done.wait(value)
            samples.append(_clock() - start)
        return {"": statistics.median(samples) * 1e6}

    def pending(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.pending`."""
        execute, commands = self._device.queue_execute, self._commands
        gate = self._device.create_semaphore(0)
        semaphores, everything = self._semaphores(count)
        start = _clock()
        for semaphore in semaphores:
            execute(commands, [(gate, 1)], [(semaphore, 1)])
        added = _clock()
        gate.signal(1)
        everything.wait()
        released = _clock()
        return {"add": (added - start) / count * 1e6, "release": (released - added) / count * 1e6}

    def ping_pong(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.ping_pong`."""
        ping, pong = self._device.create_semaphore(0), self._device.create_semaphore(0)
        return ping_pong(count, ping.signal, ping.wait, pong.signal, pong.wait)

    def query(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.query`."""
        query = self._device.create_semaphore(5).query
        start = _clock()
        for _ in range(count):
            query()
        return {"": (_clock() - start) / count * 1e6}

    def satisfied_wait(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.satisfied_wait`."""
        wait = self._device.create_semaphore(5).wait
        start = _clock()
        for _ in range(count):
            wait(5)
        return {"": (_clock() - start) / count * 1e6}

    def check(self) -> None:
        """Implement `TimelineSide.check`."""
        mapped = self._buffer.map().asarray((FILL_BYTES,), np.dtype(np.uint8))
        if mapped.tobytes() != PATTERN * (FILL_BYTES // len(PATTERN)):
            message = f"IREE left {mapped[:4]} in the buffer, not {PATTERN!r}"
            raise AssertionError(message)

    def _semaphores(self, count: int) -> tuple[list[rt.HalSemaphore], rt.HalFence]:
        """Return new semaphores, and a fence that stands for value 1 of them all."""
        semaphores = [self._device.create_semaphore(0) for _ in range(count)]
        everything = rt.HalFence(count)
        for semaphore in semaphores:
            everything.insert(semaphore, 1)
        return semaphores, everything
