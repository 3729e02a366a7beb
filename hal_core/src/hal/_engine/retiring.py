"""Retire what a native stream has completed (design section 5, "Who retires").

A ring holds the issued operations of one stream in its order. A thread that asks an
event and finds it complete retires everything up to it: first the dependencies,
on any queue, so that retirement is causal (I3). The timeline lock guards
everything here; events are asked outside of it (I5).

Work is retired on demand: by a thread that waits, polls or submits, and by the progress thread only
for those that cannot ask. The rejected alternatives are a thread that retires everything, and a
function that the driver calls behind each operation: with raw CUDA a round trip takes 5.5
microseconds by asking and 15 to 20 where a thread has to be woken, and to submit that function
takes 6, more than the submission itself (design section 7).

Asking an event does not keep it from being reused: an answer counts only if
its operation has not retired meanwhile, and until then the event is its own.
"""

from __future__ import annotations

from typing import Final

from hal._base import sync
from hal._base.failures import as_failure
from hal._engine import timelines
from hal._engine.ending import finish, lose
from hal._engine.events import Event
from hal._engine.notifier import Notifier
from hal._engine.operation import DONE, FAILED, ISSUED, Operation
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.timelines import CHANGE, GARBAGE, ISSUE, RETIRE, Work
from hal.errors import DeviceLostError, HalError, WorkFailedError

Answer = bool | HalError
"""The answer of an event: whether it is complete, or an error."""

_UNANSWERED: Final = 64
"""How many events in a row may answer with an error before the device counts as lost.

Not the first: only an error that the vendor calls fatal loses a device (O2). But such operations
stay in the ring, and keep memory, until a later event says that their work has ended.
"""


def enter(operation: Operation, event: Event) -> None:
    """Append an operation to its queue's ring; under the lock, with the baton."""
    queue = operation._queue
    sequence = operation._sequence = queue._sequence + 1
    launched = operation._launched = queue._launched + operation._launches
    operation._event = event
    queue._ring.append(operation)
    queue._sequence = sequence
    queue._launched = launched


# Asking


def ask(operation: Operation, step: CallStep) -> Answer:
    """Ask the event of an issued operation; return True also if it has retired. No lock held."""
    with timelines.lock:
        if operation._retired:
            return True
        # No event of the context is destroyed until the step is done with it.
        step.contexts = operation._queue._contexts
    answer = query(operation)
    step.contexts = ()
    return answer


def query(operation: Operation) -> Answer:
    """Return whether an operation's event is complete, or the error from asking it."""
    queue = operation._queue
    try:
        is_over = operation._event.is_over()
        if is_over is not None:
            return is_over
        queue._native.bind()
        return queue._context.events.query_event(operation._event.recorded(queue._native))
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises there
        return as_failure(error, "its event was asked")


def heed(operation: Operation, answer: Answer, step: CallStep) -> bool:
    """Have the step do what an answer demands; return whether it says that the work has ended."""
    if answer is True:
        step.work.append((RETIRE, operation))
        return True
    if isinstance(answer, WorkFailedError):  # of this operation, or of one before it
        harvest(step, operation._queue)
    elif answer is not False:
        step.work.append((CHANGE, (_heed_error, operation, answer)))
    return False


def harvest(step: CallStep, queue: StreamQueue, _: None = None) -> None:
    """Have the step retire everything that has completed, in stream order; never blocks.

    An operation that failed alone fails before its failure is forgotten, or another thread
    might take it for done.
    """
    while failed := _find_end(step, queue):
        operation, error = failed
        with timelines.lock:
            if operation._retired:
                continue  # its event was another's by then, and told of other work
            _heed_error(operation, error, step.work)
        queue._native.forget_failure(queue._stream, error.native_code or 0)


def _find_end(step: CallStep, queue: StreamQueue) -> tuple[Operation, WorkFailedError] | None:
    """Have the step retire what has completed; return the first operation that failed alone."""
    low = high = None
    with timelines.lock:
        clear_head(queue)
        if queue._ring:
            low, high = queue._ring[0], queue._ring[-1]
    if low is None or high is None:
        return None
    # Both ends come first: mostly nothing has ended, or all of it.
    answer = _ask_and_heed(low, step)
    if answer is not True or high is low:
        return _failed(low, answer)
    answer = _ask_and_heed(high, step)
    if answer is True:
        return None
    # A binary search: a stream ends its operations in order, so the first that has not ended is
    # found with as many questions as its position has bits. To ask one after the other would take
    # a native call for each that has ended, and there may be a thousand.
    end, first, last = high, low._sequence, high._sequence
    while last - first > 1:
        middle = (first + last) // 2
        operation = None
        with timelines.lock:
            ring = queue._ring
            if not ring:
                return None
            offset = middle - ring[0]._sequence
            if 0 <= offset < len(ring):
                operation = ring[offset]
        # None: others have retired it meanwhile.
        found = True if operation is None else _ask_and_heed(operation, step)
        if operation is None or found is True:
            first = middle
        else:
            end, answer, last = operation, found, middle
    return _failed(end, answer)


