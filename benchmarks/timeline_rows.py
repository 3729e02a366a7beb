"""Measure timeline semaphores: what a submission, a signal and a wait cost.

Several classes do the same work: through hal, through IREE's Python bindings
(`iree_rows.IreeSide`), and on a CUDA device through what else there is
(`cuda_rows`). The work of a submission is always one fill of 256 bytes. Each
method of `TimelineSide` takes one sample; times are in microseconds. A side
that lacks a method has no cell in its row. Semaphores and the lists of what is
waited for are made outside the timed parts.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from harness import Row, Sample, with_collector

import hal

__all__ = ["FILL_BYTES", "PATTERN", "OurSide", "TimelineSide", "pending_rows", "rows"]

FILL_BYTES: Final = 256
PATTERN: Final = b"\x01\x01\x01\x01"

_clock = time.perf_counter


class TimelineSide(Protocol):
    """Take samples; every method returns microseconds by metric."""

    def submit(self, count: int) -> Mapping[str, float]:
        """Submit `count` operations, each: one wait met long ago, one fill, one signal.

        Each signals a semaphore of its own, since nothing orders them. Timed
        is the submitting thread, an operation.
        """

    def chain(self, count: int) -> Mapping[str, float]:
        """Submit operations that each wait for the signal before; wait for the last; a step."""

    def round_trip(self, count: int) -> Mapping[str, float]:
        """Submit one operation and wait for it, `count` times; one of them."""

    def host_signal(self, count: int) -> Mapping[str, float]:
        """Signal what a pending operation waits for; wait for its own signal.

        The median of `count`; its submission is not timed.
        """

    def pending(self, count: int) -> Mapping[str, float]:
        """Submit `count` operations that wait for one value; signal it; wait for all.

        ``add``: the submissions. ``release``: from the signal to the end of
        the wait. Both an operation.
        """

    def ping_pong(self, count: int) -> Mapping[str, float]:
        """Let two threads answer each other over two semaphores; one round of two signals."""

    def alloca(self, count: int) -> Mapping[str, float]:
        """Allocate and free 4 KiB in the order of the queue; a pair, the submitting thread."""

    def query(self, count: int) -> Mapping[str, float]:
        """Ask a semaphore for its value; one call."""

    def satisfied_wait(self, count: int) -> Mapping[str, float]:
        """Wait for a value that was reached long ago; one call."""

    def check(self) -> None:
        """Raise `AssertionError` unless the fills were done."""


class OurSide:
    """Measure hal on one device.

    The work is `Queue.fill`; with a `mode`, ``"stream"`` or ``"graph"``, a
    reusable command buffer that holds the fill and is run that way.
    """

    def __init__(self, device: hal.Device, mode: str | None = None) -> None:
        self._buffer = device.allocate(FILL_BYTES)
        queue = device.queue
        if mode is not None:
            with device.record(command_buffer=mode) as commands:
                commands.fill(self._buffer, PATTERN)

            def enqueue(wait: hal.Timepoint, signal: hal.Timepoint) -> None:
                queue.execute(commands, wait=(wait,), signal=(signal,))
        else:
            buffer = self._buffer

            def enqueue(wait: hal.Timepoint, signal: hal.Timepoint) -> None:
                queue.fill(buffer, PATTERN, wait=(wait,), signal=(signal,))

        self._enqueue: Callable[[hal.Timepoint, hal.Timepoint], None] = enqueue
        self._met = hal.create_semaphore(1)
        self._queue = queue

    def submit(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.submit`."""
        enqueue, met = self._enqueue, self._met
        semaphores = [hal.create_semaphore() for _ in range(count)]
        start = _clock()
        for semaphore in semaphores:
            enqueue(met.at(1), semaphore.at(1))
        elapsed = _clock() - start
        hal.wait_all([semaphore.at(1) for semaphore in semaphores])
        return {"": elapsed / count * 1e6}

    def chain(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.chain`."""
        enqueue, semaphore = self._enqueue, hal.create_semaphore()
        start = _clock()
        for value in range(count):
            enqueue(semaphore.at(value), semaphore.at(value + 1))
        semaphore.wait(count)
        return {"": (_clock() - start) / count * 1e6}

    def round_trip(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.round_trip`."""
        enqueue, met, semaphore = self._enqueue, self._met, hal.create_semaphore()
        start = _clock()
        for value in range(1, count + 1):
            enqueue(met.at(1), semaphore.at(value))
            semaphore.wait(value)
        return {"": (_clock() - start) / count * 1e6}

    def host_signal(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.host_signal`."""
        enqueue = self._enqueue
        ready, done = hal.create_semaphore(), hal.create_semaphore()
        samples = []
        for value in range(1, count + 1):
            enqueue(ready.at(value), done.at(value))
            start = _clock()
            ready.signal(value)
            done.wait(value)
            samples.append(_clock() - start)
        return {"": statistics.median(samples) * 1e6}

    def pending(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.pending`."""
        enqueue, gate = self._enqueue, hal.create_semaphore()
        semaphores = [hal.create_semaphore() for _ in range(count)]
        everything = [semaphore.at(1) for semaphore in semaphores]
        start = _clock()
        for semaphore in semaphores:
            enqueue(gate.at(1), semaphore.at(1))
        added = _clock()
        gate.signal(1)
        hal.wait_all(everything)
        released = _clock()
        return {"add": (added - start) / count * 1e6, "release": (released - added) / count * 1e6}

    def ping_pong(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.ping_pong`."""
        ping, pong = hal.create_semaphore(), hal.create_semaphore()
        return ping_pong(count, ping.signal, ping.wait, pong.signal, pong.wait)

    def alloca(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.alloca`."""
        queue = self._queue
        start = _clock()
        for _ in range(count):
            queue.dealloca(queue.alloca(4096))
        elapsed = _clock() - start
        queue.wait_idle()
        return {"": elapsed / count * 1e6}

    def query(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.query`."""
        query = hal.create_semaphore(5).query
        start = _clock()
        for _ in range(count):
            query()
        return {"": (_clock() - start) / count * 1e6}

    def satisfied_wait(self, count: int) -> Mapping[str, float]:
        """Implement `TimelineSide.satisfied_wait`."""
        wait = hal.create_semaphore(5).wait
        start = _clock()
        for _ in range(count):
            wait(5)
        return {"": (_clock() - start) / count * 1e6}

    def check(self) -> None:
        """Implement `TimelineSide.check`."""
        self._queue.wait_idle()
        found = self._buffer.numpy("uint8").tobytes()
        if found != PATTERN * (FILL_BYTES // len(PATTERN)):
            message = f"hal left {found[:8]!r} in the buffer, not {PATTERN!r}"
            raise AssertionError(message)


def ping_pong(
    count: int,
    signal_ping: Callable[[int], None],
    wait_ping: Callable[[int], object],
    signal_pong: Callable[[int], None],
    wait_pong: Callable[[int], object],
) -> Mapping[str, float]:
    """Play `count` rounds of two signals between this thread and another."""

    def answer() -> None:
        for value in range(1, count + 1):
            wait_ping(value)
            signal_pong(value)

    other = threading.Thread(target=answer, name="pong")
    other.start()
    start = _clock()
    for value in range(1, count + 1):
        signal_ping(value)
        wait_pong(value)
    elapsed = _clock() - start
    other.join()
    return {"": elapsed / count * 1e6}


def rows(sides: Mapping[str, TimelineSide], *, quick: bool) -> list[Row]:
    """Return the rows that compare the sides."""
    scale = 1 if quick else 4

    def row(name: str, method: str, count: int) -> Row:
        samples: dict[str, Sample] = {
            side: _bound(getattr(subject, method), count)
            for side, subject in sides.items()
            if hasattr(subject, method)
        }
        return Row(name, "us", samples)

    return [
        row("submit", "submit", 50 * scale),
        row("chain of 1000, a step", "chain", 1000),
        row("round trip", "round_trip", 50 * scale),
        row("host signal, pending work, host wait", "host_signal", 50 * scale),
        row("500 pending", "pending", 500),
        row("ping-pong of two threads", "ping_pong", 100 * scale),
        row("alloca and dealloca", "alloca", 50 * scale),
        row("query", "query", 5000 * scale),
        row("satisfied wait", "satisfied_wait", 5000 * scale),
    ]


def pending_rows(side: TimelineSide, *, quick: bool) -> list[Row]:
    """Return the rows that must be flat: ever more pending operations on one semaphore."""
    counts = (100, 1000, 10_000) if quick else (100, 1000, 10_000, 100_000)
    rows = []
    for count in counts:
        sample = _bound(side.pending, count)
        sides = {"hal": sample, "hal, collector on": with_collector(sample)}
        rows.append(Row(f"{count:,} pending".replace(",", " "), "us", sides))
    return rows


def _bound(method: Callable[[int], Mapping[str, float]], count: int) -> Sample:
    return lambda: method(count)
