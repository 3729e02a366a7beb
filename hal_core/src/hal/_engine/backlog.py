"""Have operations stand in line, and claim them for issue (design section 5).

An operation whose waits are not all recorded is registered for them, and stands in its queue's
backlog. The thread that issues one takes the *baton*, `StreamQueue._issuing`, under the timeline
lock, and never waits for it: a thread that finds it taken leaves its operation in the backlog, and
the holder looks there again before it releases the baton, under the same lock. A lock for each
queue was rejected: a submission would block while another thread is in a native call (Q1), and a
thread that issues what it has released would hold one such lock and want the next.

All of a claim happens in one hold of the timeline lock: waits turn into waits of the stream,
signals are reserved, and the baton is taken. Were signals reserved at submission, every lower
value would be refused from then on, and an operation in line may wait for just that one.

`hal._engine.issuing` puts claimed operations on the native stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hal._engine.ending import abandon, call_off, end, recall
from hal._engine.events import settle_all
from hal._engine.operation import (
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
from hal._engine.payload import CallSequence
from hal._engine.retiring import clear_head
from hal._engine.timelines import HOST, ISSUE, Timeline, Timepoint, Work, first_failure
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hal._engine.steps import CallStep
    from hal._engine.stream import StreamQueue


CheckedWaits: TypeAlias = tuple[Timepoint | Operation, ...]
"""Checked waits: timepoints, and submissions, which need no semaphore once they are issued."""


def stand_in_line(operation: Operation, waits: CheckedWaits, work: Work) -> None:
    """Register for the waits and join the backlog; under the lock."""
    queue = operation._queue
    # In line a submission is waited for by its timepoint, so that its end, failure and cancellation
    # release those in line as any semaphore does.
    entries = [each if isinstance(each, Timepoint) else each._make_timepoint() for each in waits]
    failure = register(operation, tuple(entries), work)
    if failure is not None:
        end(operation, FAILED, failure, work)
        return
    if queue._ordered:
        queue._backlog.append(operation)
    else:
        queue._pending[operation] = None
        if not operation._unresolved:
            queue._backlog.append(operation)
    # A thread that has the baton looks at the backlog before it releases it (`look_again`).
    if not operation._unresolved and queue._issuing is None:
        work.append((ISSUE, queue))


def register(
    operation: Operation, waits: tuple[Timepoint, ...], work: Work
) -> BaseException | None:
    """Register an operation for its waits; under the lock.

    Returns the failure of a wait that has failed. The caller ends the operation, and with it the
    registrations made by then.
    """
    operation._waits = waits
    for index, timepoint in enumerate(waits):
        semaphore, value = timepoint._semaphore, timepoint._value
        if semaphore._failure is not None:
            return semaphore._failure
        # Before it is registered: by these bits `finish` knows that there is something to remove.
        operation._unresolved |= 1 << index
        if _resolve(operation, index, semaphore, value, work):
            operation._unresolved &= ~(1 << index)
    return None


def _resolve(operation: Operation, index: int, timeline: Timeline, value: int, work: Work) -> bool:
    """Return True if a wait holds the operation back no more, else register it; under the lock."""
    if timeline._value >= value:
        return True
    # A recorded value is enough where the stream can wait for its event. The value must be reached
    # for a host operation, which runs on no stream (M1), and for a point of another driver.
    is_host, points = operation._is_host, timeline._points
    if points and not is_host and _point(operation._queue, timeline, value) is not None:
        return True
    if is_host or (points and timeline._covering(value) is not None):
        timeline._until_told(value, work).hold_back(value, operation, index)
    else:
        timeline._until_recorded().hold_back(value, operation, index)
    return False


def _point(queue: StreamQueue, timeline: Timeline, value: int) -> Operation | None:
    """Return the smallest recorded point that the queue's stream can wait for; under the lock."""
    # The smallest: with a later one the stream would wait for work that the operation does not
    # need, and the operation would fail with it.
    points, position = timeline._points, timeline._position(value)
    while position < len(points):
        operation = points[position][1]
        if operation._queue._domain is queue._domain:
            return operation
        position += 1
    return None