def _ask_and_heed(operation: Operation, step: CallStep) -> Answer:
    answer = ask(operation, step)
    if not isinstance(answer, WorkFailedError):
        heed(operation, answer, step)
    return answer


def _failed(operation: Operation, answer: Answer) -> tuple[Operation, WorkFailedError] | None:
    return (operation, answer) if isinstance(answer, WorkFailedError) else None


# Retiring


def clear_head(queue: StreamQueue) -> None:
    """Finish a retirement that was broken off before its last step; under the lock."""
    while queue._ring and queue._ring[0]._retired:
        queue._ring.popleft()


def retire(operation: Operation, step: CallStep) -> None:
    """Retire an operation whose event is complete, after its dependencies on other devices."""
    # A stack, in which each operation stands on what it waits for: in the work list they would
    # be asked again and again, twice as often for every device in between. No recursion: a chain
    # may be longer than Python's stack is deep.
    stack = [operation]
    while stack:
        foreign = None
        with timelines.lock:
            if not stack[-1]._retired:
                foreign = _retire_through(stack[-1], step.work)
        if foreign is None:
            stack.pop()
            continue
        answer = ask(foreign, step)
        if answer is False:
            return  # this one is asked again, too
        if answer is not True:
            heed(foreign, answer, step)
            heed(operation, True, step)  # noqa: FBT003
            return
        stack.append(foreign)


def _retire_through(operation: Operation, work: Work) -> Operation | None:
    """Retire an operation, all before it, and their dependencies; under the lock.

    Its event is complete, so the events of all those are, too (I3). A dependency retires first,
    on any queue, and passes its failure on. If each queue retired for itself, a thread that sees a
    value could find what that depends on unfinished, or learn of its failure later (S7).

    Returns an operation of another context that must be asked first: if that
    device is lost, its work has failed, whatever this stream says.
    """
    context = operation._queue._context
    # In the work before it has an entry: an interrupt leaves nothing alive that has ended. What the
    # operations kept alive is dropped outside of the lock, as that may run the user's code (I5).
    garbage: list[Operation] = []
    work.append((GARBAGE, garbage))
    operation._queue._unanswered = 0
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
                finish(head, FAILED, other._error, work)
        if waited is None:
            # The order of steps lets an interrupted call be repeated.
            if head._state == ISSUED:  # else it has failed, as by a dependency or a lost device
                finish(head, DONE, None, work)
            garbage.append(head)
            queue._retired = head._launched
            if queue._backlog and queue._issuing is None:
                work.append((ISSUE, queue))
            head._retired = True  # before it leaves: `clear_head` does the rest after an interrupt
            queue._ring.popleft()
            # Never repeated: an interrupt before it leaks an event, where a second release would
            # hand out one that others hold.
            head._event.release()
        elif waited._queue._context is not context:
            return waited
        else:
            stack.append(waited)
    return None


def _heed_error(operation: Operation, error: HalError, work: Work) -> None:
    """Fail an operation whose event cannot be asked; under the lock (O2).

    It stays in the ring: a later event tells when its work has ended. The device is lost
    if the error says so, or after too many in a row.
    """
    queue = operation._queue
    if not isinstance(error, DeviceLostError):
        if operation._retired:
            return
        finish(operation, FAILED, error, work)
        queue._unanswered += 1
        if queue._unanswered < _UNANSWERED:
            return
        lost = DeviceLostError(
            f"asking {queue._unanswered} events in a row failed, at last with: {error}"
        )
        lost.__cause__ = error
        error = lost
    work.append((CHANGE, (lose, queue._context, error)))


# The progress thread


def serve(queue: StreamQueue, bell: sync.Doorbell, step: CallStep) -> int:
    """Have the driver ring `bell` when the next wanted operation has ended.

    Called by the progress thread, after a harvest. Returns one of `Notifier`'s states.
    """
    with timelines.lock:
        ring = queue._ring
        first = ring[0]._sequence if ring else queue._sequence + 1
        queue._wanted = wanted = {number for number in queue._wanted if number >= first}
        if not wanted or queue._dead:
            queue._watched = False
            return Notifier.IDLE
        operation = ring[min(wanted) - first]
    is_armed = queue._notifier.arm(operation, bell, Notifier.MOST + 1, step)
    return Notifier.ARMED if is_armed else Notifier.BEHIND
