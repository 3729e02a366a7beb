"""Ask for one operation's end for a moment, before its waiter does anything dearer (rule S6).

Most waits are for work that was submitted just now and ends within microseconds. They
need no registration, no list and no leader: the event is asked, and what has ended is
retired. Who is not served by then waits as `hal._wait` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, SupportsFloat

from hal import _sync, _timeline
from hal._operation import ISSUED
from hal._timeouts import check_timeout

if TYPE_CHECKING:
    from hal._operation import Operation
    from hal._timeline import Timeline
    from hal.errors import DeviceLostError

__all__ = ["EAGER_TURNS", "POLL_SECONDS", "spin_for", "spin_for_operation"]

POLL_SECONDS: Final = 100e-6
"""How long a waiter polls before it sleeps: about what a wake-up costs."""

EAGER_TURNS: Final = 4
"""How often it asks before it gives the processor up in between: what short work takes.

A driver's call lets the interpreter lock go by itself.
"""


def spin_for(timeline: Timeline, value: int, timeout: SupportsFloat | None) -> None:
    """Ask what is recorded to bring `value`, unless somebody polls its queue by now."""
    seconds = _limit(timeout)
    with _timeline.lock:
        operation = timeline._covering(value)
        if operation is not None and operation._queue._leader is not None:
            operation = None
        if operation is not None:
            operation._event.count += 1
    if operation is not None:
        _ask(operation, seconds)


def spin_for_operation(operation: Operation, timeout: SupportsFloat | None) -> None:
    """Ask for the end of an operation, if it is on a stream and nobody polls its queue by now."""
    seconds = _limit(timeout)
    with _timeline.lock:
        is_there = (
            operation._state == ISSUED
            and not operation._is_host
            and operation._queue._leader is None
        )
        if is_there:
            operation._event.count += 1
    if is_there:
        _ask(operation, seconds)


def _limit(timeout: SupportsFloat | None) -> float:
    return POLL_SECONDS if timeout is None else min(check_timeout(timeout), POLL_SECONDS)


def _ask(operation: Operation, seconds: float) -> None:
    """Ask the event of an operation, which is held, and retire through it if it has ended."""
    queue = operation._queue
    answer: bool | DeviceLostError = False
    turns = 0
    begun = 0.0
    try:
        while True:
            answer = queue._query(operation)
            if answer is not False or operation._retired:
                return
            now = _sync.monotonic()
            if not turns:
                begun = now
            if now - begun >= seconds:
                return
            turns += 1
            if turns > EAGER_TURNS:
                _sync.yield_thread()
    finally:
        queue._settle(operation, answer)
