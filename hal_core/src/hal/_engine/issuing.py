"""Make the native calls of claimed operations, with the baton (design section 5).

An operation that `hal._engine.backlog` has claimed is put on the native stream here, outside of
the timeline lock, and then published; or put back, if the stream has no room for all of it or
there is no memory; or broken off, if a native call raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hal._base.failures import as_failure
from hal._engine import timelines
from hal._engine.operation import FAILED, ISSUED, ISSUING, PARTLY, STARVED, Operation
from hal._engine.plan import Plan
from hal._engine.steps import Step
from hal._engine.timelines import DROP, GARBAGE, LOSE
from hal.errors import DeviceLostError

if TYPE_CHECKING:
    from hal._engine.backlog import StreamQueue
    from hal._engine.events import Event

__all__ = ["break_off", "issue", "issue_from", "publish"]

_FEEDS: Final = frozenset({"alloca", "dealloca", "execute"})
"""Kinds that take or give memory back at their issue: the next starved one may find some, too."""


def issue_from(queue: StreamQueue, first: Operation, step: Step, budget: int) -> int:
    """Issue a claimed operation and those ready behind it; releases the baton."""
    operation: Operation | None = first
    count = 0
    while operation is not None:
        count += 1
        operation = issue(queue, operation, step, count < budget)
    step.queue = None
    return count


def issue(queue: StreamQueue, operation: Operation, step: Step, more: bool) -> Operation | None:  # noqa: FBT001 - internal, and positional for speed
    """Make the native calls of a claimed operation and publish its signals.

    Holds the baton. Returns the next operation, claimed, if there is one
    and `more` are wanted; else releases the baton.
    """
    native, stream = queue._native, queue._stream
    waits, function, arguments = (
        operation._stream_waits,
        operation._function,
        operation._arguments,
    )
    shared = operation._shared
    event = None
    left = 0
    is_starved = False
    operation._is_begun = True
    try:
        if shared is None:
            native.bind()
        if waits:
            for point in waits:
                native.wait_event(stream, point._event.handle)
                queue._seen[point._queue._id] = point._sequence
        if function is None:
            for placement in arguments:
                placement.issue(operation, 0)
                is_starved = placement.is_starved
            shared = operation._shared  # unless something was enqueued, after all
        elif isinstance(function, Plan):
            room = queue._limit - (queue._launched - queue._retired)
            made = function.issue(operation, max(room, 1))
            operation._launches = made + (len(waits) if waits else 0)
            left = function.left
            is_starved = function.is_starved
        else:
            _enqueue(function, stream, arguments)
        if shared is None and not is_starved:
            event = queue._context.events.take()
            native.record_event(event.handle, stream)
    except Exception as error:  # noqa: BLE001 - raised again in there if it is the user's
        failure = as_failure(error, "the operation was issued")
        return break_off(queue, operation, event, failure, step, more)
    event = event or shared
    with timelines.lock:
        _release_waits(operation)
        if is_starved or event is None:
            _starve(queue, operation, step)
            return None
        if left:
            _put_back(queue, operation, event, step)
            return None
        queue._enter_ring(operation, event)
        if queue._context.starved and operation._kind in _FEEDS:
            queue._context.feed_some(step.work)
        return publish(queue, operation, step, more)


def publish(queue: StreamQueue, operation: Operation, step: Step, more: bool) -> Operation | None:  # noqa: FBT001 - internal
    """Publish the signals of an operation in the ring, and look for more; under the lock."""
    operation._shared = None  # it is the ring's now
    if operation._state == ISSUING:
        operation._state = ISSUED
    if queue._context.lost is not None:
        queue._abandon(queue._context.lost, step.work)
    elif operation._state == ISSUED:
        for timepoint in operation._signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            semaphore._publish(value, operation, step.work)
        if queue._context.starved:
            queue._want(operation, step.work)  # its end may give memory back
    return queue._look_again(step, more)


def _put_back(queue: StreamQueue, operation: Operation, event: Event, step: Step) -> None:
    """Put an operation that is issued in part at the head of the backlog; under the lock.

    Its part is in the ring as an operation without a handle and signals. The baton is
    released until enough of the work in flight has retired, so that no thread blocks (Q1).
    """
    part = Operation(queue, operation._kind, (None, (), operation._resources), (), False)  # noqa: FBT003
    part._state = ISSUED
    part._launches = operation._launches
    part._dependencies = operation._dependencies
    queue._enter_ring(part, event)
    if queue._context.starved:
        queue._want(part, step.work)
    operation._stream_waits = operation._shared = None
    operation._is_begun = False
    if queue._context.lost is not None:
        queue._abandon(queue._context.lost, step.work)
    else:
        queue._backlog.appendleft(operation)
        if not queue._ordered:
            queue._pending[operation] = None
        operation._state = PARTLY
        queue._go_on(operation, step.work)
    queue._issuing = None


def _starve(queue: StreamQueue, operation: Operation, step: Step) -> None:
    """Put an operation back for which there is no memory; under the lock (M3).

    Nothing of it is enqueued, and its signals stay reserved. In an ordered queue all
    behind it waits, too; in an unordered one it leaves the backlog.
    """
    shared, operation._shared = operation._shared, None
    if shared is not None:
        shared.release()
    operation._stream_waits = None
    operation._is_begun = False
    if queue._context.lost is not None:
        queue._abandon(queue._context.lost, step.work)
    else:
        if queue._ordered:
            queue._backlog.appendleft(operation)
        else:
            queue._pending[operation] = None
        queue._context.starve(operation, step.work)
        operation._state = STARVED
        queue._go_on(operation, step.work)
    queue._issuing = None


def break_off(
    queue: StreamQueue,
    operation: Operation,
    event: Event | None,
    failure: BaseException,
    step: Step,
    more: bool,  # noqa: FBT001 - internal
) -> Operation | None:
    """Fail an operation whose issue broke off part-way; keep its resources until idle.

    The signals fail now. The part on the stream still runs: `event`, or
    another one, is recorded behind it, or the stream drained (Q5).
    """
    lost: DeviceLostError | None = None
    if isinstance(failure, DeviceLostError):
        event, lost = None, failure  # no event of a lost context is reused
    else:
        event, lost = _mark_end(queue, event)
    work = step.work
    with timelines.lock:
        _release_waits(operation)
        shared, operation._shared = operation._shared, None
        if shared is not None:
            shared.release()
        # It may break off before its waits reached the stream, so that its
        # event says nothing about its dependencies. It has failed anyway.
        work.append((DROP, operation._dependencies))
        operation._dependencies = None
        queue._finish(operation, FAILED, failure, work)
        if event is not None:
            queue._enter_ring(operation, event)
        else:
            operation._retired = True
            work.append((GARBAGE, [operation]))
        if lost is not None:
            work.append((LOSE, (queue._context, lost)))
        return queue._look_again(step, more and lost is None)


def _mark_end(
    queue: StreamQueue, event: Event | None
) -> tuple[Event | None, DeviceLostError | None]:
    """Record an event behind everything on the stream, or wait until the stream is idle.

    Records `event`, if given, or a new one. Returns it if it is recorded, else gives it back; and
    the error that loses the device if neither can be done.
    """
    native, stream = queue._native, queue._stream
    try:
        native.bind()
        if event is None:
            event = queue._context.events.take()
        native.record_event(event.handle, stream)
    except Exception as first:  # noqa: BLE001 - whatever a plugin raises there
        as_failure(first, "an event was recorded")
    else:
        return event, None
    if event is not None:
        with timelines.lock:
            event.release()
    try:
        native.synchronize_stream(stream)
    except Exception as second:  # noqa: BLE001 - as above
        error = as_failure(second, "the stream was drained")
        if isinstance(error, DeviceLostError):
            return None, error
        lost = DeviceLostError(f"{queue._name} can no longer tell when its work ends: {error}")
        lost.__cause__ = error
        return None, lost
    return None, None


def _release_waits(operation: Operation) -> None:
    """Drop the counts of events that an operation has made the stream wait for; the lock."""
    waits = operation._stream_waits
    while waits:  # removed first, so that no count is dropped twice around a Ctrl-C
        point = waits.pop()  # it stays among the dependencies
        point._event.release()


def _enqueue(function: Callable[..., object], stream: int, arguments: tuple[Any, ...]) -> None:
    """Make an operation's native call; without a star, which costs twice as much."""
    count = len(arguments)
    if count == 4:  # noqa: PLR2004 - a fill
        function(stream, arguments[0], arguments[1], arguments[2], arguments[3])
    elif count == 5:  # noqa: PLR2004 - a dispatch
        function(stream, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
    elif count == 3:  # noqa: PLR2004 - a copy
        function(stream, arguments[0], arguments[1], arguments[2])
    elif count == 2:  # noqa: PLR2004 - a graph
        function(stream, arguments[0], arguments[1])
    else:
        function(stream, *arguments)
