"""Run host operations: functions of the user's and file transfers (rules Q2, Q4).

A host operation has no place on a native stream. It is issued once everything
that it waits for is reached, runs on a thread of the pool, and brings its
signals about when it has ended. A function that returns something to wait for
*defers* its end to that: the thread goes back to the pool, and the operation is
registered like one that is not issued yet. The timeline lock guards all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hal import _progress, _timeline
from hal._failure import keep
from hal._fence import Fence
from hal._operation import DONE, FAILED, ISSUED, Operation
from hal._ring import Ring
from hal._submission import Submission
from hal._timeline import GARBAGE, ISSUE, Timepoint, Work
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._context import Context

__all__ = ["DEFERRED", "RUNNING", "SENT", "HostOperations"]

# What an issued host operation is doing
SENT: Final = 0
RUNNING: Final = 1
DEFERRED: Final = 2


class HostOperations(Ring):
    """Hold the issued host operations of one queue."""

    __slots__ = ("_hosts",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # In the order of their issue, and what each is doing
        self._hosts: dict[Operation, int] = {}

    def _run_host(self, operation: Operation) -> None:
        """Run a host operation on the calling thread, one of the pool's; end or defer it."""
        with _timeline.lock:
            if self._hosts.get(operation) != SENT:
                return  # it was sent off twice, around a Ctrl-C
            self._hosts[operation] = RUNNING
            failed = operation._state != ISSUED  # the device was lost meanwhile
        error: BaseException | None = None
        entries: tuple[Timepoint, ...] = ()
        try:
            if not failed:
                entries = _awaited(operation._function(*operation._arguments))
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises
            error = raised
        work: Work = []
        with _timeline.lock:
            if entries and operation._state == ISSUED:
                error = self._defer(operation, entries, work)
            if self._hosts[operation] != DEFERRED or error is not None or not operation._unresolved:
                self._end_host(operation, error, work)
        _progress.drain(work)

    def _defer(
        self, operation: Operation, entries: tuple[Timepoint, ...], work: Work
    ) -> BaseException | None:
        """Register for what a function has returned; under the lock.

        Returns what the operation fails with at once, if it does.
        """
        for timepoint in operation._signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            for other in entries:
                waited, least = other._semaphore, other._value
                if waited is semaphore and value <= least:
                    return InvalidArgumentError(
                        f"{operation._describe()} returned {waited.name}@{least} to wait for, and "
                        f"signals {semaphore.name}@{value} itself: it would wait for itself"
                    )
        operation._waits = entries
        self._hosts[operation] = DEFERRED
        for index, timepoint in enumerate(entries):
            semaphore, value = timepoint._semaphore, timepoint._value
            if semaphore._failure is not None:
                return semaphore._failure
            if semaphore._value < value:
                operation._unresolved |= 1 << index
                semaphore._until_reached(value, work).hold_back(value, operation, index)
        return None

    def _resume(self, operation: Operation, index: int, work: Work) -> None:
        """Look again at a wait of a deferred operation, and end it after the last; under the lock.

        Twice for one wait, around a Ctrl-C, is the same as once.
        """
        waits = operation._waits
        error: BaseException | None = None
        if operation._state == ISSUED and index < len(waits):
            timepoint = waits[index]
            timeline, value = timepoint._semaphore, timepoint._value
            if timeline._failure is None:
                if timeline._value < value:
                    return  # released for what it waited for before its issue
                operation._unresolved &= ~(1 << index)
                if operation._unresolved:
                    return
            for timepoint in waits:
                timeline = timepoint._semaphore
                if timeline._failure is not None:
                    error = timeline._failure
                    break
        self._end_host(operation, error, work)

    def _end_host(self, operation: Operation, error: BaseException | None, work: Work) -> None:
        """End an issued host operation; under the lock.

        In this order: what a Ctrl-C cuts short can be done again.
        """
        if operation._state == ISSUED and error is None:
            for timepoint in operation._signals:
                semaphore, value = timepoint._semaphore, timepoint._value
                semaphore._advance(value, work)
            operation._state = DONE
        elif operation._state == ISSUED and error is not None:
            operation._error = keep(error)
            for timepoint in operation._signals:
                semaphore = timepoint._semaphore
                semaphore._fail(error, work)
                semaphore._release_all(work)
            operation._state = FAILED
        if operation._unresolved:
            for timepoint in operation._waits:
                timeline, value = timepoint._semaphore, timepoint._value
                timeline._forget(value, operation)
            operation._unresolved = 0
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))
        work.append((GARBAGE, self._drop(operation)))
        self._hosts.pop(operation, None)

    def _abandon_hosts(self, error: BaseException, work: Work) -> None:
        """Fail every issued host operation: the device is lost; under the lock."""
        for operation, stage in list(self._hosts.items()):
            if stage == DEFERRED:
                self._end_host(operation, error, work)
            else:
                self._fail_issued(operation, error, work)  # its thread does the rest


def _awaited(result: object) -> tuple[Timepoint, ...]:
    """Return what a function's result defers the end to; nothing for a value that is dropped."""
    kinds = (Timepoint, Submission, Fence)
    if isinstance(result, kinds):
        return Fence(result)._entries
    if isinstance(result, (list, tuple)) and any(isinstance(each, kinds) for each in result):
        for each in result:
            if not isinstance(each, kinds):
                message = (
                    "the function of call() returned a list of things to wait for with a "
                    f"{type(each).__name__} among them; return timepoints, submissions and "
                    "fences only, or none"
                )
                raise ArgumentTypeError(message)
        return Fence(result)._entries
    return ()
