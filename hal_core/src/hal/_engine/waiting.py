"""Host threads that wait for timepoints (rules S6 and S9; docs/architecture.md, Threads).

Most waits are for work that was submitted just now and ends within microseconds, so a waiter
first asks the event of the operation that it waits for, for 100 microseconds, letting other
threads run: that needs no registration and no list (`spin_for`). If that was in vain, or for
several, it asks the smallest covering point of every queue that has one, and after 100 microseconds
it naps in between, for at most a millisecond: a thread that has slept for long is woken later than
a nap ends. One waiter at a time asks for a queue, its *leader*: were there more, they would take
the interpreter lock from the one that retires.

Then, or at once if there is nothing to ask, it registers and sleeps at a doorbell of its own, which
a thread that signals rings, or the driver when the next operation of each queue has ended; the
waiter retires that itself. Woken or not, the condition is "failed, or reached", never the event
alone, which may have been recorded again for others. The timeline lock guards all of it, and a wait
for many entries looks at them, registers and leaves in short holds of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, SupportsFloat, TypeAlias

from hal._base import sync
from hal._base.failures import fresh
from hal._engine import explain, progress, steps, timelines
from hal._engine.notifier import Notifier
from hal._engine.operation import ISSUED, Operation
from hal._engine.progress import NET_SECONDS
from hal._engine.retiring import Answer, ask, harvest, heed, query
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.timelines import WAKE, Timeline, Timepoint, Work, first_failure
from hal.arguments import as_seconds
from hal.errors import DeadlineExceededError
from hal.handlers import own

Entries: TypeAlias = Sequence[Timepoint]

POLL_SECONDS: Final = 100e-6
"""How long it asks without a pause, even if others want the processor: the cost of a wake-up."""

_EAGER_TURNS: Final = 4
"""How often it asks before it yields the processor in between: enough for short work.

A driver's call releases the interpreter lock by itself.
"""

_ASK_SECONDS: Final = 1e-3
"""How long a waiter asks before it sleeps: from then on it is to cost next to nothing."""

_CROWDED_SECONDS: Final = 50e-6
"""Between two questions: others have had the processor or the interpreter lock.

A waiter that asks on would keep from running what it waits for; so it naps between two questions.
Where nobody else wants the processor a nap would only be late, by as much as a wake-up takes.
"""

_NAP_PART: Final = 1 / 16
"""The length of a nap, as part of the wait so far; it is late by half of that on average."""


_HOLD: Final = 64
"""How many entries are looked at, registered or removed in one hold of the timeline lock.

