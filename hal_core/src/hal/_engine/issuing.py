"""Make the native calls of claimed operations, with the baton (design section 5).

An operation that `hal._engine.backlog` has claimed is put on the native stream here, outside of
the timeline lock, and then published; or put back, if the stream has no room for all of it or
there is no memory; or broken off, if a native call raises. `put_right` completes an issue that
was interrupted, from what its step says.
"""

from __future__ import annotations

from typing import Final

from hal._base.failures import as_failure
from hal._engine import timelines
from hal._engine.backlog import claim_next, go_on, look_again, reserve, unreserve
from hal._engine.ending import abandon, finish, lose
from hal._engine.events import Event
from hal._engine.operation import DONE, FAILED, ISSUED, ISSUING, PARTLY, STARVED, Operation, is_over
from hal._engine.payload import CallSequence
from hal._engine.retiring import enter
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.timelines import CHANGE, DROP, GARBAGE
from hal.errors import CancelledError, DeviceLostError

_FEEDS: Final = frozenset({"alloca", "dealloca", "execute"})
"""Kinds that take or give memory back at their issue: the next starved one may find some, too."""


def pump(queue: StreamQueue, step: CallStep, budget: int) -> int:
    """Issue ready operations, at most `budget`; return their number."""
    with timelines.lock:
        if queue._issuing is not None:
            return 0  # the holder of the baton looks at the backlog before it releases it
        operation = claim_next(queue, step)
    return 0 if operation is None else issue_from(operation, step, budget)


def issue_from(first: Operation, step: CallStep, budget: int) -> int:
    """Issue a claimed operation and those ready behind it; releases the baton."""
    operation: Operation | None = first
    count = 0
    while operation is not None:
        count += 1
        operation = _issue(operation, step, count < budget)
    step.queue = None
    return count


def _issue(operation: Operation, step: CallStep, more: bool) -> Operation | None:  # noqa: FBT001, PLR0912 - internal, and positional for speed
    """Make the native calls of a claimed operation and publish its signals.

    Holds the baton. Returns the next operation, claimed, if there is one
    and `more` are wanted; else releases the baton.
    """
    queue = operation._queue
    stream = queue._stream
    waits, function = operation._stream_waits, operation._function
    shared = operation._shared
    event = None
    left = 0
    is_starved = False
    # Before the first call: one that was interrupted may have reached the stream, and is not made
    # again (`put_right`).
    operation._is_begun = True
    try:
        if shared is None:  # else no native call follows
            queue._native.bind()
        if waits:
            for point in waits:
                # Seen only once the driver has taken the wait: it may refuse it.
                _let_wait(queue, point)
                queue._seen[point._queue._id] = point._sequence
            step.contexts = ()
        if function is None:
            # Memory is taken or given back in the queue's order, and nothing is launched.
            for placement in operation._arguments:
                placement.issue(operation, 0)
                is_starved = placement.is_starved
        elif isinstance(function, CallSequence):
            waiting = len(waits) if waits else 0
            room = queue._limit - (queue._launched - queue._retired) - waiting
            # One at least, if the waits take all the room: the stream may be empty, and then
            # nothing would retire that makes more.
            made = function.issue(operation, max(room, 1))
            operation._launches = made + waiting
            left = function.left
            is_starved = function.is_starved
        else:
            function(stream, *operation._arguments)
        if shared is None and not is_starved:
            event = queue._context.events.take()
            queue._record(event.handle, stream)
    except Exception as error:  # noqa: BLE001 - raised again in there if it is the user's
        # An interrupt passes: a second one could break this off, too. `put_right` goes on (O3).
        failure = as_failure(error, "the operation was issued")
        return _break_off(operation, event, failure, step, more)
    event = event or shared
    with timelines.lock:
        if waits:
            _release_waits(operation)
        if is_starved or event is None:
            _put_back(operation, STARVED, step)
            return None
        if left:
            _enter_part(operation, event, step)
            _put_back(operation, PARTLY, step)
            return None
        enter(operation, event)
        if queue._context.starved and operation._kind in _FEEDS:
            queue._context.feed_some(step.work)
        return _publish(operation, step, more)


def _publish(operation: Operation, step: CallStep, more: bool) -> Operation | None:  # noqa: FBT001 - internal
    """Publish the signals of an operation in the ring, unless it broke off, and look for more.

    Under the lock.
    """
    queue = operation._queue
    context = queue._context
    operation._shared = None  # it is the ring's now
    if operation._state == ISSUING:
        operation._state = ISSUED
    if context.lost is not None:
        abandon(queue, context.lost, step.work)
    elif operation._state == ISSUED:
        # Only now that its event is recorded: until then CUDA and HIP take it for complete (I1).
        for timepoint in operation._signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            semaphore._publish(value, operation, step.work)
    if context.starved:
        operation._want(step.work)  # its end may give memory back, also if it broke off
    return look_again(queue, step, more)


def _enter_part(operation: Operation, event: Event, step: CallStep) -> None:
    """Enter a part into the ring, as an operation without handle and signals; under the lock."""
    # The operation itself goes back into line. It stands in the ring once, with its last part,
    # since an entry has one event and one number of launches.
    queue = operation._queue
    part = Operation(queue, operation._kind, (None, (), operation._resources), (), False)  # noqa: FBT003
    part._state = ISSUED
    part._launches = operation._launches
    part._dependencies = operation._dependencies
    enter(part, event)
    if queue._context.starved:
        part._want(step.work)


