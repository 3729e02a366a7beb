"""Host operations: functions of the user's and file transfers (rules Q2, Q4).

A host operation has no place on a native stream. It is issued once everything
that it waits for is reached, runs on a thread of the pool, and makes its
signals when it has ended. A function that returns something to wait for
*defers* its end to that: the thread goes back to the pool, and the operation is
registered like one that is not issued yet. The timeline lock guards all of it.

With the C extension a thread that waits for a copy, without a time-out, makes it itself unless a
thread of the pool has begun it: to be woken costs that thread more than a small copy does.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from hal._engine import timelines
from hal._engine.backlog import register
from hal._engine.ending import end
from hal._engine.operation import DEFERRED, DONE, FAILED, RUNNING, SENT, Operation
from hal._engine.steps import CallStep
from hal._engine.timelines import CHANGE, HOST, Timepoint, Work
from hal.errors import InvalidArgumentError

MOST_CALLS: Final = 256
"""The most functions of users that run at once; a later one waits for a thread."""

Outcome: TypeAlias = "tuple[Timepoint, ...] | BaseException"
"""The waits that a function has returned, or the exception that it raised."""


def begin(_: CallStep, operation: Operation, __: None) -> bool:
    """Return whether the calling thread is to call the function of a host operation."""
    with timelines.lock:
        if operation._state != SENT:
            return False  # it was sent twice, around a Ctrl-C; or the device was lost
        operation._state = RUNNING
        return True


def complete(step: CallStep, operation: Operation, outcome: Outcome) -> None:
    """End or defer a host operation whose function has returned or raised."""
    # As a follow-up, which is repeated if it breaks off: nobody has the outcome but this call.
    step.work.append((CHANGE, (_complete, operation, outcome)))


def _complete(operation: Operation, outcome: Outcome, work: Work) -> None:
    """End or defer a host operation; under the lock, and idempotent."""
    error: BaseException | None = None
    if isinstance(outcome, BaseException):
        error = outcome
    elif outcome and operation._state in {RUNNING, DEFERRED}:
        error = _defer(operation, outcome, work)
    if error is not None or not operation._unresolved:
        end(operation, DONE if error is None else FAILED, error, work)


def send_again(step: CallStep, operation: Operation, _: None) -> None:
    """Have the pool make a copy that a waiting thread has begun in vain (the C extension).

    The pool was told of it when it was issued, and may have found it begun.
    """
    with timelines.lock:
        if operation._state == RUNNING:
            step.work.append((HOST, operation))
            operation._state = SENT
            return
    complete(step, operation, ())  # its device was lost


def _defer(
    operation: Operation, entries: tuple[Timepoint, ...], work: Work
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
    failure = register(operation, entries, work)
    # Last: as long as it runs nothing releases it, also if this breaks off between two waits.
    operation._state = DEFERRED
    return failure