def release(operation: Operation, index: int, work: Work) -> None:
    """Resolve a released wait again, against the new state; under the lock.

    The last one has a pending operation issued, and ends a deferred one.
    """
    # Resolved, not just counted down: what released it may have been another driver's point, which
    # this stream cannot wait for, so the wait is registered anew, for "reached".
    queue = operation._queue
    bit = 1 << index
    if operation._state not in {PENDING, DEFERRED} or not operation._unresolved & bit:
        return
    timepoint = operation._waits[index]
    timeline, value = timepoint._semaphore, timepoint._value
    if timeline._failure is not None:
        end(operation, FAILED, timeline._failure, work)
    elif _resolve(operation, index, timeline, value, work):
        if operation._unresolved == bit:
            if operation._state == DEFERRED:
                error = first_failure(operation._waits)
                end(operation, DONE if error is None else FAILED, error, work)
                return
            # An operation may stand in the backlog twice; it is issued once.
            if not queue._ordered:
                queue._backlog.append(operation)
            # Behind another one it needs no entry of its own: the claim of that one goes on to it.
            if queue._issuing is None and queue._backlog and queue._backlog[0] is operation:
                work.append((ISSUE, queue))
        # Last: until the bit is cleared, an interrupted call is repeated from its beginning.
        operation._unresolved &= ~bit


# Claiming


