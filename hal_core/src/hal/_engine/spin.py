"""Poll one operation's end for a moment, before its waiter does anything more costly (rule S6).

Most waits are for work that was submitted just now and ends within microseconds. They
need no registration, no list and no leader: the event is asked, and what has ended is
retired. A waiter that is not served by then goes on as in `hal._engine.waiting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, SupportsFloat

from hal._base import sync
from hal._engine import progress, timelines
from hal._engine.operation import ISSUED
from hal._engine.retiring import heed, query
from hal.arguments import as_seconds

if TYPE_CHECKING:
    from hal._engine.operation import Operation
    from hal._engine.steps import Step
    from hal._engine.timelines import Timeline

__all__ = ["EAGER_TURNS", "POLL_SECONDS", "spin_for", "spin_for_operation"]

POLL_SECONDS: Final = 100e-6
"""How long a waiter polls before it sleeps: about the cost of a wake-up."""

EAGER_TURNS: Final = 4
"""How often it asks before it starts to yield the processor in between: enough for short work.

A driver's call releases the interpreter lock by itself.
"""


def spin_for(timeline: Timeline, value: int, timeout: SupportsFloat | None) -> None:
    """Poll the operation recorded to signal `value`, unless another thread polls its queue."""
    seconds = _limit(timeout)
    progress.act(_spin_for_value, (timeline, value), seconds)


def spin_for_operation(operation: Operation, timeout: SupportsFloat | None) -> None:
    """Poll the end of an operation that is on a stream, unless another thread polls its queue."""
    progress.act(_spin, operation, _limit(timeout))


def _limit(timeout: SupportsFloat | None) -> float:
    return POLL_SECONDS if timeout is None else min(as_seconds(timeout), POLL_SECONDS)


def _spin_for_value(step: Step, wanted: tuple[Timeline, int], seconds: float) -> None:
    timeline, value = wanted
    with timelines.lock:
        operation = timeline._covering(value)
    if operation is not None:
        _spin(step, operation, seconds)


def _spin(step: Step, operation: Operation, seconds: float) -> None:
    """Ask the event of an operation, and retire through it if it has ended."""
    queue = operation._queue
    with timelines.lock:
        if operation._state != ISSUED or operation._retired or queue._leader is not None:
            return
        step.contexts = queue._contexts
    turns = 0
    begun = 0.0
    step.calm = True  # no engine state in its hands: a signal handler may call anything
    while True:
        answer = query(operation)
        if answer is not False or operation._retired:
            break
        now = sync.monotonic()
        if not turns:
            begun = now
        if now - begun >= seconds:
            break
        turns += 1
        if turns > EAGER_TURNS:
            sync.yield_thread()
    step.calm = False
    step.contexts = ()
    heed(operation, answer, step)
