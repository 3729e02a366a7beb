"""Wait on the host for everything that was submitted before a call (rules S6, M2).

Every function of a buffer that blocks does this, unless told what to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat, cast

from hal._base import sync
from hal._engine import explain, timelines
from hal._engine.device_context import DeviceContext
from hal._engine.fence import awaited
from hal._engine.operation import DONE, ISSUED, Operation
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.timelines import Timepoint
from hal.arguments import as_seconds
from hal.errors import DeadlineExceededError, HalError
from hal.handlers import own

_calling: set[int] = set()
"""The threads that run a host function now."""


def call(function: Callable[..., object], *arguments: Any) -> tuple[Timepoint, ...]:  # noqa: ANN401 - the user's
    """Call a host function; return the timepoints that its operation ends with.

    Functions of hal's that it calls and that wait for earlier work leave its operation out
    (`wait_before`).
    """
    thread = sync.get_ident()
    _calling.add(thread)
    try:
        return awaited(function(*arguments))
    finally:
        _calling.discard(thread)


def wait_idle(queues: list[StreamQueue], timeout: float | None) -> None:
    """Block until everything submitted so far to `queues` has ended, successfully or not.

    Raises `DeadlineExceededError` after `timeout` seconds; None means forever.
    """
    deadline = None if timeout is None else sync.monotonic() + timeout
    error = _wait_for(_unended(queues), deadline)
    if error is not None:
        raise error


def wait_before(context: DeviceContext, timeout: SupportsFloat | None, what: str) -> None:
    """Wait as `wait_idle` does, for all queues of a context; the error says that `what` has waited.

    In a host function this waits for nothing: its own operation, and what stands behind it,
    cannot end before it does.
    """
    seconds = None if timeout is None else as_seconds(timeout)
    operations = _unended(context.queues)
    if not operations or sync.get_ident() in _calling:
        return
    deadline = None if seconds is None else sync.monotonic() + seconds
    if _wait_for(operations, deadline) is not None:
        raise _too_late(context, operations, seconds, what)


def _unended(queues: list[StreamQueue]) -> list[Submission]:
    """Return operations such that everything submitted to `queues` has ended once these have."""
    operations: list[Operation] = []
    with timelines.lock:
        for queue in queues:
            # Usually nothing: this is on the way of every small transfer that blocks.
            is_idle = (
                not queue._ring
                and not queue._hosts
                and not queue._backlog
                and not queue._pending
                and queue._issuing is None
            )
            operations += () if is_idle else _last_of(queue)
    return cast("list[Submission]", operations)


def _last_of(queue: StreamQueue) -> list[Operation]:
    """Return operations of one queue, which is idle once they have ended; under the lock."""
    operations: list[Operation] = [*queue._unissued(), *queue._hosts]
    for operation in reversed(queue._ring):
        # A part of a recording has no handle to wait for; the rest of it is among the others.
        # Those before it end no later; one behind it that has failed has ended for its user.
        if operation._state == ISSUED and isinstance(operation, Submission):
            operations.append(operation)
            break
    if queue._issuing is not None:
        operations.append(queue._issuing)
    return operations


def _wait_for(operations: list[Submission], deadline: float | None) -> DeadlineExceededError | None:
    """Wait until operations have ended, or return the error of the first that has not by then."""
    for operation in operations:
        try:
            operation.wait(None if deadline is None else max(deadline - sync.monotonic(), 0.0))
        except own(HalError) as error:
            # Else it has failed, perhaps with what a wait of its own raised, and reports that.
            if isinstance(error, DeadlineExceededError) and operation._state < DONE:
                return error
    return None


def _too_late(
    context: DeviceContext, operations: list[Submission], seconds: float | None, what: str
) -> DeadlineExceededError:
    """Describe which operations have not ended, and what they wait for."""
    entries = [each._as_timepoint() for each in operations if not each.done]
    return DeadlineExceededError(
        f"{what} waited {seconds:g} s {explain.describe_wait((entries,))}; it waits for all that "
        f"was submitted to {context.name} before, unless wait= says otherwise"
    )