def claim_next(queue: StreamQueue, step: CallStep) -> Operation | None:
    """Claim the next operation that may be issued; under the lock."""
    backlog, ring = queue._backlog, queue._ring
    # What an interrupted retirement left in the ring wakes nobody any more, and a host operation
    # would wait for it for ever.
    clear_head(queue)
    while backlog:
        operation = backlog[0]
        # All behind it waits, too; in an unordered queue `feed_one` puts it back.
        if operation._state == STARVED:
            if queue._ordered:
                return None
            backlog.popleft()
            continue
        # Failed, cancelled or claimed before. Such entries stay until here: to remove each from the
        # deque would cost the square of its length.
        if operation._state not in {PENDING, PARTLY}:
            backlog.popleft()
            continue
        if operation._unresolved:
            return None
        if queue._ordered and (queue._hosts or (operation._is_host and ring)):
            # A host operation begins when all before it has ended, and all after it begins when it
            # has ended: first-in first-out, although no stream orders it (Q2).
            if ring:
                ring[-1]._want(step.work)
            return None
        if not operation._is_host and not has_room(operation):
            # The middle one: at the first, the progress thread would be woken for each operation,
            # and at the last, the stream would have run dry.
            ring[len(ring) // 2]._want(step.work)
            return None
        if operation._state == PARTLY:
            _take_baton(operation, step)
        elif (error := not_above(operation._signals)) is not None:
            end(operation, FAILED, error, step.work)
            continue
        elif not claim(operation, operation._waits, step):
            continue  # it failed
        backlog.popleft()
        queue._pending.pop(operation, None)
        if not operation._is_host:
            return operation
    return None


def has_room(operation: Operation) -> bool:
    """Return whether the stream takes an operation's launches without blocking (Q1).

    Without its waits, which are not known before it is claimed: they may exceed the limit by one
    for each other queue.
    """
    queue = operation._queue
    in_flight = queue._launched - queue._retired
    function = operation._function
    if isinstance(function, CallSequence) and function.left > 1:
        # Parts of half of the limit: each takes an event, so to issue one call wherever one has
        # retired would record an event for every call.
        need = min(function.left, max(queue._limit // 2, 1))
        return in_flight + need <= queue._limit
    return in_flight < queue._limit


def claim(operation: Operation, waits: CheckedWaits, step: CallStep) -> bool:  # noqa: PLR0912 - all or nothing
    """Turn the waits into stream waits, take the baton, reserve the signals; under the lock.

    Returns False, with the operation still pending if a wait is not resolved, or ended if one
    has failed (S5). A host operation takes no baton, and is sent off.
    """
    queue = operation._queue
    stream_waits: list[Operation] | None = None
    dependencies: list[Operation] | None = None
    point: Operation | None
    for wait in waits:
        if isinstance(wait, Timepoint):
            timeline, value = wait._semaphore, wait._value
            if timeline._failure is not None:
                end(operation, FAILED, timeline._failure, step.work)
                return False
            if timeline._value >= value:
                continue
            point = None if operation._is_host else _point(queue, timeline, value)
        elif wait._state == DONE:
            continue
        elif wait._state != ISSUED or wait._is_host or operation._is_host:
            return False  # failures are handled in line, by the timepoint that is made there
        else:
            point = wait if wait._queue._domain is queue._domain else None
        if point is None:
            return False
        # A dependency also where the stream need not wait any more: it retires first, and hands its
        # failure on (S5, S7).
        if dependencies is None:
            dependencies = [point]
        else:
            dependencies.append(point)
        other = point._queue
        if other is not queue and queue._seen.get(other._id, 0) < point._sequence:
            if stream_waits is None:
                stream_waits = []
            stream_waits.append(point)
    if stream_waits:
        if len(stream_waits) > 1:
            stream_waits = _newest(stream_waits)
        operation._launches = 1 + len(stream_waits)  # a stream's waits take room, too
        for point in stream_waits:
            if point._queue._context is not queue._context:
                # A device that is closed keeps its events until the stream's wait is enqueued.
                step.contexts += point._queue._contexts
            point._event.hold()
    elif operation._function is None and queue._ring and not queue._shown:
        # It ends when the operation before it does, so both share that one's event. To record
        # another costs a native call, which is all that a barrier would cost. `Event.hold` would
        # record one that is due: it need not be, as long as this queue alone has it. On a stream
        # that others know, their work may stand between the two: the barrier ends after it (Q2).
        shared = queue._ring[-1]._event
        shared.count += 1
        operation._shared = shared
    operation._stream_waits = stream_waits
    operation._dependencies = dependencies
    if operation._is_host:
        step.work.append((HOST, operation))
        queue._hosts[operation] = None
        operation._state = SENT
    else:
        _take_baton(operation, step)
    reserve(operation._signals)
    return True


def _newest(points: list[Operation]) -> list[Operation]:
    """Return the newest of some operations on each queue: its stream ends that last."""
    # A wait for each would fill the stream: one of another queue's may have as many in flight as
    # this one may (Q1).
    newest: dict[StreamQueue, Operation] = {}
    for point in points:
        known = newest.setdefault(point._queue, point)
        if known._sequence < point._sequence:
            newest[point._queue] = point
    return list(newest.values())


def _take_baton(operation: Operation, step: CallStep) -> None:
    """Have the step issue an operation; under the lock."""
    # First: a step that broke off with a baton and without the queue would leave it taken for ever.
    queue = step.queue = operation._queue
    # C leaves events due only where recording one cannot block, and this launch may fill the
    # streams.
    settle_all(queue._context.queues)
    queue._owner = step
    queue._issuing = operation
    operation._state = ISSUING


def look_again(queue: StreamQueue, step: CallStep, more: bool) -> Operation | None:  # noqa: FBT001 - internal
    """Claim the next operation, or release the baton; under the lock."""
    if queue._backlog:
        if more:
            operation = claim_next(queue, step)
            if operation is not None:
                return operation
        else:
            step.work.append((ISSUE, queue))
    # In the same hold of the lock as the look: what joins the backlog later finds the baton free.
    queue._issuing = None
    return None


def go_on(operation: Operation, work: Work) -> None:
    """Have the backlog looked at again after an operation went back to it; under the lock.

    Losing the device, or closing the queue, ended what stood in the backlog by then: the
    operation, which was being issued, is ended now.
    """
    queue = operation._queue
    lost = queue._context.lost
    if lost is not None:
        abandon(queue, lost, work)
        return
    work.append((ISSUE, queue))
    if queue._closed:
        call_off(operation, None, work)
    elif operation is queue._recalled:
        recall(operation, None, work)


def reserve(signals: tuple[Timepoint, ...]) -> None:
    """Reserve the values of a claimed operation (S1); under the lock."""
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        if semaphore._failure is None and semaphore._reserved < value:
            semaphore._reserved = value


def unreserve(signals: tuple[Timepoint, ...], before: tuple[int, ...]) -> None:
    """Reserve what was reserved before, unless a higher value is by now; under the lock."""
    for timepoint, value in zip(signals, before, strict=False):
        if timepoint._semaphore._reserved == timepoint._value:
            timepoint._semaphore._reserved = value


def not_above(signals: tuple[Timepoint, ...]) -> InvalidArgumentError | None:
    """Return an error if a signal is not above all that is promised (S1); under the lock."""
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        if value <= semaphore._reserved and semaphore._failure is None:
            return InvalidArgumentError(semaphore._not_above(value))
    return None
