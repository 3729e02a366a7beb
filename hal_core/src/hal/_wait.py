"""Let host threads wait for timepoints (rules S6 and S9, design section 5 "Who retires").

A waiter first polls: it asks the event of the smallest covering point of every
queue that has one, or looks for a host's signal, letting the interpreter lock
go at each turn, for 50 microseconds at most. Then it has the progress thread
notified and sleeps on a lock of its own in bounded slices. One waiter at a time
polls a queue, its *leader*; the others sleep, and when the leader leaves, for
whatever reason, it wakes one of them. The condition is always "failed, or
reached", never the event alone, which may have been recorded again for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from hal import _explain, _progress, _sync, _timeline
from hal._failure import fresh
from hal._timeline import WAKE, Timeline, Work
from hal.errors import (
    ArgumentTypeError,
    DeadlineExceededError,
    DeviceLostError,
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from hal._stream import StreamQueue
    from hal._submission import Submission

__all__ = ["Entries", "HostWaiter", "check_timeout", "poll_all", "wait_all", "wait_groups"]

Entries: TypeAlias = Sequence[tuple[Timeline, int]]

_POLL_SECONDS: Final = 50e-6
"""How long a waiter polls before it sleeps: about what a wake-up costs."""

_SLICE_SECONDS: Final = 0.05
"""Longest sleep: a net for wake-ups lost outside this process's control."""


def wait_all(entries: Entries, timeout: float | None) -> None:
    """Block until all entries are reached; see `hal.wait_all`."""
    wait_groups((entries,), timeout)


def wait_groups(groups: Sequence[Entries], timeout: float | None) -> int | None:
    """Block until all entries of one group are reached and return its index."""
    if not groups:
        return None
    if timeout is not None:
        timeout = check_timeout(timeout)
    return HostWaiter(groups).wait(timeout)


def poll_all(entries: Entries) -> bool:
    """Return whether all entries are reached, raising the first failure among them."""
    _ask_all(entries)
    with _timeline.lock:
        for timeline, _ in entries:
            if timeline._failure is not None:
                raise fresh(timeline._failure)
        return all(timeline._value >= value for timeline, value in entries)


def _ask_all(entries: Entries) -> None:
    """Ask the covering point of every entry that is not reached, and retire through it."""
    for timeline, value in entries:
        if timeline._value < value and timeline._failure is None:
            with _timeline.lock:
                operation = timeline._covering(value)
                if operation is not None:
                    operation._event.count += 1
            if operation is not None:
                operation._queue._ask(operation)


