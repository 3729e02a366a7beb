"""Let host threads wait for timepoints (rules S6 and S9, design section 5 "Who retires").

A waiter first polls: it asks the event of the smallest covering point of every
queue that has one, letting other threads run, for 100 microseconds, and then after
naps for 10 milliseconds at most. Then, or at once if nothing is recorded yet, it
registers, has the progress thread notified, and sleeps at a gate of its own in
bounded slices. One waiter at a time polls a queue, its *leader*; the others sleep, and
when the leader leaves, for whatever reason, it wakes one of them. The condition
is always "failed, or reached", never the event alone, which may have been
recorded again for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, SupportsFloat, TypeAlias

from hal import _explain, _progress, _sync, _timeline
from hal._failure import fresh
from hal._spin import EAGER_TURNS, POLL_SECONDS
from hal._timeline import WAKE, Timepoint, Work
from hal._timeouts import check_timeout
from hal.errors import DeadlineExceededError, DeviceLostError

if TYPE_CHECKING:
    from hal._operation import Operation
    from hal._stream import StreamQueue

__all__ = ["Entries", "HostWaiter", "poll_all", "wait_all", "wait_groups"]

Entries: TypeAlias = Sequence[Timepoint]

_NAP_SECONDS: Final = 10e-3
"""How long it asks again after naps before it is notified: some of what a notification costs.

A driver's thread wakes the progress thread, which wakes the waiter: 20 microseconds
each on an idle processor, and ten times that on a virtual machine.
"""

_NAP_PART: Final = 1 / 16
"""How long a nap is, as part of the wait so far; it is late by half of that on average."""

_SLICE_SECONDS: Final = 0.05
"""Longest sleep: a net for wake-ups lost outside this process's control."""


def wait_all(entries: Entries, timeout: SupportsFloat | None) -> None:
    """Block until all entries are reached; see `hal.wait_all`."""
    wait_groups((entries,), timeout)


def wait_groups(groups: Sequence[Entries], timeout: SupportsFloat | None) -> int | None:
    """Block until all entries of one group are reached and return its index."""
    if not groups:
        return None
    return HostWaiter(groups).wait(None if timeout is None else check_timeout(timeout))


def poll_all(entries: Entries) -> bool:
    """Return whether all entries are reached, raising the first failure among them."""
    _ask_all(entries)
    with _timeline.lock:
        _check_failures(entries)
        return all(each._semaphore._value >= each._value for each in entries)


def _check_failures(entries: Entries) -> None:
    """Raise the first failure among entries, reached ones as well; under the lock."""
    for timepoint in entries:
        timeline = timepoint._semaphore
        if timeline._failure is not None:
            raise fresh(timeline._failure)


def _ask_all(entries: Entries) -> None:
    """Ask the covering point of every entry that is not reached, and retire through it."""
    for timepoint in entries:
        timeline, value = timepoint._semaphore, timepoint._value
        if timeline._value < value and timeline._failure is None:
            with _timeline.lock:
                operation = timeline._covering(value)
                if operation is not None:
                    operation._event.count += 1
            if operation is not None:
                operation._queue._ask(operation)


