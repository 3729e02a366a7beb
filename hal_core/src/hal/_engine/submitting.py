"""Submit operations: refuse them, issue them at once, or have them stand in line (rule Q1).

Which of the three is decided in one hold of the timeline lock, so that an operation that was
refused has changed nothing, and none is forgotten between a look at its queue and its place there.
Until a queue has it, the submitter's step alone knows it, and an interrupt cancels it. What a
signal handler or a finaliser submits in the middle of another call is put off to the end of that
call, and its handle reports a refusal (O3).

The last functions are for C, which has made the native calls of an operation: it leaves here what
it cannot end in its plain way.
"""

from __future__ import annotations

from typing import Any, Final

from hal._engine import progress, timelines
from hal._engine.backlog import CheckedWaits, claim, has_room, not_above, stand_in_line
from hal._engine.contexts import harvest_some
from hal._engine.ending import end, end_pending
from hal._engine.fence import Waits
from hal._engine.issuing import issue_from
from hal._engine.operation import FAILED, PENDING
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.wait_lists import Signals, check_lists
from hal.errors import HalError, ReentrantCallError
from hal.handlers import own

HARVEST_MASK: Final = 63
"""Submissions harvest whenever their sequence has these bits clear.

Otherwise a program that submits and never waits would get memory back only when the stream is full.
Not every submission does: each would pay a question to the driver.
"""


def submit(
    queue: StreamQueue,
    kind: str,
    payload: tuple[Any, ...],
    wait: Waits,
    signal: Signals,
    is_host: bool = False,  # noqa: FBT001, FBT002 - internal, and positional for speed
    make: type[Submission] = Submission,
) -> Submission:
    """Check the lists, and submit an operation; never waits for the device or the host (Q1)."""
    waits, signals = check_lists(wait, signal)
    if is_host:
        progress.start_for(kind)
    operation = make(queue, kind, payload, signals, is_host)
    return start(operation, waits)


def start(operation: Submission, waits: CheckedWaits) -> Submission:
    """Submit an operation that was made before."""
    try:
        progress.act(_start, operation, waits)
    except own(HalError) as error:
        if not _is_put_off(error, (operation,), (waits,)):
            raise
    return operation


def _start(step: CallStep, operation: Submission, waits: CheckedWaits) -> None:
    """Refuse an operation, or issue it or have it stand in line."""
    queue = operation._queue
    context = queue._context
    if context.provider is not None:
        step.noted = operation
        # Outside of the timeline lock, a leaf: it takes the lock of the books. From here on the
        # memory's dealloca knows of this use.
        _note(operation)
    with timelines.lock:
        if queue._closed:
            context.refuse(queue._name)
        # Values are reserved at the claim, which checks this again. But a value that is reserved by
        # now can never be signalled (S1), so the caller learns it here, where the mistake is.
        if (error := not_above(operation._signals)) is not None:
            raise error
        # In this order: an interrupt between the two finds it noted twice, and ends it once.
        step.operation = operation
        step.noted = None
        if context.lost is not None:
            end(operation, FAILED, context.lost, step.work)
        elif (
            not queue._backlog
            and queue._issuing is None
            and not operation._is_host
            and not (queue._ordered and queue._hosts)
            and has_room(operation)
            and claim(operation, waits, step)
        ):
            # Nothing stands before it, so it is issued at once: it joins no line, and submissions
            # among its waits need no semaphores.
            pass
        elif operation._state == PENDING:  # else the claim has ended it: a wait has failed (S5)
            stand_in_line(operation, waits, step.work)
        step.operation = None
    if step.queue is not None:
        issue_from(operation, step, progress.BUDGET)
        if not queue._sequence & HARVEST_MASK:
            harvest_some(step, queue)


def submit_together(operations: tuple[Submission, ...], waits: tuple[CheckedWaits, ...]) -> None:
    """Submit operations, of any queues, in one step: each stands in line, or none was submitted.

    No other submission comes between, in any of the queues. Each may wait for those before it. What
    `submit` says holds here, too.
    """
    # All of them stand in line, even where nothing stands before them: to issue the first at once,
    # its native calls need the lock let go, and other submissions would come between.
    for operation in operations:
        if operation._is_host:
            progress.start_for(operation._kind)
    try:
        progress.act(_start_together, operations, waits)
    except own(HalError) as error:
        if not _is_put_off(error, operations, waits):
            raise


def _start_together(
    step: CallStep, operations: tuple[Submission, ...], waits: tuple[CheckedWaits, ...]
) -> None:
    """Have operations stand in line; idempotent."""
    step.noted = operations
    for operation in operations:
        _note(operation)
    with timelines.lock:
        _refuse_together(operations)
        step.operation = operations
        step.noted = None
        _stand_together(operations, waits, step)
        step.operation = None
    for queue in {operation._queue for operation in operations}:
        if not queue._sequence & HARVEST_MASK:
            harvest_some(step, queue)


def _refuse_together(operations: tuple[Submission, ...]) -> None:
    """Raise if one of some operations is refused; under the lock."""
    for operation in operations:
        queue, signals = operation._queue, operation._signals
        if queue._closed:
            queue._context.refuse(queue._name)
        if operation._state == PENDING and (error := not_above(signals)) is not None:
            raise error


def _stand_together(
    operations: tuple[Submission, ...], waits: tuple[CheckedWaits, ...], step: CallStep
) -> None:
    """Have operations stand in line; under the lock."""
    for operation, each in zip(operations, waits, strict=True):
        lost = operation._queue._context.lost
        if operation._state != PENDING:
            continue  # it was put off, and this is a repeat; or its waits have failed
        if lost is not None:
            end(operation, FAILED, lost, step.work)
        else:
            stand_in_line(operation, each, step.work)


def _is_put_off(
    error: HalError, operations: tuple[Submission, ...], waits: tuple[CheckedWaits, ...]
) -> bool:
    """Put a submission by a signal handler or a finaliser off; return whether it is one (O3).

    Not called for what a handler has raised in the middle of a submission, which is no refusal of
    it: as after a Ctrl-C, the next call completes what it had begun.
    """
    if isinstance(error, ReentrantCallError):
        progress.put_off(_start_late, operations, waits)
        return True
    for operation in operations:
        operation._let_go()  # refused: nothing has changed
    return False


def _start_late(
    step: CallStep, operations: tuple[Submission, ...], waits: tuple[CheckedWaits, ...]
) -> None:
    """Submit operations that were put off; their handles report a refusal."""
    try:
        _start_together(step, operations, waits)
    except own(HalError) as error:
        for operation in operations:
            end_pending(operation, FAILED, error, step.work)


def _note(operation: Submission) -> None:
    """Tell the memory of `Queue.alloca` that an operation is going to use it."""
    provider = operation._queue._context.provider
    if provider is not None:
        provider.note(operation, operation._resources)
        if operation._is_host and operation._kind != "call":  # those arguments are the user's
            provider.note(operation, operation._arguments)


def issue_ready(step: CallStep, queue: StreamQueue, _: None) -> None:
    """Have the step issue what is ready on a queue."""
    step.work.append((timelines.ISSUE, queue))


def want(step: CallStep, operation: Submission, _: None) -> None:
    """Have the progress thread retire an operation that C has issued as soon as it ends."""
    with timelines.lock:
        operation._want(step.work)
