"""Host operations: functions of the user's and file transfers (rules Q2, Q4).

A host operation has no place on a native stream. It is issued once everything
that it waits for is reached, runs on a thread of the pool, and makes its
signals when it has ended. A function that returns something to wait for
*defers* its end to that: the thread goes back to the pool, and the operation is
registered like one that is not issued yet. The timeline lock guards all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hal._base.failures import of_function
from hal._engine import progress, timelines
from hal._engine.fence import Fence
from hal._engine.operation import DEFERRED, DONE, FAILED, RUNNING, SENT, Operation
from hal._engine.retiring import Ring
from hal._engine.steps import Step
from hal._engine.submission import Submission
from hal._engine.timelines import GARBAGE, ISSUE, Timepoint, Work
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext

__all__ = ["HostOperations"]

_Outcome: TypeAlias = "tuple[Timepoint, ...] | BaseException"
"""The waits that a function has returned, or the exception that it raised."""


class HostOperations(Ring):
    """The issued host operations of one queue."""

    __slots__ = ("_hosts",)

    def __init__(self, context: DeviceContext) -> None:
        super().__init__(context)
        self._hosts: dict[Operation, None] = {}  # in the order of their issue

    def _run_host(self, operation: Operation) -> None:
        """Run a host operation on the calling thread, one of the pool's; end or defer it."""
        function, arguments = operation._function, operation._arguments
        if not progress.act(_begin, operation, None):
            return
        outcome: _Outcome
        try:
            outcome = _awaited(function(*arguments))
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises
            culprit = arguments[0] if operation._kind == "call" else function
            outcome = of_function(raised, culprit, operation._describe())
        del function, arguments  # its resources are free as soon as it has ended
        progress.act(_return, operation, outcome)

    def _defer(
        self, operation: Operation, entries: tuple[Timepoint, ...], work: Work
    ) -> BaseException | None:
        """Register for the waits that a function has returned; under the lock.

        Returns the operation's failure if it fails at once.
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
        operation._state = DEFERRED
        for index, timepoint in enumerate(entries):
            semaphore, value = timepoint._semaphore, timepoint._value
            if semaphore._failure is not None:
                return semaphore._failure
            if semaphore._value < value:
                operation._unresolved |= 1 << index
                semaphore._until_reached(value, work).hold_back(value, operation, index)
        return None

    def _resume(self, operation: Operation, index: int, work: Work) -> None:
        """Check a wait of a deferred operation again, and end it after the last; under the lock.

        Idempotent: a Ctrl-C may repeat it for one wait.
        """
        waits = operation._waits
        error: BaseException | None = None
        if index < len(waits):
            timepoint = waits[index]
            timeline, value = timepoint._semaphore, timepoint._value
            if timeline._failure is None:
                if timeline._value < value:
                    return  # released for a wait of before its issue
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
        """End an issued host operation, whose function runs no more; under the lock.

        Sets its state last: until then an interrupted end is repeated.
        """
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))
        work.append((GARBAGE, [operation]))
        operation._retired = True
        self._hosts.pop(operation, None)
        self._finish(operation, DONE if error is None else FAILED, error, work)

    def _abandon_hosts(self, error: BaseException, work: Work) -> None:
        """Fail every issued host operation: the device is lost; under the lock."""
        for operation in list(self._hosts):
            if operation._state in {SENT, DEFERRED}:
                self._end_host(operation, error, work)
            else:  # its thread does the rest
                self._finish(operation, FAILED, error, work)


def _begin(_: Step, operation: Operation, __: None) -> bool:
    """Return whether the calling thread is to call the function of a host operation."""
    with timelines.lock:
        if operation._state != SENT:
            return False  # it was sent twice, around a Ctrl-C; or the device was lost
        operation._state = RUNNING
        return True


def _return(step: Step, operation: Operation, outcome: _Outcome) -> None:
    """End or defer a host operation whose function has returned or raised."""
    queue, work = operation._queue, step.work
    with timelines.lock:
        if isinstance(outcome, BaseException):
            queue._end_host(operation, outcome, work)
            return
        error = None
        if outcome and operation._state == RUNNING:
            error = queue._defer(operation, outcome, work)
        if error is not None or not operation._unresolved:
            queue._end_host(operation, error, work)


def _awaited(result: object) -> tuple[Timepoint, ...]:
    """Return the waits that a function's result defers the end to; empty for other results."""
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