Every submission takes that lock, and a wait may be for many thousand entries (Q1).
"""


def spin_for(timeline: Timeline, value: int, timeout: SupportsFloat | None) -> bool:
    """Ask the operation recorded to signal `value`, as `spin_for_operation`."""
    with timelines.lock:
        operation = timeline._covering(value)
    return operation is not None and spin_for_operation(operation, timeout)


def spin_for_operation(operation: Operation, timeout: SupportsFloat | None) -> bool:
    """Ask an operation on a stream until it has ended, or as long as that pays.

    Returns whether it was asked; it is not while another thread asks for its queue.
    """
    return progress.act(_spin, operation, _limit(timeout))


def _limit(timeout: SupportsFloat | None) -> float:
    return POLL_SECONDS if timeout is None else min(as_seconds(timeout), POLL_SECONDS)


def _spin(step: CallStep, operation: Operation, seconds: float) -> bool:
    queue = operation._queue
    with timelines.lock:
        if operation._state != ISSUED or operation._retired or queue._leader is not None:
            return False
        step.contexts = queue._contexts
    _ask_until((operation,), step, 0.0, seconds, None)
    return True


def _ask_until(
    points: Sequence[Operation],
    step: CallStep,
    waited: float,
    seconds: float,
    waiter: HostWaiter | None,
) -> bool:
    """Ask operations until one has ended, the waiter has news, or the time is up; at least once.

    It has `waited` before, and has `seconds` in all. Returns whether there is news.
    """
    ended: Operation | None = None
    answer: Answer = False
    turns = 0
    begun = 0.0
    is_crowded = False
    step.calm = True  # no engine state in its hands: a signal handler may call anything
    while True:
        # No lock is held: a native call may take long, and others submit meanwhile (I5).
        for operation in points:
            answer = query(operation)
            if answer is not False or operation._retired:
                ended = operation
                break
        if ended is not None or (waiter is not None and waiter.looks_changed()):
            break
        now, last = sync.monotonic(), waited
        if not turns:
            begun = now - waited
        waited = now - begun
        is_crowded = is_crowded or waited - last > _CROWDED_SECONDS
        if waited >= seconds:
            break
        turns += 1
        if is_crowded and waited >= POLL_SECONDS:
            sync.nap(min(waited * _NAP_PART, seconds - waited))
        elif turns > _EAGER_TURNS:
            sync.yield_thread()
    step.calm = False
    step.contexts = ()
    if ended is not None:
        heed(ended, answer, step)
        progress.drain(step)
        return True
    return waiter is not None and waiter.looks_changed()


def wait_all(
    entries: Entries, timeout: SupportsFloat | None, asked: float = 0.0, begun: float | None = None
) -> None:
    """Block until all entries are reached; see `hal.wait_all`.

    `begun` is when the caller began to wait, None for now, and `asked` for how many seconds it has
    asked or watched since the last news.
    """
    HostWaiter((entries,), asked).wait(None if timeout is None else as_seconds(timeout), begun)


def wait_groups(groups: Sequence[Entries], timeout: SupportsFloat | None) -> int | None:
    """Block until all entries of one group are reached and return its index."""
    if not groups:
        return None
    return HostWaiter(groups, 0.0).wait(None if timeout is None else as_seconds(timeout), None)


def leave(step: CallStep, waiter: HostWaiter, _: None) -> None:
    """Take back what a thread that slept in C has registered."""
    step.waiter = waiter
    waiter.leave()
    step.waiter = None


def poll_all(entries: Entries) -> bool:
    """Return whether all entries are reached; raise the first failure among them."""
    if not steps.is_inside():
        progress.act(_ask_all, entries, None)
    is_reached = all(each._semaphore._value >= each._value for each in entries)
    failure = first_failure(entries)
    if failure is not None:
        raise fresh(failure)
    return is_reached


def _ask_all(step: CallStep, entries: Entries, _: None) -> None:
    """Retire what has finished on every queue that will signal one of the entries."""
    queues: dict[StreamQueue, None] = {}
    for start in range(0, len(entries), _HOLD):
        with timelines.lock:
            queues.update(_queues_for(entries[start : start + _HOLD]))
    for queue in queues:
        harvest(step, queue)


def _queues_for(entries: Entries) -> dict[StreamQueue, None]:
    """Return the queues that will signal `entries`, as far as that is known; under the lock."""
    found = [timepoint._semaphore._covering(timepoint._value) for timepoint in entries]
    return {operation._queue: None for operation in found if operation is not None}


bells: Final[list[sync.Doorbell]] = []
"""Doorbells that nobody sleeps at; a driver may still ring one.

