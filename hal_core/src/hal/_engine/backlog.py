"""Submit operations, have them stand in line, and claim them for issue (design section 5).

A queue has one native stream, a ring of issued operations, and a backlog of
those that are not issued yet. What guards what:

- The timeline lock guards ring, backlog and every operation's state. No native
  call is made under it (I5).
- The *baton*, ``_issuing``, is the queue lock of the design: the step that
  set it, to the operation that it issues, owns the native stream, its sequence
  and its table of waits (``_owner``). It is taken under the timeline lock and never
  waited for: a thread that finds it taken leaves the operation in the backlog, and its
  holder looks there again before it lets go, under the same lock. So no
  submission ever blocks on another (Q1) and no thread holds two queues.

`hal._engine.issuing` puts claimed operations on the native stream. `_put_right` completes a
call that breaks off part-way from what its step says.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from hal._engine import progress, timelines
from hal._engine.host_calls import HostOperations
from hal._engine.issuing import break_off, issue, issue_from, publish
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
    is_over,
)
from hal._engine.plan import Plan
from hal._engine.steps import Step
from hal._engine.submission import Submission
from hal._engine.timelines import DROP, GARBAGE, HOST, ISSUE, Timeline, Timepoint, Work
from hal.errors import (
    CancelledError,
    HalError,
    InvalidArgumentError,
    ReentrantCallError,
)

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext

__all__ = ["StreamQueue"]

CheckedWaits: TypeAlias = "tuple[Timepoint | Submission, ...]"
"""Checked waits. An issued submission can be waited for without a semaphore."""

_ids = itertools.count()

_HARVEST_MASK: Final = 63
"""Submissions harvest whenever their sequence has these bits clear: now and then."""


class StreamQueue(HostOperations):
    """The order of operations on one native stream; the engine under `hal.Queue`."""

    __slots__ = (
        "__weakref__",
        "_borrowed",
        "_closed",
        "_closer",
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
        context: DeviceContext,
        name: str,
        *,
        ordered: bool,
        borrowed: tuple[int, object] | None = None,
    ) -> None:
        super().__init__(context)
        # The vendor's handle of a borrowed stream, and what keeps it alive
        self._borrowed = borrowed
        # Whether others have the stream's handle, and may put work of theirs between ours
        self._shown = borrowed is not None
        self._domain = context.native.domain
        self._name = name
        self._ordered = ordered
        self._id = next(_ids)  # never reused, unlike id()
        self._limit = context.max_in_flight
        self._closed = False
        self._closer: Step | None = None  # the step of the call that closes it
        self._owner: Step | None = None  # the step that took the baton last
        self._gone = False  # the native stream is destroyed, or was left behind
        # If ordered, the backlog holds all that are not issued, in order; if
        # unordered, those that are ready, and this all that are not issued.
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
        """The queue's name, with its device's in front."""
        return self._name

    @property
    def ordered(self) -> bool:
        """Whether the queue is first-in first-out (Q2)."""
        return self._ordered

    # Submission

    def _submit(
        self,
        kind: str,
        payload: tuple[Any, ...],
        waits: CheckedWaits,
        signals: tuple[Timepoint, ...],
        is_host: bool = False,  # noqa: FBT001, FBT002 - internal, and positional for speed
        make: type[Submission] | None = None,
    ) -> Submission:
        """Submit a checked operation; never waits for the device or the host (Q1)."""
        if is_host:
            progress.start_for(kind)
        operation: Submission
        if make is None:  # by its name: a plain call where this is compiled
            operation = Submission(self, kind, payload, signals, is_host)
        else:
            operation = make(self, kind, payload, signals, is_host)
        try:
            progress.act(_start, operation, waits)
        except ReentrantCallError:  # called by a signal handler or a finaliser (O3)
            progress.put_off(_start_late, operation, waits)
        except HalError:
            operation._let_go()  # refused: nothing has changed
            raise
        return operation

    def _stand_in_line(self, operation: Operation, waits: CheckedWaits, work: Work) -> None:
        """Register for the waits and join the backlog; under the lock."""
        operation._waits = tuple(
            [each if isinstance(each, Timepoint) else each._make_timepoint() for each in waits]
        )
        for index, timepoint in enumerate(operation._waits):
            semaphore, value = timepoint._semaphore, timepoint._value
            if semaphore._failure is not None:
                self._drop_unissued(operation, FAILED, semaphore._failure, work)
                return
            operation._unresolved |= 1 << index
            if self._resolve(operation, index, semaphore, value, work):
                operation._unresolved &= ~(1 << index)
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
        """Return True if a wait no longer prevents the issue, else register it; under the lock."""
        if timeline._value >= value:
            return True
        if operation._is_host:
            # A host operation cannot wait on a stream: only "reached" will do (M1).
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
            if operation._state == DEFERRED:
                self._resume(operation, index, work)
            return
        timepoint = operation._waits[index]
        timeline, value = timepoint._semaphore, timepoint._value
        if timeline._failure is not None:
            self._drop_unissued(operation, FAILED, timeline._failure, work)
        elif self._resolve(operation, index, timeline, value, work):
            if operation._unresolved == bit:
                # This order lets an interrupted call be repeated. An
                # operation may stand in the backlog twice; it is issued once.
                if not self._ordered:
                    self._backlog.append(operation)
                if self._issuing is None and self._backlog and self._backlog[0] is operation:
                    work.append((ISSUE, self))
            operation._unresolved &= ~bit

    # Issue

    def _pump(self, step: Step, budget: int) -> int:
        """Issue ready operations, at most `budget`; return their number."""
        with timelines.lock:
            if self._issuing is not None:
                return 0  # the baton's holder looks again before it lets go
            operation = self._next(step)
        return 0 if operation is None else issue_from(self, operation, step, budget)

    def _next(self, step: Step) -> Operation | None:
        """Claim the next operation that may be issued; under the lock."""
        backlog, ring = self._backlog, self._ring
        self._clear_head()
        while backlog:
            operation = backlog[0]
            if operation._state == STARVED:
                if self._ordered:
                    return None
                backlog.popleft()
                continue
            if operation._state not in {PENDING, PARTLY}:  # failed, cancelled, claimed before
                backlog.popleft()
                continue
            if operation._unresolved:
                return None
            if self._ordered and (self._hosts or (operation._is_host and ring)):
                # A host operation begins when all before it has ended, and all
                # after it begins when it has ended: first-in first-out, without a stream.
                if ring:
                    self._want(ring[-1], step.work)
                return None
            if not operation._is_host and not self._has_room(operation):
                self._want(ring[len(ring) // 2], step.work)
                return None
            if operation._state == PARTLY:
                self._take_baton(operation, step)
            elif not self._claim(operation, operation._waits, step):
                continue  # it failed
            backlog.popleft()
            self._pending.pop(operation, None)
            if not operation._is_host:
                return operation
        return None

    def _has_room(self, operation: Operation) -> bool:
        """Return whether the stream takes an operation's launches without blocking (Q1)."""
        in_flight = self._launched - self._retired
        if isinstance(operation._function, Plan):
            # Half of the limit at once, since each part takes an event.
            need = min(operation._function.left, max(self._limit // 2, 1))
            return in_flight + need <= self._limit or not self._ring
        return in_flight < self._limit

    def _claim(self, operation: Operation, waits: CheckedWaits, step: Step) -> bool:  # noqa: PLR0912 - all or nothing
        """Turn the waits into stream waits, take the baton, reserve the signals; under the lock.

        Returns False, with the operation still pending if a wait is not
        resolved, or ended if it cannot be issued any more (S1, S5). A host
        operation takes no baton, and is sent off.
        """
        stream_waits: list[Operation] | None = None
        dependencies: list[Operation] | None = None
        point: Operation | None
        for wait in waits:
            if isinstance(wait, Timepoint):
                timeline, value = wait._semaphore, wait._value
                if timeline._failure is not None:
                    self._drop_unissued(operation, FAILED, timeline._failure, step.work)
                    return False
                if timeline._value >= value:
                    continue
                point = None if operation._is_host else self._point(timeline, value)
            elif wait._state == DONE:
                continue
            else:  # failures are handled in line
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
                self._drop_unissued(operation, FAILED, error, step.work)
                return False
        if stream_waits:
            operation._launches = 1 + len(stream_waits)  # a stream's waits take room, too
            for point in stream_waits:
                point._event.count += 1
        elif operation._function is None and self._ring and not self._shown:
            # It ends when the operation before it does: no event of its own is recorded.
            shared = self._ring[-1]._event
            shared.count += 1
            operation._shared = shared
        operation._stream_waits = stream_waits
        operation._dependencies = dependencies
        if operation._is_host:
            step.work.append((HOST, operation))
            self._hosts[operation] = None
            operation._state = SENT
        else:
            self._take_baton(operation, step)
        if signals:
            _reserve(signals)
        return True

    def _take_baton(self, operation: Operation, step: Step) -> None:
        """Have the step issue an operation; under the lock.

        The order matters: the step knows of the queue before the baton is its own.
        """
        step.queue = self
        self._owner = step
        self._issuing = operation
        operation._state = ISSUING

    def _go_on(self, operation: Operation, work: Work) -> None:
        """Have the backlog looked at again, or cancel an operation that went back late.

        Under the lock. Closing the queue cancelled the backlog of that time.
        """
        work.append((ISSUE, self))
        if self._closed:
            self._drop_unissued(operation, CANCELLED, _closed_before(operation), work)

    def _look_again(self, step: Step, more: bool) -> Operation | None:  # noqa: FBT001 - internal
        """Claim the next operation, or release the baton; under the lock."""
        if self._backlog:
            if more:
                operation = self._next(step)
                if operation is not None:
                    return operation
            else:
                step.work.append((ISSUE, self))
        self._issuing = None
        return None

    def _put_right(self, step: Step) -> None:
        """Release the baton that a broken step left in the step's hands; no lock held.

        An operation that is on the stream as a whole is published, one that is there in part
        fails, and one that is not there at all is issued.
        """
        with timelines.lock:
            operation = self._issuing
            if self._owner is not step or operation is None:
                return
            if operation in self._ring:
                self._sequence, self._launched = operation._sequence, operation._launched
                publish(self, operation, step, more=False)
                return
            if operation._state in {PARTLY, STARVED} or is_over(operation):
                self._go_on(operation, step.work)
                self._look_again(step, more=False)
                return
            failure: BaseException = CancelledError(f"{operation._describe()} was interrupted")
            if operation._state >= DONE:
                failure = operation._error  # it was being broken off, and no event follows it
            else:
                operation._state = ISSUING
                _reserve(operation._signals)
        if operation._is_begun:
            break_off(self, operation, None, failure, step, more=False)
        else:
            issue(self, operation, step, more=False)

    @staticmethod
    def _disown(operation: Operation) -> None:
        """End an operation that was refused, or broke off before any queue had it; no lock held.

        Its signals and the allocation that it was to end stay as they are. Memory that noted it
        does not wait for it any more.
        """
        with timelines.lock:
            is_known = operation._state != PENDING
            if not is_known:
                operation._state = CANCELLED
        if not is_known:
            operation._resources = None
            operation._let_go()

    def _take_back(self, operation: Operation, step: Step) -> None:
        """Cancel an operation whose submission broke off before it stood in line; no lock held."""
        with timelines.lock:
            if operation._state == PENDING:
                error = CancelledError("the submission was interrupted")
                self._drop_unissued(operation, CANCELLED, error, step.work)

    # Failure

    def _drop_unissued(
        self, operation: Operation, state: int, error: BaseException, work: Work
    ) -> None:
        """End an operation that was not issued, or not all of it; under the lock.

        Sets its state last: until then an interrupted call is repeated.
        """
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))
        work.append((GARBAGE, [operation]))
        if operation._state == PARTLY:
            # Parts of it may be on the stream: it is over when the work there has retired.
            operation._is_begun = True
            operation._launched = self._launched
            operation._retired = not self._ring
        elif operation._state == STARVED:
            self._context.forget(operation)
        self._pending.pop(operation, None)
        self._finish(operation, state, error, work)

    def _in_use(self) -> list[object]:
        """Return the resources of the issued operations; under the lock."""
        operations = list(self._ring)
        if self._issuing is not None:
            operations.append(self._issuing)
        return [operation._resources for operation in operations]

    def _abandon(self, error: BaseException, work: Work) -> None:
        """Fail every operation that has not retired: the device is lost; under the lock."""
        garbage = list(self._ring)
        work.append((GARBAGE, garbage))
        for operation in garbage:
            self._finish(operation, FAILED, error, work)
            operation._retired = True
        self._ring.clear()
        self._abandon_hosts(error, work)
        for operation in self._unissued():
            self._drop_unissued(operation, FAILED, error, work)
        work.append((DROP, list(self._backlog)))
        self._backlog.clear()

    def _cancel(self, work: Work) -> None:
        """Cancel every operation that was not issued: the queue is closed; under the lock."""
        for operation in self._unissued():
            self._drop_unissued(operation, CANCELLED, _closed_before(operation), work)
        work.append((DROP, list(self._backlog)))
        self._backlog.clear()

    def _unissued(self) -> list[Submission]:
        """Return every operation that is not issued, in order; under the lock."""
        source = self._backlog if self._ordered else self._pending
        found = [each for each in source if each._state in {PENDING, PARTLY, STARVED}]
        return cast("list[Submission]", found)

    def _running(self) -> list[Operation]:
        """Return the operations that are issued, or being issued, and unretired; under the lock."""
        found = [*self._ring, *self._hosts]
        if self._issuing is not None:
            found.append(self._issuing)
        return found

    def _unended(self) -> list[Submission]:
        """Return operations such that all have ended once these have; under the lock."""
        operations: list[Operation] = [*self._unissued(), *self._hosts]
        for operation in reversed(self._ring):
            if operation._state == ISSUED and isinstance(operation, Submission):
                operations.append(operation)
                break  # what has failed ends no later than those before it
        if self._issuing is not None:
            operations.append(self._issuing)
        return cast("list[Submission]", operations)