def check_timeout(timeout: float) -> float:
    """Return a time-out in seconds as a float, or raise what is wrong with it."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        message = f"a timeout is seconds as a number, or None; not {type(timeout).__name__}"
        raise ArgumentTypeError(message)
    if math.isnan(timeout) or timeout < 0:
        message = f"a timeout is 0 or more seconds, or None for ever; {timeout} was given"
        raise InvalidArgumentError(message)
    return float(timeout)


class HostWaiter:
    """Be one thread's wait until all entries of any of several groups are reached.

    What was reached stays so, hence each group is a list that only shrinks,
    and only its last entry is looked at: a wait for many costs what it
    counts, not that for every turn.
    """

    __slots__ = (
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
        self._gate: _sync.Lock | None = None
        self._leads: list[StreamQueue] = []
        self._follows: list[StreamQueue] = []
        self._followed: set[StreamQueue] = set()  # at any time during this wait
        self._registered: list[tuple[Timeline, int]] = []
        self._is_led = False  # somebody else polls a queue that it waits for
        self._missing = 0  # notices that must come before the thread is woken

    def wait(self, timeout: float | None) -> int:
        """Block as `wait_groups` says."""
        start = _sync.monotonic()
        deadline = None if timeout is None else start + timeout
        poll_until = start + _POLL_SECONDS
        had_points = to_check = True
        try:
            while True:
                with _timeline.lock:
                    if to_check:
                        self._check_failures()
                        to_check = False
                    index = self._scan()
                    if index is not None:
                        return index
                    points = self._points_to_ask()
                if points and not had_points:
                    # Woken because something was recorded: there is news to poll.
                    poll_until = _sync.monotonic() + _POLL_SECONDS
                had_points = bool(points)
                if self._poll(points, poll_until, deadline):
                    continue
                now = _sync.monotonic()
                if deadline is not None and now >= deadline:
                    return self._give_up(timeout)
                slice_ = _SLICE_SECONDS
                if deadline is not None:
                    slice_ = min(slice_, deadline - now)
                index = self._sleep(slice_)
                if index is not None:
                    return index
                to_check = True  # a failure may be what has woken it
        finally:
            if self._leads or self._registered or self._followed:
                self._leave()

    def _scan(self) -> int | None:
        """Return the first group that is reached, or raise a failure; under the lock."""
        for index, entries in enumerate(self._unmet):
            while entries:
                timeline, value = entries[-1]
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
            for timeline, _ in entries:
                if timeline._failure is not None:
                    raise fresh(timeline._failure)

    def _points_to_ask(self) -> list[Submission]:
        """Return held operations of the queues that this waiter leads; under the lock.

        The smallest covering point of every queue that has one.
        """
        chosen: dict[StreamQueue, Submission] = {}
        self._is_led = False
        for entries in self._unmet:
            timeline, value = entries[-1]
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
            known = chosen.get(queue)
            if known is None or operation._sequence < known._sequence:
                chosen[queue] = operation
        for operation in chosen.values():
            operation._event.count += 1
        return list(chosen.values())

    def _poll(self, points: list[Submission], poll_until: float, deadline: float | None) -> bool:
        """Ask held operations until one has ended, or the time is up; at least once.

        With none to ask, looks for a host's signal, unless others poll for
        this one. Returns whether there is news.
        """
        if not points and self._is_led:
            return False
        if deadline is not None:
            poll_until = min(poll_until, deadline)
        answers: list[bool | DeviceLostError] = [False] * len(points)
        news = False
        try:
            while not news:
                for position, operation in enumerate(points):
                    answers[position] = operation._queue._query(operation)
                    if answers[position] is not False:
                        news = True
                if news or self._looks_changed() or _sync.monotonic() >= poll_until:
                    break
                _sync.yield_thread()
        finally:
            for operation, answer in zip(points, answers, strict=True):
                operation._queue._settle(operation, answer)
        return news or self._looks_changed()

    def _looks_changed(self) -> bool:
        """Return whether a look under the lock is worth it: reads single fields only."""
        for entries in self._unmet:
            timeline, value = entries[-1]
            if timeline._value >= value or timeline._failure is not None:
                return True
        return False

    def _sleep(self, seconds: float) -> int | None:
        """Register, sleep until woken or for `seconds`, and take the registration back.

        Returns the index of a group that turned out to be reached meanwhile.
        """
        gate = _sync.Lock()
        gate.acquire()
        work: Work = []
        try:
            with _timeline.lock:
                index = self._scan()
                if index is not None:
                    return index
                self._register(work)
                self._gate = gate
                self._stop_leading(work)
            if work:
                _progress.drain(work)
            gate.acquire(timeout=seconds)
        except BaseException:
            _progress.hand_over(work)  # Ctrl-C: others rely on it
            raise
        with _timeline.lock:
            self._unregister()
        return None

    def _register(self, work: Work) -> None:
        """Register for every entry that is not reached; under the lock."""
        counting = len(self._unmet) == 1 and len(self._unmet[0]) > 1
        self._missing = 0
        for entries in self._unmet:
            for timeline, value in entries:
                if timeline._value >= value:
                    continue
                position = len(self._registered)
                self._registered.append((timeline, value))
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

    def _unregister(self) -> None:
        """Leave no registration behind; under the lock."""
        self._gate = None
        for timeline, value in self._registered:
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

    def _leave(self) -> None:
        """End the wait, however it ended."""
        work: Work = []
        try:
            with _timeline.lock:
                self._unregister()
                self._stop_leading(work)
                for queue in self._followed:
                    # Perhaps it was woken to lead, and leaves instead: it passes that on.
                    if queue._leader is None:
                        self._wake_follower(queue, work)
            if work:
                _progress.drain(work)
        except BaseException:
            with _timeline.lock:  # Ctrl-C, once more
                self._unregister()
                self._stop_leading(work)
            _progress.hand_over(work)
            raise

    def _give_up(self, timeout: float | None) -> int:
        """Look once more, and raise the time-out with what is still waited for."""
        for entries in self._unmet:
            _ask_all(entries)
        with _timeline.lock:
            self._check_failures()  # S6: a failure in the set comes before the time-out
            index = self._scan()
            if index is not None:
                return index
        message = f"waited {timeout:g} s {_explain.describe_wait(self._groups)}"
        raise DeadlineExceededError(message)

    def _notice(self, index: int, work: Work) -> None:
        """Wake the thread, unless it waits for more than this; under the lock."""
        if self._missing and self._registered[index][0]._failure is None:
            self._missing -= 1
            return
        self._wake(work)

    def _wake(self, work: Work) -> None:
        """Wake the thread if it sleeps; under the lock."""
        gate = self._gate
        if gate is not None:
            self._gate = None
            work.append((WAKE, gate))
