"""Issue operations on a native stream (design section 5).

A queue has one native stream, a ring of issued operations, and a backlog of
those that are not issued yet. What guards what:

- The timeline lock guards ring, backlog and every operation's state. No native
  call is made under it (I5).
- The *baton*, ``_issuing``, is the queue lock of the design: the thread that
  set it, to the operation that it issues, owns the native stream, its sequence
  and its table of waits. It is taken under the timeline lock and never waited
  for: whoever finds it taken leaves the operation in the backlog, and its
  holder looks there again before it lets go, under the same lock. So no
  submission ever blocks on another (Q1) and no thread holds two queues.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from hal import _progress, _timeline
from hal._failure import keep
from hal._host_operations import DEFERRED, SENT, HostOperations
from hal._operation import (
    CANCELLED,
    DONE,
    FAILED,
    ISSUED,
    ISSUING,
    PENDING,
    Operation,
)
from hal._submission import Submission
from hal._timeline import GARBAGE, HOST, ISSUE, Timeline, Timepoint, Work
from hal.errors import (
    CancelledError,
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    OperationError,
)

if TYPE_CHECKING:
    from hal._context import Context
    from hal._events import Event

__all__ = ["StreamQueue"]

Waits: TypeAlias = "tuple[Timepoint | Submission, ...]"
"""Checked waits. A submission that is issued needs no semaphore to be waited for."""

_ids = itertools.count()

_HARVEST_MASK: Final = 63
"""Submissions harvest whenever their sequence has these bits clear: now and then."""


class StreamQueue(HostOperations):
    """Order operations on one native stream; the engine under `hal.Queue`."""

    __slots__ = (
        "__weakref__",
        "_borrowed",
        "_closed",
        "_closing",
        "_domain",
        "_gone",
        "_id",
        "_limit",
        "_name",
        "_ordered",
        "_owner",
        "_pending",
        "_seen",
        "_shown",
        "_stream",
    )

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        ordered: bool,
        borrowed: tuple[int, object] | None = None,
    ) -> None:
        super().__init__(context)
        # The vendor's handle of a stream that is not ours, and what keeps it alive
        self._borrowed = borrowed
        # Whether others have the stream's handle, and may put work of theirs between ours
        self._shown = borrowed is not None
        self._domain = context.native.domain
        self._name = name
        self._ordered = ordered
        self._id = next(_ids)  # never used again, unlike id()
        self._limit = context.max_in_flight
        self._closed = False
        self._closing = False  # a thread is closing it
        self._owner: Work | None = None  # the work list of the call that took the baton last
        self._gone = False  # the native stream is destroyed, or was left behind
        # The backlog holds, if ordered: all that are not issued, in order; if
        # unordered: those that are ready, and this all that are not issued.
        self._pending: dict[Operation, None] = {}
        # Queue id -> highest sequence of that queue that this stream has waited for
        self._seen: dict[int, int] = {}
        self._native.bind()
        self._stream = (
            self._native.create_stream()
            if borrowed is None
            else self._native.adopt_stream(borrowed[0])
        )

    @property
    def name(self) -> str:
        """Return the queue's name, with its device's in front."""
        return self._name

    @property
    def ordered(self) -> bool:
        """Return whether the queue is first-in first-out (Q2)."""
        return self._ordered

    # Submission

    def _submit(  # noqa: PLR0912 - calls are what it costs
        self,
        kind: str,
        payload: tuple[Any, ...],
        waits: Waits,
        signals: tuple[Timepoint, ...],
        is_host: bool = False,  # noqa: FBT001, FBT002 - internal, and positional for speed
        make: type[Submission] | None = None,
    ) -> Submission:
        """Submit a checked operation; never waits for the device or the host (Q1)."""
        if is_host:
            _progress.start_for(kind)
        operation: Submission
        if make is None:  # by its name: that is a plain call where this is compiled
            operation = Submission(self, kind, payload, signals, is_host)
        else:
            operation = make(self, kind, payload, signals, is_host)
        work: Work = []
        try:
            if _progress.broken:
                _progress.mend()
            with _timeline.lock:
                if self._closed:
                    self._context.refuse(self._name)
                if signals:
                    _check_above(signals)
                if self._context.lost is not None:
                    self._end(operation, FAILED, self._context.lost, work)
                elif (
                    not self._backlog
                    and self._issuing is None
                    and not is_host
                    and not (self._ordered and self._hosts)
                    and len(self._ring) < self._limit
                    and self._claim(operation, waits, work)
                ):
                    pass  # the short way: nothing stands before it, so it is issued at once
                elif operation._state == PENDING:
                    self._stand_in_line(operation, waits, work)
            if operation._state == ISSUING and self._owner is work:
                self._issue_from(operation, work, _progress.BUDGET)
                if not self._sequence & _HARVEST_MASK:
                    self._context.harvest_some(self)
            if work:
                _progress.drain(work)
        except HalError:
            raise  # refused: nothing has changed
        except BaseException:
            try:
                self._recover(operation, work)
            except RecursionError:
                # No call of ours has room on this stack: who comes next has it put right.
                _progress.broken.append((self, operation, work))
            raise
        return operation

    def _stand_in_line(self, operation: Operation, waits: Waits, work: Work) -> None:
        """Register for the waits and join the backlog; under the lock."""
        operation._waits = tuple(
            [each if isinstance(each, Timepoint) else each._make_timepoint() for each in waits]
        )
        for index, timepoint in enumerate(operation._waits):
            semaphore, value = timepoint._semaphore, timepoint._value
            if semaphore._failure is not None:
                self._end(operation, FAILED, semaphore._failure, work)
                return
            if not self._resolve(operation, index, semaphore, value, work):
                operation._unresolved |= 1 << index
        if self._ordered:
            self._backlog.append(operation)
        else:
            self._pending[operation] = None
            if not operation._unresolved:
                self._backlog.append(operation)
        if not operation._unresolved and self._issuing is None:
            work.append((ISSUE, self))

    def _resolve(
        self, operation: Operation, index: int, timeline: Timeline, value: int, work: Work
    ) -> bool:
        """Return True if a wait stops the issue no longer, else register it; under the lock."""
        if timeline._value >= value:
            return True
        if operation._is_host:
            # Nothing of the host's can wait on a stream: only "reached" will do (M1).
            timeline._until_reached(value, work).hold_back(value, operation, index)
            return False
        if self._point(timeline, value) is not None:
            return True
        if timeline._covering(value) is not None:
            # Recorded, but by a driver whose events this stream cannot wait for.
            timeline._until_reached(value, work).hold_back(value, operation, index)
        else:
            timeline._until_recorded().hold_back(value, operation, index)
        return False

    def _point(self, timeline: Timeline, value: int) -> Operation | None:
        """Return the smallest recorded point that this stream can wait for; under the lock."""
        points = timeline._points
        for position in range(timeline._position(value), len(points)):
            operation = points[position][1]
            if operation._queue._domain is self._domain:
                return operation
        return None

    def _point_of(self, submission: Submission) -> Operation | None:
        """Return a submission if it is issued and this stream can wait for it; under the lock."""
        if submission._state != ISSUED or submission._is_host:
            return None
        return submission if submission._queue._domain is self._domain else None

    def _release(self, operation: Operation, index: int, work: Work) -> None:
        """Resolve a released wait again, against the new state; under the lock."""
        bit = 1 << index
        if operation._state != PENDING or not operation._unresolved & bit:
            if self._hosts.get(operation) == DEFERRED:
                self._resume(operation, index, work)
            return
        timepoint = operation._waits[index]
        timeline, value = timepoint._semaphore, timepoint._value
        if timeline._failure is not None:
            self._end(operation, FAILED, timeline._failure, work)
        elif self._resolve(operation, index, timeline, value, work):
            if operation._unresolved == bit:
                # In this order: what a Ctrl-C cuts short can be done again. An
                # operation may stand in the backlog twice; it is issued once.
                if not self._ordered:
                    self._backlog.append(operation)
                if self._issuing is None and self._backlog and self._backlog[0] is operation:
                    work.append((ISSUE, self))
            operation._unresolved &= ~bit

    # Issue

    def _pump(self, work: Work, budget: int) -> int:
        """Issue what is ready, `budget` operations at most; return how many those were."""
        try:
            with _timeline.lock:
                if self._issuing is not None:
                    return 0  # the baton's holder looks again before it lets go
                operation = self._next(work)
            return 0 if operation is None else self._issue_from(operation, work, budget)
        except BaseException:
            self._recover(None, work)
            raise

    def _issue_from(self, first: Operation, work: Work, budget: int) -> int:
        """Issue a claimed operation and what is ready behind it; lets the baton go."""
        operation: Operation | None = first
        count = 0
        while operation is not None:
            count += 1
            operation = self._issue(operation, work, count < budget)
        return count

    def _next(self, work: Work) -> Operation | None:
        """Claim the next operation that may be issued; under the lock."""
        backlog, ring = self._backlog, self._ring
        self._clear_head()
        while backlog:
            operation = backlog[0]
            if operation._state != PENDING:  # failed or cancelled where it stood
                backlog.popleft()
                continue
            if operation._unresolved:
                return None
            if self._ordered and (self._hosts or (operation._is_host and ring)):
                # A host operation begins when all before it has ended, and all
                # after it begins when it has: first-in first-out, without a stream.
                if ring:
                    self._want(ring[-1], work)
                return None
            if not operation._is_host and len(ring) >= self._limit:
                self._want(ring[len(ring) // 2], work)
                return None
            if not self._claim(operation, operation._waits, work):
                continue  # it failed
            backlog.popleft()
            self._pending.pop(operation, None)
            if not operation._is_host:
                return operation
            operation._state = ISSUED
            self._hosts[operation] = SENT
            self._issuing = None
            work.append((HOST, operation))
        return None

    def _claim(self, operation: Operation, waits: Waits, work: Work) -> bool:  # noqa: PLR0912 - all or nothing
        """Turn the waits into stream waits, reserve the signals, take the baton; under the lock.

        Returns False, with the operation still pending if a wait is not
        resolved, or ended if it cannot be issued any more (S1, S5).
        """
        stream_waits: list[Operation] | None = None
        dependencies: list[Operation] | None = None
        point: Operation | None
        for wait in waits:
            if isinstance(wait, Timepoint):
                timeline, value = wait._semaphore, wait._value
                if timeline._failure is not None:
                    self._end(operation, FAILED, timeline._failure, work)
                    return False
                if timeline._value >= value:
                    continue
                point = None if operation._is_host else self._point(timeline, value)
            elif wait._state == DONE:
                continue
            else:  # what has failed is looked at in line
                point = None if operation._is_host else self._point_of(wait)
            if point is None:
                return False
            if dependencies is None:
                dependencies = [point]
            else:
                dependencies.append(point)
            queue = point._queue
            if queue is not self and self._seen.get(queue._id, 0) < point._sequence:
                if stream_waits is None:
                    stream_waits = []
                stream_waits.append(point)
        signals = operation._signals
        for timepoint in signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            if value <= semaphore._reserved and semaphore._failure is None:
                error = InvalidArgumentError(semaphore._not_above(value))
                self._end(operation, FAILED, error, work)
                return False
        for timepoint in signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            if semaphore._failure is None:
                semaphore._reserved = value
        if stream_waits:
            for point in stream_waits:
                point._event.count += 1
        elif operation._function is None and self._ring and not self._shown:
            # It ends when what is before it does: no event of its own is recorded.
            shared = self._ring[-1]._event
            shared.count += 1
            operation._shared = shared
        operation._stream_waits = stream_waits
        operation._dependencies = dependencies
        operation._state = ISSUING
        self._issuing = operation
        self._owner = work
        return True

    def _issue(self, operation: Operation, work: Work, more: bool) -> Operation | None:  # noqa: FBT001 - internal, and positional for speed
        """Make the native calls of a claimed operation and publish its signals.

        Holds the baton. Returns the next operation, claimed, if there is one
        and `more` are wanted; else the baton is let go.
        """
        native, stream = self._native, self._stream
        waits, function, arguments = (
            operation._stream_waits,
            operation._function,
            operation._arguments,
        )
        shared, event = operation._shared, None
        try:
            if shared is None:
                native.bind()
            if waits:
                for point in waits:
                    native.wait_event(stream, point._event.handle)
                    self._seen[point._queue._id] = point._sequence
            if function is None:
                for storage in arguments:
                    storage.publish()
            else:
                _enqueue(function, stream, arguments)
            if shared is None:
                event = self._context.events.take()
                native.record_event(event.handle, stream)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C as well; raised again in there
            return self._break_off(operation, event, error, work, more)
        with _timeline.lock:
            self._release_waits(operation)
            self._enter_ring(operation, cast("Event", event or shared))
            operation._shared = None  # it is the ring's now
            operation._state = ISSUED
            if self._context.lost is None:
                for timepoint in operation._signals:
                    semaphore, value = timepoint._semaphore, timepoint._value
                    semaphore._publish(value, operation, work)
            else:
                self._abandon(self._context.lost, work)
            return self._look_again(work, more)

    @staticmethod
    def _release_waits(operation: Operation) -> None:
        """Give back the events that an operation has made the stream wait for; under the lock."""
        waits = operation._stream_waits
        while waits:  # taken out first, so that none is given back twice around a Ctrl-C
            waits.pop()._event.release()

    def _look_again(self, work: Work, more: bool) -> Operation | None:  # noqa: FBT001 - internal
        """Claim the next operation, or let the baton go; under the lock."""
        if self._backlog:
            if more:
                operation = self._next(work)
                if operation is not None:
                    return operation
            else:
                work.append((ISSUE, self))
        self._issuing = None
        return None

    def _break_off(
        self,
        operation: Operation,
        event: Event | None,
        error: BaseException,
        work: Work,
        more: bool,  # noqa: FBT001 - internal
    ) -> Operation | None:
        """Fail an operation whose issue broke off part-way; keep its resources until idle.

        The signals fail now. What the stream got of the work still runs: the
        event is recorded behind it, or the stream drained (Q5).
        """
        native, stream = self._native, self._stream
        lost: BaseException | None = error if isinstance(error, DeviceLostError) else None
        recorded = False
        if lost is None:
            try:
                if event is None:
                    event = self._context.events.take()
                native.record_event(event.handle, stream)
                recorded = True
            except HalError:
                try:
                    native.synchronize_stream(stream)
                except HalError as second:
                    lost = second
        with _timeline.lock:
            self._release_waits(operation)
            shared, operation._shared = operation._shared, None
            if shared is not None:
                shared.release()
            # It may break off before its waits reached the stream, so that its
            # event says nothing of what it depended on. It has failed anyway.
            operation._dependencies = None
            operation._state = ISSUED
            self._fail_issued(operation, _as_failure(error), work)
            if recorded and event is not None:
                self._enter_ring(operation, event)
            else:
                if event is not None:
                    event.release()
                work.append((GARBAGE, self._drop(operation)))
            interrupted = not isinstance(error, Exception)
            following = self._look_again(work, more and not interrupted)
        if lost is not None:
            self._context.lose(lost, work)
        if interrupted:
            raise error
        return following

    def _recover(self, submitted: Operation | None, work: Work) -> None:
        """Put things right after Ctrl-C outside of the native calls.

        A submission that was interrupted before its issue did not happen. The
        baton is let go, and what was caused so far does not end with this call.
        """
        interrupted = CancelledError("the operation was interrupted")
        with _timeline.lock:
            if submitted is not None and submitted._state == PENDING:
                self._end(submitted, CANCELLED, interrupted, work)
            work.extend((HOST, host) for host, stage in self._hosts.items() if stage == SENT)
            operation = self._issuing if self._owner is work else None
            if operation is not None and operation in self._ring:
                operation._state = ISSUED
                self._fail_issued(operation, interrupted, work)
                self._look_again(work, more=False)
                operation = None
        if operation is not None:
            self._break_off(operation, None, interrupted, work, more=False)
        _progress.hand_over(work)

    # Failure

    def _end(self, operation: Operation, state: int, error: BaseException, work: Work) -> None:
        """Fail or cancel an operation that was not issued; under the lock.

        In this order: what a Ctrl-C cuts short can be done again.
        """
        operation._error = keep(error)
        for timepoint in operation._signals:
            semaphore = timepoint._semaphore
            semaphore._fail(error, work)
            semaphore._release_all(work)
        if operation._unresolved:
            for timepoint in operation._waits:
                timeline, value = timepoint._semaphore, timepoint._value
                timeline._forget(value, operation)
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))
        operation._state = state
        work.append((GARBAGE, self._drop(operation)))
        self._pending.pop(operation, None)

    def _in_use(self) -> list[object]:
        """Return what the issued operations keep alive; under the lock."""
        operations = list(self._ring)
        if self._issuing is not None:
            operations.append(self._issuing)
        return [operation._resources for operation in operations]

    def _abandon(self, error: BaseException, work: Work) -> None:
        """Fail every operation that has not retired: the device is lost; under the lock."""
        for operation in self._ring:
            self._fail_issued(operation, error, work)
            work.append((GARBAGE, self._drop(operation)))
        self._ring.clear()
        self._abandon_hosts(error, work)
        for operation in self._unissued():
            self._end(operation, FAILED, error, work)
        self._backlog.clear()

    def _cancel(self, state: int, work: Work) -> int:
        """Cancel every operation that was not issued; return how many; under the lock."""
        operations = self._unissued()
        for operation in operations:
            error = CancelledError(
                f"{operation._describe()} was cancelled: the queue was closed before it was issued"
            )
            self._end(operation, state, error, work)
        self._backlog.clear()
        return len(operations)

    def _unissued(self) -> list[Submission]:
        """Return every operation that is not issued, in order; under the lock."""
        source = self._backlog if self._ordered else self._pending
        found = [operation for operation in source if operation._state == PENDING]
        return cast("list[Submission]", found)

    def _unended(self) -> list[Submission]:
        """Return operations such that all have ended once these have; under the lock."""
        operations: list[Operation] = [*self._unissued(), *self._hosts]
        for operation in reversed(self._ring):
            if operation._state == ISSUED:  # what has failed ends no later than those before it
                operations.append(operation)
                break
        if self._issuing is not None:
            operations.append(self._issuing)
        return cast("list[Submission]", operations)


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


def _check_above(signals: tuple[Timepoint, ...]) -> None:
    """Raise unless every signal is above all that its semaphore has promised; under the lock."""
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        if value <= semaphore._reserved and semaphore._failure is None:
            raise InvalidArgumentError(semaphore._not_above(value))


def _as_failure(error: BaseException) -> BaseException:
    """Return what an operation fails with when its issue raised `error`."""
    if isinstance(error, HalError):
        return error
    if isinstance(error, Exception):
        failure: HalError = OperationError(
            f"the backend raised {error!r} while the operation was issued; "
            "a plugin must raise a HalError"
        )
        failure.__cause__ = error
        return failure
    return CancelledError(f"the operation was interrupted by {type(error).__name__}")
