"""Timestamps on native streams: the feature "timestamps" (rule Q4).

A timer is a native event with timing, from a pool of its own, so that the events
that order work stay the cheap ones. It goes back to the pool when both the
operation that records it and the handle that reads its time are gone.
"""

from __future__ import annotations

from hal._base import sync
from hal._engine import steps
from hal._engine.closing import end_all
from hal._engine.device_context import DeviceContext
from hal._engine.operation import DONE
from hal._engine.submission import Submission
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, UnimplementedError
from hal.handlers import own
from hal.native import NativeDevice


class TimerPool:
    """The timers of one device, kept for reuse."""

    __slots__ = ("_all", "_closed", "_context", "_free", "_lock", "_native")

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._native = context.native
        self._lock = sync.OwnedLock()  # held while timers are read, which close ends
        self._free: list[int] = []
        self._all: list[int] = []
        self._closed = False

    def take(self) -> int:
        """Return an unused timer; the device is bound. The caller gives it back."""
        try:
            return self._free.pop()
        except own(IndexError):
            timer = self._native.create_timer()
        self._all.append(timer)
        return timer

    def give_back(self, timer: int) -> None:
        """Keep a timer for reuse; a finaliser may call this (I10)."""
        self._free.append(timer)

    def elapsed(self, first: Timer, second: Timer) -> float:
        """Return the seconds from one recorded timer to another."""
        with steps.unheld(self._lock):
            if self._closed:
                raise ClosedError(
                    f"{self._context.name} is closed, and its timestamps with it; call "
                    "seconds_since() before"
                )
            self._native.bind()
            return self._native.elapsed(first.handle, second.handle)

    def close(self) -> None:
        """Destroy every timer; all their work has ended. A lost device takes them along."""
        with steps.unheld(self._lock):
            self._closed = True
            timers, self._all = self._all, []
            self._free.clear()
        if self._context.lost is None:
            end_all(self._context, self._native.destroy_timer, timers)


class Timer:
    """The owner of one timer from its record on, for its operation and its handle."""

    __slots__ = ("_pool", "handle")

    def __init__(self, pool: TimerPool) -> None:
        self._pool = pool
        self.handle = 0  # until the operation is issued

    def __del__(self) -> None:
        if self.handle:
            self._pool.give_back(self.handle)


class Timestamp(Submission):
    """The time at which a device got to a place of a queue; made by `Queue.timestamp`.

    A submission, which can be waited for like any other. It keeps a native
    timer as long as it lives.
    """

    __slots__ = ("_timer",)

    _timer: Timer

    def seconds_since(self, earlier: Timestamp) -> float:
        """Return how much later than `earlier` this was, in seconds; negative if it was before.

        Measured by the device's clock, to a microsecond or better. Both must be of
        the same device, on any of its queues. Never blocks. Raises
        `InvalidArgumentError` if one of them has not ended (wait for it
        first) or is of another device, its error if one has failed, and
        `ClosedError` after the device was closed.
        """
        if not isinstance(earlier, Timestamp):
            raise ArgumentTypeError(
                f"seconds_since takes what queue.timestamp() returned, not {type(earlier).__name__}"
            )
        if self._timer._pool is not earlier._timer._pool:
            raise InvalidArgumentError(
                f"seconds_since: {self._queue.name} and {earlier._queue.name} are of two devices, "
                "whose clocks cannot be compared"
            )
        for each in (earlier, self):
            error = each.error
            if error is not None:
                raise error
            if each._state != DONE:
                raise InvalidArgumentError(
                    f"seconds_since: the {each._describe()} has not ended; wait() for it first"
                )
        return self._timer._pool.elapsed(earlier._timer, self._timer)


def check_timestamps(native: NativeDevice, name: str) -> None:
    """Raise unless a device supports timestamps."""
    if "timestamps" not in native.features:
        raise UnimplementedError(
            f"{name} takes no timestamps (the feature 'timestamps'); measure on the host, around "
            "Submission.wait()"
        )


def record(stream: int, pool: TimerPool, timer: Timer) -> None:
    """Record a timer, when its operation is issued."""
    # Taken only now: a pending timestamp needs none, and a cancelled one never does.
    timer.handle = pool.take()
    pool._native.record_timer(timer.handle, stream)
