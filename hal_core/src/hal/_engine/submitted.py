"""Wait on the host for everything that was submitted to a device before a call (rule M2).

Every function of a buffer that blocks does this, unless told what to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

from hal._base import sync
from hal._engine import explain, timelines
from hal.arguments import as_seconds
from hal.errors import DeadlineExceededError, HalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hal._engine.context import DeviceContext
    from hal._engine.submission import Submission

__all__ = ["call", "wait_before"]

_calling: set[int] = set()
"""The threads that run a host function now."""


def call(function: Callable[..., object], *arguments: Any) -> object:  # noqa: ANN401 - the user's
    """Call a host function; its own waits exclude its operation."""
    thread = sync.get_ident()
    _calling.add(thread)
    try:
        return function(*arguments)
    finally:
        _calling.discard(thread)


def wait_before(context: DeviceContext, timeout: SupportsFloat | None, what: str) -> float | None:
    """Block until everything submitted to a context so far has ended, successfully or not.

    Returns how many seconds of `timeout` are left. Errors of operations are not
    raised here. In a host function this waits for nothing: its own operation,
    and what stands behind it, cannot end before it does. Raises
    `DeadlineExceededError`, which says that `what` has waited.
    """
    seconds = None if timeout is None else as_seconds(timeout)
    with timelines.lock:
        operations = [
            each
            for queue in context.queues
            if queue._ring or queue._backlog or queue._hosts or queue._pending or queue._issuing
            for each in queue._unended()
        ]
    if not operations or sync.get_ident() in _calling:
        return seconds
    deadline = None if seconds is None else sync.monotonic() + seconds
    for index, operation in enumerate(operations):
        remaining = None if deadline is None else max(deadline - sync.monotonic(), 0.0)
        try:
            operation.wait(remaining)
        except DeadlineExceededError:
            raise _too_late(context, operations[index:], seconds, what) from None
        except HalError:
            continue  # its error is reported by itself
    return None if deadline is None else max(deadline - sync.monotonic(), 0.0)


def _too_late(
    context: DeviceContext, operations: list[Submission], seconds: float | None, what: str
) -> DeadlineExceededError:
    """Describe which operations have not ended, and what they wait for."""
    entries = [each._as_timepoint() for each in operations if not each.done]
    return DeadlineExceededError(
        f"{what} waited {seconds:g} s {explain.describe_wait((entries,))}; it waits for all that "
        f"was submitted to {context.name} before, unless wait= says otherwise"
    )
