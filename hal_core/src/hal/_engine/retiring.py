"""Retire what a native stream has completed (design section 5, "Who retires").

A ring holds the issued operations of one stream in its order. A thread that asks an
event and finds it complete retires everything up to it: first the dependencies,
on any queue, so that retirement is causal (I3). The timeline lock guards
everything here; events are asked outside of it (I5).

Asking an event does not keep it from being reused: an answer counts only if
its operation has not retired meanwhile, and until then the event is its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from hal._base.failures import as_failure
from hal._engine import progress, timelines
from hal._engine.notifier import Notifier
from hal._engine.operation import DONE, FAILED, ISSUED, Operation
from hal._engine.steps import Step
from hal._engine.timelines import ANSWER, GARBAGE, ISSUE, RETIRE, WATCH, Work
from hal.errors import DeviceLostError, HalError

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext
    from hal._engine.events import Event
    from hal._engine.waiting import HostWaiter

__all__ = ["Answer", "Ring"]

Answer = bool | HalError
"""The answer of an event: whether it is complete, or an error."""

_UNANSWERED: Final = 64
"""How many events in a row may answer with an error before the device counts as lost."""


class Ring:
    """The operations in flight on one native stream."""

    __slots__ = (
        "_backlog",
        "_context",
        "_contexts",
        "_dead",
        "_issuing",
        "_launched",
        "_leader",
        "_native",
        "_notifier",
        "_retired",
        "_ring",
        "_sequence",
        "_unanswered",
        "_wanted",
        "_watched",
    )

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._contexts = (context,)
        self._native = context.native
        self._sequence = 0  # of the last operation that entered; from 1 on
        self._ring: deque[Operation] = deque()  # issued and unretired, in stream order
        # Native launches that were put on the stream, and how many of them have retired
        self._launched = 0
        self._retired = 0
        self._backlog: deque[Operation] = deque()  # see `hal._engine.backlog`
        self._issuing: Operation | None = None  # the baton, see `hal._engine.backlog`
        self._leader: HostWaiter | None = None  # which polls for all, see `hal._engine.waiting`
        self._wanted: set[int] = set()  # sequences that sleeping waiters wait for
        self._watched = False  # by the progress thread
        self._unanswered = 0  # errors in a row from asking events
        self._notifier = Notifier(context.native)
        self._dead = False  # its native stream is being destroyed

    def _enter_ring(self, operation: Operation, event: Event) -> None:
        """Append to the ring; under the lock, with the baton."""
        sequence = operation._sequence = self._sequence + 1
        operation._event = event
        operation._launched = self._launched + operation._launches
        self._ring.append(operation)
        self._sequence = sequence
        self._launched = operation._launched

    # Asking

    def _ask(self, operation: Operation, step: Step) -> bool:
        """Ask the event of an issued operation and retire through it if it is complete.

        Returns whether the operation has retired. No lock held.
        """
        if not self._attend(operation, step):
            return True
        answer = self._query(operation)
        step.contexts = ()
        return self._heed(operation, answer, step)

    def _attend(self, operation: Operation, step: Step) -> bool:
        """Note in the step that an operation's event is going to be asked.

        Returns False if it has retired. No event of the context is destroyed until the
        step is done with it.
        """
        with timelines.lock:
            if operation._retired:
                return False
            step.contexts = self._contexts
            return True

    def _query(self, operation: Operation) -> Answer:
        """Return whether an operation's event is complete, or the error from asking it."""
        try:
            self._native.bind()
            return self._native.query_event(operation._event.handle)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises there
            return as_failure(error, "its event was asked")

    def _heed(self, operation: Operation, answer: Answer, step: Step) -> bool:
        """Act on the answer of an event; return whether its operation has retired."""
        if answer is not False:
            if answer is True:
                step.work.append((RETIRE, operation))
            else:
                step.work.append((ANSWER, (operation, answer)))
            progress.drain(step)
        return operation._retired

    def _harvest(self, step: Step) -> None:
        """Retire everything that has completed, in stream order; never blocks."""
        low = self._at(0)
        if low is None or not self._ask(low, step):
            return
        high = self._at(-1)
        if high is None or self._ask(high, step):
            return
        first, last = low._sequence, high._sequence
        while last - first > 1:
            middle = (first + last) // 2
            operation = None
            with timelines.lock:
                ring = self._ring
                if not ring:
                    return
                offset = middle - ring[0]._sequence
                if 0 <= offset < len(ring):
                    operation = ring[offset]
            if operation is None or self._ask(operation, step):
                first = middle
            else:
                last = middle

    def _at(self, index: int) -> Operation | None:
        """Return the operation at `index` of the ring."""
        with timelines.lock:
            self._clear_head()
            return self._ring[index] if self._ring else None

    # Retiring

    def _clear_head(self) -> None:
        """Finish a retirement that was broken off before its last step; under the lock."""
        while self._ring and self._ring[0]._retired:
            self._ring.popleft()

    def _retire_through(self, operation: Operation, work: Work) -> Operation | None:
        """Retire an operation, all before it, and their dependencies; under the lock.

        Its event is complete, so the events of all those are, too (I3). A
        dependency retires first, on any queue, and passes its failure
        on. What they kept alive is dropped outside of the lock.

        Returns an operation of another context that must be asked first: if that
        device is lost, its work has failed, whatever this stream says.
        """
        garbage: list[Operation] = []
        work.append((GARBAGE, garbage))
        self._unanswered = 0
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
            waited = None
            for other in head._dependencies or ():
                if not other._retired:
                    waited = other
                    break
                if other._state != DONE and head._state == ISSUED:
                    queue._finish(head, FAILED, other._error, work)
            if waited is None:
                queue._retire_head(head, garbage, work)
            elif waited._queue._context is not self._context:
                return waited
            else:
                stack.append(waited)
        return None

    def _retire_head(self, head: Operation, garbage: list[Operation], work: Work) -> None:
        """Publish the end of the oldest operation and remove it from the ring; under the lock.

        The order of steps lets an interrupted call be repeated.
        """
        if head._state == ISSUED:
            self._finish(head, DONE, None, work)
        garbage.append(head)
        self._retired = head._launched
        if self._backlog and self._issuing is None:
            work.append((ISSUE, self))
        head._retired = True
        self._ring.popleft()
        head._event.release()

    def _finish(
        self, operation: Operation, state: int, error: BaseException | None, work: Work
    ) -> None:
        """End an operation: its signals, its registrations, its handle; under the lock.

        The only way in which an operation ends: with an error, which `keep` has made fit to
        be kept, unless `state` is `DONE`. The order of steps lets an interrupted call be repeated.
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
        operation._state = state

    def _heed_error(self, operation: Operation, error: HalError, work: Work) -> HalError | None:
        """Fail an operation whose event cannot be asked; under the lock (O2).

        It stays in the ring: a later event tells when its work has ended. Returns the error
        that loses the device, if any: this one, or one after too many in a row.
        """
        if isinstance(error, DeviceLostError):
            return error
        if operation._retired:
            return None
        self._finish(operation, FAILED, error, work)
        self._unanswered += 1
        if self._unanswered < _UNANSWERED:
            return None
        lost = DeviceLostError(
            f"asking {self._unanswered} events in a row failed, at last with: {error}"
        )
        lost.__cause__ = error
        return lost

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
            work.append((WATCH, self))
            self._watched = True

    def _serve(self, function: int, argument: int, step: Step) -> int:
        """Retire, and have the driver post for the next wanted operation.

        Called by the progress thread. Returns one of `Notifier`'s states.
        """
        self._harvest(step)
        with timelines.lock:
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