def _start(step: Step, operation: Submission, waits: CheckedWaits) -> None:
    """Refuse an operation, or issue it or have it stand in line."""
    queue = operation._queue
    provider = queue._context.provider
    if provider is not None:
        step.noted = operation
        provider.note(operation, operation._resources)
        if operation._is_host and operation._kind != "call":  # those arguments are the user's
            provider.note(operation, operation._arguments)
    with timelines.lock:
        if queue._closed:
            queue._context.refuse(queue._name)
        signals = operation._signals
        if signals:
            _check_above(signals)
        step.operation = operation
        step.noted = None
        if queue._context.lost is not None:
            queue._drop_unissued(operation, FAILED, queue._context.lost, step.work)
        elif (
            not queue._backlog
            and queue._issuing is None
            and operation._state == PENDING  # else it was put off, and this is a repeat
            and not operation._is_host
            and not (queue._ordered and queue._hosts)
            and queue._has_room(operation)
            and queue._claim(operation, waits, step)
        ):
            pass  # fast path: nothing stands before it, so it is issued at once
        elif operation._state == PENDING:
            queue._stand_in_line(operation, waits, step.work)
        step.operation = None
    if step.queue is not None:
        issue_from(queue, operation, step, progress.BUDGET)
        if not queue._sequence & _HARVEST_MASK:
            queue._context.harvest_some(queue, step)


def _start_late(step: Step, operation: Submission, waits: CheckedWaits) -> None:
    """Submit an operation that was put off; its handle reports a refusal."""
    try:
        if operation._state == PENDING:
            _start(step, operation, waits)
    except HalError as error:
        with timelines.lock:
            if operation._state == PENDING:
                operation._queue._drop_unissued(operation, FAILED, error, step.work)


def _closed_before(operation: Operation) -> CancelledError:
    return CancelledError(
        f"{operation._describe()} was cancelled: the queue was closed before it was issued"
    )


def _reserve(signals: tuple[Timepoint, ...]) -> None:
    """Reserve the values of a claimed operation (S1); under the lock."""
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        if semaphore._failure is None and semaphore._reserved < value:
            semaphore._reserved = value


def _check_above(signals: tuple[Timepoint, ...]) -> None:
    """Raise unless every signal is above all that its semaphore has promised; under the lock."""
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        if value <= semaphore._reserved and semaphore._failure is None:
            raise InvalidArgumentError(semaphore._not_above(value))
