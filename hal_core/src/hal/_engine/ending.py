"""End operations: as they should, with a failure, or before their issue (rules S5, Q6).

Only `finish` ends an operation's handle and signals. What happens besides depends on what is left
of the operation: nothing (`end`), a function that runs (its thread does the rest), or work on a
stream, which is followed until it has retired. All of it happens under the timeline lock, in an
order that lets an interrupted call be repeated.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hal._engine import timelines
from hal._engine.operation import (
    CANCELLED,
    DEFERRED,
    DONE,
    FAILED,
    ISSUED,
    ISSUING,
    PARTLY,
    PENDING,
    SENT,
    STARVED,
    Operation,
)
from hal._engine.timelines import DROP, GARBAGE, ISSUE, Work
from hal.errors import CancelledError, DeviceLostError

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext
    from hal._engine.stream import StreamQueue


left_behind: list[object] = []
"""Resources of operations that were abandoned while they ran: these can never be given back."""


def finish(operation: Operation, state: int, error: BaseException | None, work: Work) -> None:
    """End an operation's signals, registrations and handle; under the lock.

    With an error, which `keep` has made fit to be kept, unless `state` is `DONE`.
    """
    if operation._state >= DONE:
        return
    if error is None:
        for timepoint in operation._signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            semaphore._advance(value, work)
    else:
        operation._error = error
        for timepoint in operation._signals:
            semaphore = timepoint._semaphore
            semaphore._fail(error, work)
    if operation._unresolved:
        for timepoint in operation._waits:
            timeline, value = timepoint._semaphore, timepoint._value
            timeline._forget(value, operation)
    operation._state = state  # last: until then an interrupted call does all of it again


def end(operation: Operation, state: int, error: BaseException | None, work: Work) -> None:
    """End an operation that is not issued, or ran on the host and runs no more; under the lock.

    Its state changes last: until then an interrupted call is repeated.
    """
    queue = operation._queue
    if queue._backlog and queue._issuing is None:
        work.append((ISSUE, queue))  # others may have stood behind it
    work.append((GARBAGE, [operation]))
    if operation._state == PARTLY:
        # Parts of it may be on the stream: it is over when the work there has retired.
        operation._is_begun = True
        operation._launched = queue._launched
        operation._retired = not queue._ring
    else:
        operation._retired = True
        if operation._state == STARVED:
            queue._context.forget(operation)
    queue._pending.pop(operation, None)
    queue._hosts.pop(operation, None)
    finish(operation, state, error, work)


def end_pending(operation: Operation, state: int, error: BaseException, work: Work) -> None:
    """End an operation that was put off, or whose submission broke off; no lock held."""
    with timelines.lock:
        if operation._state == PENDING:
            end(operation, state, error, work)


def disown(operation: Operation) -> None:
    """End an operation that was refused, or broke off before any queue had it; no lock held.

    Its signals and the allocation that it was to end stay as they are. Memory that noted it
    does not wait for it any more.
    """
    with timelines.lock:
        if operation._state != PENDING:
            return
        operation._error = CancelledError(f"{operation._describe()} was refused")
        operation._state = CANCELLED
    operation._resources = None  # first: a dealloca that was refused gives no memory back
    operation._let_go()


def fail(operation: Operation, error: BaseException, work: Work) -> None:
    """Fail an operation, whatever it waits for, with an error fit to be kept; under the lock.

    One on a stream is followed until it has retired. One in a thread's hands is left to it.
    """
    if operation._state == ISSUED:
        finish(operation, FAILED, error, work)
    elif operation._state in {PENDING, PARTLY, STARVED, SENT, DEFERRED}:
        end(operation, FAILED, error, work)


def call_off(operation: Operation, lost: BaseException | None, work: Work) -> None:
    """End an unissued operation: its queue is closed, or its device lost; under the lock."""
    if lost is None:
        error = CancelledError(
            f"{operation._describe()} was cancelled: the queue was closed before it was issued"
        )
        end(operation, CANCELLED, error, work)
    else:
        end(operation, FAILED, lost, work)


def recall(operation: Operation, _: None, work: Work) -> None:
    """Cancel an operation unless it was issued, for its user; under the lock.

    One that is being issued is cancelled if it is put back into line.
    """
    queue = operation._queue
    state = operation._state
    if state == ISSUING:
        queue._recalled = operation
    elif state in {PENDING, PARTLY, STARVED, SENT}:
        words = "was cancelled by cancel() before it was issued"
        error = CancelledError(f"{operation._describe()} {words}")
        end(operation, CANCELLED, error, work)
        queue._cancelled += 1
        if 2 * queue._cancelled > len(queue._backlog):
            # It may stand behind one that waits for long, and others may be cancelled behind it.
            # Cleared at each cancellation, a backlog would cost the square of its length to cancel.
            # A new list: a Ctrl-C loses nothing.
            work.append((DROP, queue._backlog))
            queue._backlog = deque([each for each in queue._backlog if each._state <= STARVED])
            queue._cancelled = 0


def call_off_all(queue: StreamQueue, lost: BaseException | None, work: Work) -> None:
    """Empty a queue's backlog; under the lock."""
    for operation in queue._unissued():
        call_off(operation, lost, work)
    work.append((DROP, list(queue._backlog)))
    queue._backlog.clear()


def lose(context: DeviceContext, error: BaseException, work: Work) -> None:
    """Lose a context with an error that is fit to be kept; under the lock (S5).

    Also the others that share the loss, unless a close has given up this one alone. Completes
    a loss that broke off part-way, too.
    """
    if context.lost is None:
        context.lost = error
    is_alone = isinstance(context.lost, DeviceLostError) and context.lost.given_up
    for each in [context] if is_alone else context.together:
        if each.lost is None:
            each.lost = DeviceLostError(
                f"{each.name} is lost with {context.name}, on the same hardware; open it again"
            )
            each.lost.__cause__ = context.lost
        for queue in each.queues:
            abandon(queue, each.lost, work)


def abandon(queue: StreamQueue, error: BaseException, work: Work) -> None:
    """Fail every operation that has not retired: the device is lost; under the lock.

    The one that is being issued fails when its native calls have returned.
    """
    garbage = list(queue._ring)
    work.append((GARBAGE, garbage))
    is_running = isinstance(error, DeviceLostError) and error.given_up
    for operation in garbage:
        if is_running:
            left_behind.append(operation._resources)
        finish(operation, FAILED, error, work)
        # Nobody asks an event of a lost context any more. Work that a close gave up may run on, so
        # what it uses was left behind, above.
        operation._retired = True
    # Their events are not given back: no event of a lost context is used again.
    queue._ring.clear()
    for operation in list(queue._hosts):
        if operation._state in {SENT, DEFERRED}:
            end(operation, FAILED, error, work)
        else:  # its thread does the rest
            finish(operation, FAILED, error, work)
    call_off_all(queue, error, work)
