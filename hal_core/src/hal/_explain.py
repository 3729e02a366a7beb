"""Say in words what a wait still waits for, and who has promised it (rule S9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hal import _lifecycle, _timeline
from hal._timeline import Timeline, Timepoint

if TYPE_CHECKING:
    from hal._operation import Operation
    from hal._stream import StreamQueue

__all__ = ["describe_operation", "describe_wait"]

_PENDING: Final = 0
"""The state of `hal._submission`, which imports this module."""

_DONE: Final = 3
"""The state from which on an operation has ended."""

_DEPTH: Final = 4
"""How many promises in a row are followed; longer chains repeat themselves."""

_WIDTH: Final = 8
"""How many unmet waits of one list are told."""


def describe_wait(groups: Sequence[Sequence[Timepoint]]) -> str:
    """Return "for ...", with every unmet wait and its promise. No lock held."""
    everything = [queue for device in list(_lifecycle.devices) for queue in device._context.queues]
    with _timeline.lock:
        lines = _lines(groups, everything)
    shown = lines[:_WIDTH]
    if len(lines) > _WIDTH:
        shown.append(f"{len(lines) - _WIDTH} more")
    mode = "for" if len(groups) == 1 else "for any of"
    return f"{mode} " + "; ".join(shown)


def describe_operation(operation: Operation) -> str:
    """Return what an operation does and waits for, nothing if it has ended. No lock held."""
    everything = [queue for device in list(_lifecycle.devices) for queue in device._context.queues]
    with _timeline.lock:
        if operation._state >= _DONE or operation._retired:
            return ""
        if operation._state == _PENDING:
            state = "is not issued"
        elif operation in operation._queue._hosts:
            state = _host_state(operation)
        else:
            state = "is running"
        return _story(operation, state, everything, ())


def _lines(groups: Sequence[Sequence[Timepoint]], everything: list[StreamQueue]) -> list[str]:
    """Return what is to say of each unmet wait, once."""
    unmet = dict.fromkeys(
        each for entries in groups for each in entries if each._semaphore._value < each._value
    )
    return [_entry(each._semaphore, each._value, everything, ()) for each in unmet]


def _entry(
    timeline: Timeline, value: int, everything: list[StreamQueue], path: tuple[Operation, ...]
) -> str:
    head = f"{timeline.name}@{value} (now {timeline._value}), promised by "
    promise = _promise(timeline, value, everything)
    if promise is None:
        return head + "nobody"
    operation, state = promise
    return head + _story(operation, state, everything, path)


def _story(
    operation: Operation, state: str, everything: list[StreamQueue], path: tuple[Operation, ...]
) -> str:
    """Say what an operation is doing, and what it waits for; `path` led to it."""
    text = f"{operation._describe()}, which {state}"
    if operation in path:
        return text + ", as said before: they wait for each other"
    if len(path) == _DEPTH or not (operation._state == _PENDING or operation._unresolved):
        return text
    path = (*path, operation)
    waits = [
        _entry(each._semaphore, each._value, everything, path)
        for each in operation._waits[:_WIDTH]
        if each._semaphore._value < each._value
    ]
    if waits:
        return text + " and waits for " + " and ".join(f"[{wait}]" for wait in waits)
    text += " behind others in its queue"
    queue = operation._queue
    for host in queue._hosts:
        if queue._ordered:
            return text + f" [{_story(host, _host_state(host), everything, path)}]"
    for first in queue._backlog:
        if first is not operation and first._state == _PENDING and queue._ordered:
            text += f" [{_story(first, 'is not issued', everything, path)}]"
        break
    return text


def _host_state(operation: Operation) -> str:
    """Say what an issued host operation is doing, deferred or not."""
    return "has returned on the host" if operation._unresolved else "is running on the host"


def _promise(
    timeline: Timeline, value: int, everything: list[StreamQueue]
) -> tuple[Operation, str] | None:
    """Return the operation that will bring `value`, and what it is doing; under the lock."""
    covering = timeline._covering(value)
    if covering is not None:
        return covering, "is running"
    for queue in everything:
        states = (
            (queue._unissued(), "is not issued"),
            (queue._hosts, None),
            ([queue._issuing] if queue._issuing else [], "is being issued"),
        )
        for operations, state in states:
            for operation in operations:
                for timepoint in operation._signals:
                    signalled, promised = timepoint._semaphore, timepoint._value
                    if signalled is timeline and promised >= value:
                        return operation, state or _host_state(operation)
    return None
