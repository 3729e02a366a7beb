"""Retire what a native stream has completed (design section 5, "Who retires").

A ring holds the issued operations of one stream in its order. Whoever asks an
event and finds it complete retires all up to it: first what those depend on,
on whatever queue, so that retirement is causal (I3). The timeline lock guards
everything here; events are asked outside of it (I5).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hal import _progress, _timeline
from hal._failure import keep
from hal._notifier import Notifier
from hal._operation import DONE, FAILED, ISSUED, Operation
from hal._timeline import ISSUE, WATCH, Work
from hal.errors import DeviceLostError

if TYPE_CHECKING:
    from hal._context import Context
    from hal._events import Event
    from hal._wait import HostWaiter

__all__ = ["Ring"]


class Ring:
    """Hold the operations in flight on one native stream."""

    __slots__ = (
        "_backlog",
        "_context",
        "_dead",
        "_issuing",
        "_leader",
        "_native",
        "_notifier",
        "_ring",
        "_sequence",
        "_wanted",
        "_watched",
    )

    def __init__(self, context: Context) -> None:
        self._context = context
        self._native = context.native
        self._sequence = 0  # of the last operation that entered; from 1 on
        self._ring: deque[Operation] = deque()  # issued and unretired, in stream order
        self._backlog: deque[Operation] = deque()  # see `hal._stream`
        self._issuing: Operation | None = None  # the baton, see `hal._stream`
        self._leader: HostWaiter | None = None  # who polls it for all, see `hal._wait`
        self._wanted: set[int] = set()  # sequences that somebody asleep waits for
        self._watched = False  # by the progress thread
        self._notifier = Notifier(context.native)
        self._dead = False  # its native stream is being destroyed

    def _enter_ring(self, operation: Operation, event: Event) -> None:
        """Append to the ring; under the lock, with the baton."""
        self._sequence += 1
        operation._sequence = self._sequence
        operation._event = event
        self._ring.append(operation)

    def _ask(self, operation: Operation) -> bool:
        """Ask the event of an issued operation and retire through it if it is complete.

        The caller has counted the event under the lock; this gives it back.
        Returns whether the operation has retired.
        """
        answer: bool | DeviceLostError = False
        try:
            answer = self._query(operation)
        finally:
            # Also after Ctrl-C: the count must be given back.
            retired = self._settle(operation, answer)
        return retired

    def _query(self, operation: Operation) -> bool | DeviceLostError:
        """Return whether an operation's event, which the caller holds, is complete."""
        try:
            self._native.bind()
            return self._native.query_event(operation._event.handle)
        except DeviceLostError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises there
            lost = DeviceLostError(f"asking an event raised {error!r}: nothing on it can go on")
            lost.__cause__ = error
            return lost

    def _settle(
        self,
        operation: Operation,
        answer: bool | DeviceLostError,  # noqa: FBT001 - internal
    ) -> bool:
        """Give back the count of an event that was asked, and do what its answer means."""
        work: Work = []
        garbage: list[object] = []
        foreign = None
        try:
            with _timeline.lock:
                operation._event.release()
                # Unretired now means that the event was this operation's all the
                # time; had it been recorded again for others, this one had retired.
                if answer is True and not operation._retired:
                    foreign = self._retire_through(operation, garbage, work)
                retired = operation._retired
        except BaseException:
            # Ctrl-C: a retirement that has begun is brought to its end.
            with _timeline.lock:
                if answer is True and not operation._retired:
                    foreign = self._retire_through(operation, garbage, work)
                    if foreign is not None:
                        foreign._event.release()
            _progress.hand_over(work)
            raise
        garbage.clear()  # outside of the lock: it may be large
        while foreign is not None and foreign._queue._ask(foreign):
            foreign, retired = self._retire_again(operation, work)
        if isinstance(answer, DeviceLostError):
            self._context.lose(answer, work)
            retired = operation._retired
        if work:
            _progress.drain(work)
        return retired

    def _harvest(self) -> None:
        """Retire all that has completed, in stream order; never blocks."""
        low = self._hold(0)
        if low is None or not self._ask(low):
            return
        high = self._hold(-1)
        if high is None or self._ask(high):
            return
        first, last = low._sequence, high._sequence
        while last - first > 1:
            middle = (first + last) // 2
            with _timeline.lock:
                ring = self._ring
                if not ring:
                    return
                offset = middle - ring[0]._sequence
                operation = ring[offset] if 0 <= offset < len(ring) else None
                if operation is not None:
                    operation._event.count += 1
            if operation is None or self._ask(operation):
                first = middle
            else:
                last = middle

    def _hold(self, index: int) -> Operation | None:
        """Return the operation at `index` of the ring, its event counted."""
        with _timeline.lock:
            self._clear_head()
            if not self._ring:
                return None
            operation = self._ring[index]
            operation._event.count += 1
            return operation

    def _clear_head(self) -> None:
        """Finish a retirement that a Ctrl-C cut off before its last step; under the lock."""
        while self._ring and self._ring[0]._retired:
            self._ring.popleft()

    def _retire_again(self, operation: Operation, work: Work) -> tuple[Operation | None, bool]:
        """Go on with a retirement; return what it needs asked next, and whether it is done."""
        garbage: list[object] = []
        with _timeline.lock:
            foreign = None
            if not operation._retired:
                foreign = self._retire_through(operation, garbage, work)
            retired = operation._retired
        garbage.clear()
        return foreign, retired

    def _retire_through(
        self, operation: Operation, garbage: list[object], work: Work
    ) -> Operation | None:
        """Retire an operation, all before it, and what those depend on; under the lock.

        Its event is complete, so the events of all those are, too (I3). What
        one depends on retires first, on whatever queue, and passes its failure
        on. What they kept alive goes to `garbage`, to be dropped outside the lock.

        Returns an operation of another context, its event counted, that must be
        asked first: if that device is lost, its work did not end well, whatever
        this stream says.
        """
        stack = [operation]
        while stack:
            target = stack[-1]
            if target._retired:
                stack.pop()
                continue
            queue = target._queue
            head = queue._ring[0]
            if head._retired:  # up to the last step, which a Ctrl-C cut off
                queue._ring.popleft()
                continue
            dependencies = head._dependencies
            while dependencies:
                other = dependencies[-1]
                if not other._retired:
                    if other._queue._context is not self._context:
                        other._event.count += 1
                        return other
                    stack.append(other)
                    break
                if other._state != DONE and head._state == ISSUED:
                    queue._fail_issued(head, other._error, work)
                dependencies.pop()
            else:
                queue._retire_head(head, garbage, work)
        return None

    def _retire_head(self, head: Operation, garbage: list[object], work: Work) -> None:
        """Publish the end of the oldest operation and take it out of the ring; under the lock.

        In this order: what a Ctrl-C cuts short can be done again.
        """
        if head._state == ISSUED:
            for timepoint in head._signals:
                semaphore, value = timepoint._semaphore, timepoint._value
                semaphore._advance(value, work)
            head._state = DONE
        event = head._event
        garbage.append(self._drop(head))
        self._ring.popleft()
        event.release()
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))

    def _drop(self, operation: Operation) -> object:
        """Let go of everything that an ended operation used; under the lock.

        Returns what it kept alive, to be dropped outside the lock: it may be large.
        """
        resources = operation._resources
        if operation._is_host:
            # The user's function and arguments: dropping them may run the user's code.
            resources = (operation._function, operation._arguments, resources)
        operation._retired = True
        operation._function = operation._resources = None
        operation._arguments = ()
        operation._waits = operation._signals = ()
        operation._dependencies = None
        return resources

    def _fail_issued(self, operation: Operation, error: BaseException, work: Work) -> None:
        """Fail the handle and the signals of an issued operation; under the lock.

        In this order: what a Ctrl-C cuts short can be done again.
        """
        if operation._state != ISSUED:
            return
        operation._error = keep(error)
        for timepoint in operation._signals:
            semaphore = timepoint._semaphore
            semaphore._fail(error, work)
            semaphore._release_all(work)
        operation._state = FAILED

    # The progress thread

    def _want(self, operation: Operation, work: Work) -> None:
        """Have the progress thread retire an operation as soon as it ends; under the lock."""
        if operation._retired or operation._is_host:
            return
        sequence = operation._sequence
        if sequence in self._wanted and self._watched:
            return
        self._wanted.add(sequence)
        if not self._watched or sequence < self._notifier.armed:
            self._watched = True
            work.append((WATCH, self))

    def _serve(self, function: int, argument: int) -> int:
        """Retire, and have the driver post for the next wanted operation.

        Called by the progress thread. Returns one of `Notifier`'s states.
        """
        self._harvest()
        with _timeline.lock:
            ring = self._ring
            first = ring[0]._sequence if ring else self._sequence + 1
            self._wanted = wanted = {number for number in self._wanted if number >= first}
            if not wanted or self._dead:
                self._watched = False
                return Notifier.IDLE
            sequence = min(wanted)
            armed = self._notifier.armed
            if first <= armed:
                return Notifier.ARMED if armed <= sequence else Notifier.BEHIND
            operation = ring[sequence - first]
            operation._event.count += 1
            self._notifier.armed = sequence
            self._notifier.arming = True
        return self._notifier.arm(operation._event, function, argument)