Kept for the next waiters: the memory of a doorbell is never freed (`hal._base.sync.Doorbell`).
"""


def _take_bell() -> sync.Doorbell:
    try:
        return bells.pop()
    except own(IndexError):
        return sync.Doorbell()


def _sequence_of(operation: Operation) -> int:
    return operation._sequence


class HostWaiter:
    """One thread's wait until all entries of any of several groups are reached.

    A reached entry stays reached, so each group is a list that only shrinks,
    and only its last entry is looked at: waiting for n entries is O(n) in total,
    not per poll.
    """

    __slots__ = (
        "_asked",
        "_bell",
        "_deadline",
        "_ends",
        "_failure",
        "_groups",
        "_index",
        "_is_asleep",
        "_leads",
        "_missing",
        "_points",
        "_registered",
        "_unmet",
    )

    def __init__(self, groups: Sequence[Entries], asked: float) -> None:
        self._groups = groups
        # The seconds for which it has asked or watched since the last news
        self._asked = asked
        self._unmet = [list(entries) for entries in groups]
        self._deadline = math.inf
        # The result of a turn: a failure, or else the group that is reached, or else what to poll,
        # or else where to sleep
        self._failure: BaseException | None = None
        self._index: int | None = None
        self._points: list[Operation] = []
        self._bell: sync.Doorbell | None = None
        self._is_asleep = False  # nobody has rung for it
        # The recorded operations that it has registered for, sorted later: the next to end last
        self._ends: dict[StreamQueue, list[Operation]] = {}
        self._registered: list[Timepoint] = []
        self._missing = 0  # notices that must come until it is woken
        self._leads: list[StreamQueue] = []

    def wait(self, timeout: float | None, begun: float | None) -> int:
        """Block as `wait_groups` does, for `timeout` seconds from `begun` on; None means now."""
        if timeout is not None:
            if begun is None:
                begun = sync.monotonic()
            self._deadline = begun + timeout
        progress.act(self._run, None, None)
        if self._failure is not None:
            raise fresh(self._failure)
        if self._index is None:
            message = f"waited {timeout:g} s {explain.describe_wait(self._groups)}"
            raise DeadlineExceededError(message)
        return self._index

    def _run(self, step: CallStep, *_: None) -> None:
        """Wait until a group is reached, something has failed, or the time is up."""
        to_check = True
        is_late = False
        step.waiter = self  # the next call has it leave, if this breaks off
        while True:
            if not is_late:
                self._resume(step)
            may_sleep = not is_late and self._remaining() > 0
            turn = self._turn(step, to_check, may_sleep)
            is_over = False
            while not is_over:
                with timelines.lock:
                    is_over = next(turn, True)
            if step.work:
                progress.drain(step)
            if is_late or self._index is not None or self._failure is not None:
                break
            if self._points:
                seconds = min(_ASK_SECONDS, self._asked + self._remaining())
                if not _ask_until(self._points, step, self._asked, seconds, self):
                    self._asked = _ASK_SECONDS
                to_check = False  # a check looks at every entry: that is too much for each poll
                continue
            to_check = True
            if may_sleep:
                self._sleep(step)
                self._asked = 0.0
            if not may_sleep or self._is_asleep:
                is_late = True
                for entries in self._unmet:
                    _ask_all(step, entries, None)  # S6: read once more
                progress.drain(step)
        self.leave()
        step.waiter = None

    def _resume(self, step: CallStep) -> None:
        """Take back the work that this thread has handed to the progress thread, and do it."""
        # Before it registers: the driver wakes it for operations that are recorded by then; for
        # others the progress thread would have to.
        step.calm = True
        while self._remaining() > 0 and progress.act(progress.resume, None, None):
            pass
        step.calm = False

    def _remaining(self) -> float:
        """Return how many seconds are left."""
        return self._deadline if self._deadline == math.inf else self._deadline - sync.monotonic()

    def _turn(  # noqa: PLR0912 - what there is to look at, in one order
        self,
        step: CallStep,
        to_check: bool,  # noqa: FBT001 - internal
        may_sleep: bool,  # noqa: FBT001
    ) -> Iterator[bool]:
        """Look; if nothing is reached and nothing has failed, prepare to poll or to sleep.

        Under the lock, which the caller releases for a moment where this yields False.
        """
        # A generator, since the caller holds the lock in a `with` that must be left in between. It
        # yields there only, not at every entry: a suspended generator is closed when a Ctrl-C
        # breaks the wait off, and Python drops a second Ctrl-C that comes in the closing.
        left = _HOLD
        self._is_asleep = False
        self._points = []
        while self._registered:
            self._take_back()
            left -= 1
            if not left:
                yield False
                left = _HOLD
        if to_check and self._has_failed():
            return
        unmet = self._unmet
        for index, entries in enumerate(unmet):
            while entries:
                timepoint = entries[-1]
                timeline, value = timepoint._semaphore, timepoint._value
                if timeline._failure is not None:
                    self._failure = timeline._failure
                    return
                if timeline._value < value:
                    break
                entries.pop()
                left -= 1
                if not left:
                    yield False
                    left = _HOLD
            if not entries:
                if not self._has_failed():
                    self._index = index
                return
        if self._asked < _ASK_SECONDS and may_sleep:
            self._points = self._points_to_ask()
            if self._points:
                step.contexts = tuple({each._queue._context for each in self._points})
                return
        if may_sleep:
            yield from self._go_to_sleep(step.work)
        self._stop_leading()

    def _go_to_sleep(self, work: Work) -> Iterator[bool]:
        """Register for every entry that is not reached; otherwise like `_turn`."""
        if self._bell is None:
            self._bell = _take_bell()
        self._is_asleep = True
        self._ends = {}
        # A wait for all is woken by the last notice alone: woken for each, it would run as often as
        # there are entries. Until all are registered, registration counts as one more. Of several
        # groups any notice may be the one that ends the wait.
        counting = len(self._unmet) == 1 and len(self._unmet[0]) > 1
        self._missing = 1 if counting else 0
        left = _HOLD
        for entries in self._unmet:
            for timepoint in entries:
                self._register(timepoint, counting, work)
                left -= 1
                if not left:
                    yield False
                    left = _HOLD
        if counting:
            self._missing -= 1
            if not self._missing:
                self._wake(work)

    def _has_failed(self) -> bool:
        """Return whether there is a failure in the set, of a reached entry as well."""
        for entries in self._groups:
            if self._failure is None:
                self._failure = first_failure(entries)
        return self._failure is not None

    def _points_to_ask(self) -> list[Operation]:
        """Return operations of the queues that this waiter leads, to be asked; under the lock.

        They are the smallest covering point of every queue that has one. A waiter for any
        of very many leaves them to the progress thread.
        """
        points: dict[StreamQueue, Operation] = {}
        if len(self._unmet) > _HOLD:
            return []
        for entries in self._unmet:
            timepoint = entries[-1]
            timeline, value = timepoint._semaphore, timepoint._value
            operation = timeline._covering(value)
            if operation is None:
                continue
            queue = operation._queue
            if queue._leader is None:
                self._leads.append(queue)
                queue._leader = self
            elif queue._leader is not self:
                continue
            known = points.get(queue)
            # The first to end; what comes later on its queue is looked at then.
            if known is None or operation._sequence < known._sequence:
                points[queue] = operation
        return list(points.values())

    def looks_changed(self) -> bool:
        """Return whether a look under the lock is worth it: reads single fields only."""
        for entries in self._unmet:
            timepoint = entries[-1]
            timeline, value = timepoint._semaphore, timepoint._value
            if timeline._value >= value or timeline._failure is not None:
                return True
        return False

    def _sleep(self, step: CallStep) -> None:
        """Sleep until there is news, or the time is up; retire what ends meanwhile."""
        bell = self._bell
        assert bell is not None  # noqa: S101 - for the type checker
        # What rings from now on is kept. A thread that rang before has cleared `_is_asleep` first,
        # and the driver is asked to ring only below.
        bell.clear()
        for ends in self._ends.values():
            ends.sort(key=_sequence_of, reverse=True)
        # Only another thread that signals is worth it: work on a stream was asked for before.
        if not self._asked and not self._ends:
            step.calm = True
            bell.spin()
            step.calm = False
        while self._is_asleep and (left := self._remaining()) > 0:
            asked = self._arm(bell, step) if self._ends else []
            if asked:
                # After a device error no driver rings: then the questions below find the error.
                left = min(left, NET_SECONDS)
            step.calm = True  # from now on a signal handler's calls are made at once
            if not progress.act(progress.resume, None, None):
                bell.wait(left)
            step.calm = False
            for operation in asked:
                if not operation._retired:
                    heed(operation, ask(operation, step), step)
            if step.work:
                progress.drain(step)

    def _arm(self, bell: sync.Doorbell, step: CallStep) -> list[Operation]:
        """Have the driver ring when the next operation of each queue has ended; return those.

        What it does not take is left to the progress thread.
        """
        asked = []
        for queue, ends in list(self._ends.items()):
            while ends and ends[-1]._retired:
                ends.pop()
            if ends and queue._notifier.arm(ends[-1], bell, Notifier.MOST, step):
                asked.append(ends[-1])
                continue
            for start in range(0, len(ends), _HOLD):
                with timelines.lock:
                    for operation in ends[start : start + _HOLD]:
                        operation._want(step.work)
            del self._ends[queue]
        progress.drain(step)
        return asked

    def _register(self, timepoint: Timepoint, counting: bool, work: Work) -> None:  # noqa: FBT001 - internal
        """Register for an entry, or note that there is news; under the lock.

        If the thread is `counting`, once for each value.
        """
        timeline, value = timepoint._semaphore, timepoint._value
        if timeline._failure is not None:
            self._wake(work)
            return
        if timeline._value >= value:
            if not counting:
                self._wake(work)
            return
        if counting:
            if timeline._reached is not None and timeline._reached.has_watcher(value, self):
                return
            self._missing += 1
        # Noted first: an interrupted wait takes back what it has noted, registered or not.
        position = len(self._registered)
        self._registered.append(timepoint)
        operation = timeline._covering(value)
        if operation is not None:
            self._ends.setdefault(operation._queue, []).append(operation)
        # Where no operation has recorded the value yet the thread is told when one does, and then
        # asks that one. Where one has, it asks that already; a thread that counts asks none.
        if operation is not None or counting:
            timeline._until_reached().watch(value, self, position)
        else:
            timeline._until_recorded().watch(value, self, position)

    def _take_back(self) -> None:
        """Remove the last registration; under the lock."""
        # Also if the value is reached: what raised it may have broken off before it told anybody.
        timepoint = self._registered[-1]
        timepoint._semaphore._forget(timepoint._value, self)
        self._registered.pop()

    def _stop_leading(self) -> None:
        """Let others poll; under the lock."""
        for queue in self._leads:
            if queue._leader is self:
                queue._leader = None
        self._leads.clear()

    def leave(self) -> None:
        """Leave no registration and no lead behind; idempotent.

        No lock held; any thread, once the waiting one is out of the wait.
        """
        # First: nobody rings for it from here on, so the doorbell can be another waiter's. A ring
        # that is on its way already wakes that one in vain.
        self._is_asleep = False
        bell, self._bell = self._bell, None
        if bell is not None:
            bells.append(bell)
        while self._registered or self._leads:
            with timelines.lock:
                for _ in range(min(len(self._registered), _HOLD)):
                    self._take_back()
                if not self._registered:
                    self._stop_leading()

    def _notice(self, index: int, work: Work) -> None:
        """Wake the thread, unless it waits for more than this; under the lock."""
        self._missing -= 1
        if self._missing <= 0 or self._registered[index]._semaphore._failure is not None:
            self._wake(work)

    def _wake(self, work: Work) -> None:
        """Wake the thread if it sleeps; under the lock."""
        if self._is_asleep:
            self._is_asleep = False
            work.append((WAKE, self._bell))