def _put_back(operation: Operation, state: int, step: CallStep) -> None:
    """Put an operation that is not issued, or in part, back into line; under the lock (Q1, M3).

    Its signals stay reserved. The baton is released until enough of the work in flight has
    retired, or memory was given back, so that no thread blocks.
    """
    queue = operation._queue
    _release_shared(operation)
    operation._stream_waits = None
    operation._is_begun = False
    if not queue._ordered:
        queue._pending[operation] = None
    # In an ordered queue all behind it waits, too; in an unordered one a starved operation leaves
    # the backlog, for those behind it may run first.
    if queue._ordered or state == PARTLY:
        queue._backlog.appendleft(operation)
    if state == STARVED:
        queue._context.starve(operation, step.work)
    operation._state = state  # before `go_on`, which may end it, by its state
    go_on(operation, step.work)
    queue._issuing = None  # last: by the baton `put_right` finds an operation that broke off here


def complete_issue(step: CallStep, operation: Operation, _: None) -> None:
    """Publish an operation that C has put on the stream, and record its event if there is none."""
    queue = operation._queue
    with timelines.lock:
        if queue._issuing is not operation:
            return  # a call that was interrupted has done it
        step.queue = queue
        queue._owner = step
    issue_from(operation, step, 1)


def take_back(step: CallStep, operation: Operation, reserved: tuple[int, ...]) -> None:
    """Undo a claim of C's: nothing of the operation is on the stream, and it is submitted anew.

    `reserved` is what its signals' semaphores had reserved before.
    """
    queue = operation._queue
    with timelines.lock:
        if queue._issuing is not operation:
            return  # a call that was interrupted has done it
        unreserve(operation._signals, reserved)
        _release_waits(operation)
        look_again(queue, step, more=False)


def put_right(queue: StreamQueue, step: CallStep) -> None:
    """Release the baton that a broken step left in the step's hands; no lock held.

    An operation that is on the stream as a whole is published, one that is there in part
    fails, and one that is not there at all is issued.
    """
    with timelines.lock:
        operation = queue._issuing
        if queue._owner is not step or operation is None:
            return  # the step broke off behind its release, and another may have it by now
        if operation in queue._ring:
            # `enter` appends before it counts.
            queue._sequence, queue._launched = operation._sequence, operation._launched
            _publish(operation, step, more=False)
            return
        if operation._state in {PARTLY, STARVED} or is_over(operation):
            # It was put back, or has ended: only the baton is left.
            go_on(operation, step.work)
            look_again(queue, step, more=False)
            return
        failure: BaseException = CancelledError(f"{operation._describe()} was interrupted")
        if operation._state >= DONE:
            failure = operation._error  # it was being broken off, and no event follows it
        else:
            # `claim` takes the baton before it reserves, and may have broken off in between.
            operation._state = ISSUING
            reserve(operation._signals)
    if operation._is_begun:
        _break_off(operation, None, failure, step, more=False)
    else:
        _issue(operation, step, more=False)


def _break_off(
    operation: Operation,
    event: Event | None,
    failure: BaseException,
    step: CallStep,
    more: bool,  # noqa: FBT001 - internal
) -> Operation | None:
    """Fail an operation whose issue broke off part-way; keep its resources until idle.

    The signals fail now. The part on the stream still runs: `event`, or
    another one, is recorded behind it, or the stream drained (Q5).
    """
    queue = operation._queue
    lost: DeviceLostError | None = None
    if isinstance(failure, DeviceLostError):
        event, lost = None, failure  # no event of a lost context is reused
    else:
        event, lost = _mark_end(queue, event)
    work = step.work
    with timelines.lock:
        _release_waits(operation)
        _release_shared(operation)
        # It may break off before its waits reached the stream, so that its
        # event says nothing about its dependencies. It has failed anyway.
        work.append((DROP, operation._dependencies))
        operation._dependencies = None
        if lost is not None:
            # First: a thread that sees the failure must see the loss. The rest fails after it.
            queue._context.lost = queue._context.lost or lost
            work.append((CHANGE, (lose, queue._context, lost)))
        finish(operation, FAILED, failure, work)
        if event is not None:
            enter(operation, event)
            return _publish(operation, step, more)
        operation._retired = True
        work.append((GARBAGE, [operation]))
        return look_again(queue, step, more and lost is None)


def _mark_end(
    queue: StreamQueue, event: Event | None
) -> tuple[Event | None, DeviceLostError | None]:
    """Record an event behind everything on the stream, or wait until the stream is idle.

    Records `event`, if given, or a new one. Returns it if it is recorded, else gives it back; and
    the error that loses the device if neither can be done.
    """
    native, stream = queue._native, queue._stream
    # To drain the stream blocks this thread until its work has ended (Q1), so an event comes first.
    try:
        native.bind()
        if event is None:
            event = queue._context.events.take()
        queue._record(event.handle, stream)
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


def _let_wait(queue: StreamQueue, point: Operation) -> None:
    """Make a queue's stream wait for an operation of another queue; the device is bound."""
    events = point._queue._context.events
    # Events in memory are for the device's own streams: `MemoryEvents.let_wait` says why.
    if events is queue._context.events and queue._borrowed is None:
        events.own.wait_event(queue._stream, point._event.recorded(queue._native))
    else:
        events.let_wait(queue._native, queue._stream, point)


def _release_waits(operation: Operation) -> None:
    """Drop the counts of the events that an operation's stream waits for; under the lock."""
    waits = operation._stream_waits
    while waits:  # removed first, so that no count is dropped twice around a Ctrl-C
        point = waits.pop()  # it stays among the dependencies
        point._event.release()


def _release_shared(operation: Operation) -> None:
    """Drop the count of the event that an operation shares; under the lock."""
    shared, operation._shared = operation._shared, None
    if shared is not None:
        shared.release()