class HostWaiter:
    """Be one thread's wait until all entries of any of several groups are reached.

    What was reached stays so, hence each group is a list that only shrinks,
    and only its last entry is looked at: a wait for many costs what it
    counts, not that for every turn.
    """

    __slots__ = (
        "_deadline",
        "_followed",
        "_follows",
        "_gate",
        "_groups",
        "_is_led",
        "_leads",
        "_missing",
        "_registered",
        "_unmet",
    )

    def __init__(self, groups: Sequence[Entries]) -> None:
        self._groups = groups
        self._unmet = [list(entries) for entries in groups]
        self._deadline = math.inf
        self._gate: _sync.Gate | None = None
        self._leads: list[StreamQueue] = []
        self._follows: list[StreamQueue] = []
        self._followed: set[StreamQueue] = set()  # at any time during this wait
        self._registered: list[Timepoint] = []
        self._is_led = False  # somebody else polls a queue that it waits for
        self._missing = 0  # notices that must come before the thread is woken

    def wait(self, timeout: float | None) -> int:
        """Block as `wait_groups` says."""
        if timeout is not None:
            self._deadline = _sync.monotonic() + timeout
        _progress.mend()
        work: Work = []
        points: list[Operation] = []
        may_poll = to_check = True
        is_late = False
        try:
            while True:
                gate = None
                with _timeline.lock:
                    self._unregister()
                    if to_check:
                        self._check_failures()
                    index = self._scan()
                    if index is not None or is_late:
                        self._leave(work)
                    else:
                        points = self._points_to_ask() if may_poll else []
                        gate = None if points else self._register(work)
                if work:
                    _progress.drain(work)
                if index is not None:
                    return index
                if is_late:
                    message = f"waited {timeout:g} s {_explain.describe_wait(self._groups)}"
                    raise DeadlineExceededError(message)  # noqa: TRY301
                if gate is None:
                    # Without news it goes to sleep.
                    may_poll = self._poll(points)
                    to_check = False
                else:
                    is_late = not self._sleep(gate, spin=may_poll)
                    may_poll = to_check = True
        except BaseException:
            with _timeline.lock:
                self._leave(work)
            _progress.hand_over(work)  # Ctrl-C: others rely on it
            raise

    def _scan(self) -> int | None:
        """Return the first group that is reached, or raise a failure; under the lock."""
        for index, entries in enumerate(self._unmet):
            while entries:
                timepoint = entries[-1]
                timeline, value = timepoint._semaphore, timepoint._value
                if timeline._failure is not None:
                    raise fresh(timeline._failure)
                if timeline._value < value:
                    break
                entries.pop()
            if not entries:
                self._check_failures()
                return index
        return None

    def _check_failures(self) -> None:
        """Raise the first failure in the set, of a reached entry as well; under the lock."""
        for entries in self._groups:
            _check_failures(entries)

    def _points_to_ask(self) -> list[Operation]:
        """Return held operations of the queues that this waiter leads; under the lock.

        The smallest covering point of every queue that has one.
        """
        points: list[Operation] = []
        self._is_led = False
        for entries in self._unmet:
            timepoint = entries[-1]
            timeline, value = timepoint._semaphore, timepoint._value
            operation = timeline._covering(value)
            if operation is None:
                continue
            queue = operation._queue
            if queue._leader is None:
                queue._leader = self
                self._leads.append(queue)
            elif queue._leader is not self:
                self._is_led = True
                continue
            for position, known in enumerate(points):
                if known._queue is queue:
                    if operation._sequence < known._sequence:
                        points[position] = operation
                    break
            else:
                points.append(operation)
        for operation in points:
            operation._event.count += 1
        return points

    def _poll(self, points: list[Operation]) -> bool:
        """Ask held operations until one has ended, or the time is up; at least once.

        Returns whether there is news.
        """
        answers: list[bool | DeviceLostError] = [False] * len(points)
        news = False
        turns = 0
        begun = 0.0
        try:
            while not news:
                for position, operation in enumerate(points):
                    answers[position] = operation._queue._query(operation)
                    if answers[position] is not False:
                        news = True
                if news or self._looks_changed():
                    break
                now = _sync.monotonic()
                if not turns:
                    begun = now
                waited = now - begun
                if now >= self._deadline or waited >= _NAP_SECONDS:
                    break
                turns += 1
                if waited >= POLL_SECONDS:
                    if self._is_followed():
                        break  # who sleeps relies on its leaving soon
                    _sync.nap(min(waited * _NAP_PART, self._deadline - now))
                elif turns > EAGER_TURNS:
                    _sync.yield_thread()
        finally:
            for position, operation in enumerate(points):
                operation._queue._settle(operation, answers[position])
        return news or self._looks_changed()

    def _is_followed(self) -> bool:
        """Return whether somebody sleeps while this one polls: reads single fields only."""
        return any(queue._followers for queue in self._leads)

    def _looks_changed(self) -> bool:
        """Return whether a look under the lock is worth it: reads single fields only."""
        for entries in self._unmet:
            timepoint = entries[-1]
            timeline, value = timepoint._semaphore, timepoint._value
            if timeline._value >= value or timeline._failure is not None:
                return True
        return False

    def _sleep(self, gate: _sync.Gate, *, spin: bool) -> bool:
        """Sleep until woken; return False if the time is up first.

        In slices: between two of them it stays registered, and looks whether a
        wake-up was lost.
        """
        if spin and not self._is_led and gate.spin():
            return True
        while True:
            remaining = self._deadline - _sync.monotonic()
            if gate.wait(max(min(_SLICE_SECONDS, remaining), 0.0)):
                return True
            if remaining <= _SLICE_SECONDS:
                for entries in self._unmet:
                    _ask_all(entries)  # S6: it is looked at once more
                return False
            with _timeline.lock:
                self._check_failures()
                if self._scan() is not None:
                    return True

    def _register(self, work: Work) -> _sync.Gate:
        """Register for every entry that is not reached, and stop leading; under the lock.

        Returns the gate that opens when there is news.
        """
        counting = len(self._unmet) == 1 and len(self._unmet[0]) > 1
        self._missing = 0
        for entries in self._unmet:
            for timepoint in entries:
                timeline, value = timepoint._semaphore, timepoint._value
                if timeline._value >= value:
                    continue
                position = len(self._registered)
                self._registered.append(timepoint)
                if counting:
                    # Woken by the last one; the progress thread retires them all.
                    self._missing = position
                    timeline._until_reached(value, work).watch(value, self, position)
                    continue
                operation = timeline._covering(value)
                if operation is None:
                    timeline._until_recorded().watch(value, self, position)
                elif operation._queue._leader in {None, self}:
                    timeline._until_reached(value, work).watch(value, self, position)
                else:
                    # Its leader retires for this one too, or wakes it on leaving.
                    operation._queue._followers[self] = None
                    self._follows.append(operation._queue)
                    self._followed.add(operation._queue)
                    timeline._reached_register().watch(value, self, position)
        gate = self._gate = _sync.Gate()
        self._stop_leading(work)
        return gate

    def _unregister(self) -> None:
        """Leave no registration behind; under the lock."""
        self._gate = None
        self._missing = 0
        for timepoint in self._registered:
            timeline, value = timepoint._semaphore, timepoint._value
            if timeline._value < value:  # else it was taken out
                timeline._forget(value, self)
        self._registered.clear()
        for queue in self._follows:
            queue._followers.pop(self, None)
        self._follows.clear()

    def _stop_leading(self, work: Work) -> None:
        """Give up every lead, and wake a follower of each; under the lock."""
        for queue in self._leads:
            if queue._leader is self:
                queue._leader = None
                self._wake_follower(queue, work)
        self._leads.clear()

    @staticmethod
    def _wake_follower(queue: StreamQueue, work: Work) -> None:
        """Wake one of those who sleep while somebody else polls; under the lock."""
        for follower in queue._followers:
            if follower._gate is not None:  # else it is awake by now, for something else
                follower._wake(work)
                return

    def _leave(self, work: Work) -> None:
        """End the wait, however it ended; under the lock."""
        self._unregister()
        self._stop_leading(work)
        for queue in self._followed:
            # Perhaps it was woken to lead, and leaves instead: it passes that on.
            if queue._leader is None:
                self._wake_follower(queue, work)

    def _notice(self, index: int, work: Work) -> None:
        """Wake the thread, unless it waits for more than this; under the lock."""
        if self._missing and self._registered[index]._semaphore._failure is None:
            self._missing -= 1
            return
        self._wake(work)

    def _wake(self, work: Work) -> None:
        """Wake the thread if it sleeps; under the lock."""
        gate = self._gate
        if gate is not None:
            self._gate = None
            work.append((WAKE, gate))
