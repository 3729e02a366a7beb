"""Submissions: the handles of operations."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, SupportsFloat, cast

from hal._base.failures import fresh, of_function
from hal._engine import host_calls, progress, retiring, steps, timelines, waiting
from hal._engine.awaiting import Awaiting, polled
from hal._engine.ending import recall
from hal._engine.operation import CANCELLED, DONE, ISSUED, PARTLY, SENT, WORDS, Operation
from hal._engine.semaphore import Semaphore
from hal._engine.steps import CallStep
from hal._engine.timelines import Timepoint
from hal.arguments import as_seconds
from hal.errors import HalError

if TYPE_CHECKING:
    from hal._devices.queue import Queue


class Submission(Operation):
    """The handle of an operation of a queue; returned by every queue operation.

    It is not a value of a shared semaphore: a failed submission fails its own
    handle and its own signals, nothing else. It can stand in any wait list,
    and is awaitable in asyncio and trio. Any thread may use it. Dropping it changes
    nothing for the operation.
    """

    __slots__ = ("__weakref__",)

    @property
    def state(self) -> str:
        """One of ``"pending"``, ``"issued"``, ``"done"``, ``"failed"`` and ``"cancelled"``."""
        self._look()
        return WORDS[self._state][0]

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
        has_asked = self._state == ISSUED and waiting.spin_for_operation(self, timeout)
        if self._state == DONE:
            return
        waiting.wait_all((self._as_timepoint(),), timeout, asked=waiting.POLL_SECONDS * has_asked)

    def cancel(self) -> bool:
        """Cancel the operation unless it was issued; return whether it is cancelled.

        True, as `concurrent.futures.Future.cancel` answers, if it has not run and never will: its
        handle and its signals have failed with `CancelledError`, and so does what waits for
        them. Work behind it in its queue goes on. False if it has been issued, which is
        not recalled, or has ended in another way; its handle says so later. Until a thread of ours
        begins it, a host operation (see `Queue.call`) can be cancelled, too. A recording that is
        issued in parts (Q1) is cancelled behind the last issued part: the content of what
        it writes is undefined then. A one-shot recording is not given back.

        Never blocks. Any thread may call it, any number of times. A signal handler or a finaliser
        that interrupts a call of hal's on its thread gets False: the operation is cancelled when
        that call ends, if it can be then (O3). The same holds for an operation that
        another thread is issuing: it is cancelled if it finds no memory or no room.
        """
        if self._state >= DONE:
            return self._state == CANCELLED
        progress.act_or_put_off(self._cancel, None, None)
        return self._state == CANCELLED

    def or_cancel(self) -> Awaitable[None]:
        """Return an awaitable for its end that cancels the operation if the task is cancelled.

        So a time-out (`asyncio.wait_for`) or a client that disconnects leaves nothing in line. What
        was issued is not recalled: the exception that cancels the task has a note that says
        so. A plain ``await submission`` cancels nothing.
        """
        return _OrCancel(self)

    def __await__(self) -> Awaiting:
        if self._state == ISSUED:
            yield from polled(self._ask)
        if self._state != DONE:
            yield from self._as_timepoint().semaphore.reached(1).__await__()

    def __repr__(self) -> str:
        return f"<Submission {self._describe()} {WORDS[self._state][0]}>"

    def _ask(self, seconds: float) -> bool:
        """Ask for up to `seconds`; return whether it has ended, or is no work of a stream."""
        waiting.spin_for_operation(self, seconds)
        return self._state != ISSUED

    def _look(self) -> bool:
        """Retire what has finished on the queue; return whether this has ended."""
        if self._state == ISSUED and not steps.is_inside():
            progress.act(retiring.harvest, self._queue, None)
        return self._state >= DONE

    def _cancel(self, step: CallStep, *_: None) -> None:
        """Cancel it, inside a step."""
        with timelines.lock:
            # Noted first: an interrupted call is repeated.
            step.work.append((timelines.CHANGE, (recall, self, None)))
            recall(self, None, step.work)

    def _run_on_host(self) -> None:
        """Run a host operation on the calling thread, one of the pool's; end or defer it."""
        function, arguments = self._function, self._arguments
        # First without a step: a thread that waits for a copy has mostly begun it by now, and wants
        # the interpreter lock back.
        if self._state != SENT or not progress.act(host_calls.begin, self, None):
            return
        outcome: host_calls.Outcome
        try:
            outcome = function(*arguments) or ()
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises
            # The user's function, which `hal._engine.submitted.call` has called
            culprit = arguments[0] if self._kind == "call" else function
            outcome = of_function(raised, culprit, self._describe())
        del function, arguments  # its resources are free as soon as it has ended
        progress.act(host_calls.complete, self, outcome)

    def _as_timepoint(self) -> Timepoint:
        """Return a timepoint of a semaphore of its own, which is reached when this is done."""
        # Made when it is needed first: most submissions never need one.
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
                # What its claim and its publication have done for its other signals
                if state >= PARTLY:
                    semaphore._reserved = 1
                if state == ISSUED:
                    semaphore._points.append((1, self))
                self._signals = (*self._signals, timepoint)
            self._private = timepoint
        return timepoint


def _make_timepoint(_: CallStep, submission: Submission, __: None) -> Timepoint:
    with timelines.lock:
        return submission._make_timepoint()


def sleep(
    submission: Submission, timeout: SupportsFloat | None, asked: float, begun: float
) -> None:
    """Wait as ``wait()`` does, for C, which has asked the event for `asked` seconds before."""
    waiting.wait_all((submission._as_timepoint(),), timeout, asked=asked, begun=begun)


class _OrCancel:
    """An awaitable for a submission's end, which cancels it if the task is cancelled."""

    __slots__ = ("_submission",)

    def __init__(self, submission: Submission) -> None:
        self._submission = submission

    def __await__(self) -> Awaiting:
        submission = self._submission
        try:
            yield from submission.__await__()
        except GeneratorExit:
            progress.put_last(submission._cancel, None, None)
            raise
        except HalError:
            raise  # it has ended
        except BaseException as interruption:
            if not submission.cancel() and submission._state < DONE:
                interruption.add_note(
                    f"{submission._describe()} had been issued when its await was cancelled, and "
                    "is not recalled: its signals come, and until then it uses its buffers; wait "
                    "for it, with submission.wait() or another await, before you use what it writes"
                )
            raise
