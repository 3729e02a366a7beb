"""Submissions: the handles of operations."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, SupportsFloat, cast

from hal._base.failures import fresh
from hal._engine import progress, timelines, waiting
from hal._engine.operation import (
    CANCELLED,
    DONE,
    FAILED,
    ISSUED,
    ISSUING,
    PARTLY,
    PENDING,
    STARVED,
    Operation,
)
from hal._engine.semaphore import Semaphore
from hal._engine.spin import spin_for_operation
from hal._engine.steps import Step
from hal._engine.timelines import Timepoint
from hal.arguments import as_seconds
from hal.errors import HalError

if TYPE_CHECKING:
    from hal._devices.queue import Queue

__all__ = ["Submission"]

_STATES: Final = {
    PENDING: "pending",
    PARTLY: "pending",
    STARVED: "pending",
    ISSUING: "pending",
    DONE: "done",
    FAILED: "failed",
    CANCELLED: "cancelled",
}
"""The states that users see; all others are ``"issued"``."""


class Submission(Operation):
    """The handle of an operation of a queue; returned by every queue operation.

    It is not a value of a shared semaphore: a failed submission fails its own
    handle and its own signals, nothing else. It can stand in any wait list,
    and is awaitable in asyncio. Any thread may use it. Dropping it changes
    nothing for the operation.
    """

    __slots__ = ("__weakref__",)

    @property
    def state(self) -> str:
        """One of ``"pending"``, ``"issued"``, ``"done"``, ``"failed"`` and ``"cancelled"``."""
        self._look()
        return _STATES.get(self._state, "issued")

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not; asks the device, never blocks."""
        return self._state >= DONE or self._look()

    @property
    def error(self) -> HalError | None:
        """The error that it failed with or was cancelled by, as a fresh exception; else None."""
        self._look()
        return fresh(self._error) if self._state > DONE else None

    @property
    def kind(self) -> str:
        """The name of the queue's method that submitted it."""
        return self._kind

    @property
    def queue(self) -> Queue:
        """The queue that it was submitted to."""
        return cast("Queue", self._queue)

    def wait(self, timeout: SupportsFloat | None = None) -> None:
        """Block until it is done, for at most `timeout` seconds; None means forever.

        Raises its error as a fresh exception, or `DeadlineExceededError`. Ctrl-C ends the wait.
        """
        if timeout is not None:
            timeout = as_seconds(timeout)
        if self._state == ISSUED:
            spin_for_operation(self, timeout)
        if self._state == DONE:
            return
        waiting.wait_all((self._as_timepoint(),), timeout)

    def __await__(self) -> Generator[Any, None, None]:
        return self._as_timepoint()._semaphore.reached(1).__await__()

    def __repr__(self) -> str:
        return f"<Submission {self._describe()} {_STATES.get(self._state, 'issued')}>"

    def _as_timepoint(self) -> Timepoint:
        """Return 1 of a semaphore of its own, which is reached when this is done.

        Created lazily: most submissions never need one.
        """
        timepoint = self._private
        if timepoint is None:
            timepoint = progress.act(_make_timepoint, self, None)
        return timepoint

    def _make_timepoint(self) -> Timepoint:
        """Create the timepoint; under the lock."""
        timepoint = self._private
        if timepoint is None:
            # Completed before it is published: a Ctrl-C between leaves nothing.
            semaphore = Semaphore(0, self._describe())
            timepoint = Timepoint(semaphore, 1)
            state = self._state
            if state == DONE:
                semaphore._value = semaphore._reserved = 1
            elif state > DONE:
                semaphore._failure = self._error
            else:
                semaphore._owner = self  # a cycle, which ends with the operation
                if state >= PARTLY:
                    semaphore._reserved = 1
                if state == ISSUED:
                    semaphore._points.append((1, self))
                self._signals = (*self._signals, timepoint)
            self._private = timepoint
        return timepoint


def _make_timepoint(_: Step, submission: Submission, __: None) -> Timepoint:
    with timelines.lock:
        return submission._make_timepoint()
