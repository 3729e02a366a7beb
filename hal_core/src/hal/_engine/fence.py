"""Fences: sets of timepoints that are waited for together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, SupportsFloat, TypeAlias

from hal._base import sync
from hal._engine import waiting
from hal._engine.operation import DONE, ISSUED
from hal._engine.submission import Submission
from hal._engine.timelines import Timeline, Timepoint
from hal.arguments import as_items, as_seconds
from hal.errors import ArgumentTypeError


class Fence:
    """A set of timepoints, one value (the highest) per semaphore; immutable.

    It may stand in any wait list and is reached once all of its timepoints are.
    An empty fence is reached. Model: IREE's ``iree_hal_fence_t``.
    """

    __slots__ = ("_entries",)

    def __init__(self, timepoints: Waits = ()) -> None:
        self._entries = distinct(wait_entries(timepoints))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Timepoint]:
        return iter(self._entries)

    def __or__(self, other: Fence) -> Fence:
        """Return the fence of both sets."""
        if not isinstance(other, Fence):
            return NotImplemented
        return Fence((*self._entries, *other._entries))

    def __repr__(self) -> str:
        return f"<Fence {list(self._entries)}>"

    def poll(self) -> bool:
        """Return whether every timepoint is reached; never blocks; raises a failure."""
        return waiting.poll_all(self._entries)

    def wait(self, timeout: SupportsFloat | None = None) -> None:
        """Block until every timepoint is reached; errors as `wait_all`."""
        waiting.wait_all(self._entries, timeout)

    def fail(self, error: BaseException) -> None:
        """Fail every semaphore of the set with `error`."""
        for timepoint in self._entries:
            timepoint.semaphore.fail(error)


Waits: TypeAlias = Iterable[Timepoint | Submission | Fence] | Timepoint | Submission | Fence
"""A wait list: timepoints, submissions and fences, or a single one."""


def wait_entries(
    waits: Waits, left_of: Callable[[tuple[Any, ...]], list[Any]] | None = None
) -> tuple[Timepoint, ...]:
    """Return a wait list as timepoints.

    `left_of` may leave out of a list with other things than timepoints what has ended by now.
    Raises `ArgumentTypeError` for anything but a timepoint, submission
    or fence, or an iterable of them.
    """
    items = (waits,) if isinstance(waits, _KINDS) else as_items(waits, _RULE)
    if set(map(type, items)) == {Timepoint}:
        return items
    entries: list[Timepoint] = []
    for wait in items if left_of is None else left_of(items):
        entries += _entries_of(wait)
    return tuple(entries)


def _entries_of(wait: object) -> tuple[Timepoint, ...]:
    """Return one thing of a wait list as timepoints."""
    if isinstance(wait, Timepoint):
        return (wait,)
    if isinstance(wait, Submission):
        return (wait._as_timepoint(),)
    if isinstance(wait, Fence):
        return wait._entries
    raise ArgumentTypeError(f"{_RULE}, not {type(wait).__name__}")


def distinct(timepoints: tuple[Timepoint, ...]) -> tuple[Timepoint, ...]:
    """Return the highest timepoint of each semaphore, whose value covers all lower ones (S2)."""
    if len(timepoints) < 2:  # noqa: PLR2004 - then they are
        return timepoints
    highest: dict[Timeline, Timepoint] = {}
    for each in timepoints:
        known = highest.get(each._semaphore)
        if known is None or each._value > known._value:
            highest[each._semaphore] = each
    return tuple(highest.values())


_KINDS: Final = (Timepoint, Submission, Fence)
_RULE: Final = "a wait list takes timepoints (semaphore.at(value)), submissions and fences"


def awaited(result: object) -> tuple[Timepoint, ...]:
    """Return the waits that a host function's result defers its end to; empty for other results."""
    results = result if isinstance(result, (list, tuple)) else (result,)
    if not any(isinstance(each, _KINDS) for each in results):
        return ()
    for each in results:
        if not isinstance(each, _KINDS):
            raise ArgumentTypeError(
                "the function of call() returned a list of things to wait for with a "
                f"{type(each).__name__} among them; return timepoints, submissions and "
                "fences only, or none"
            )
    return distinct(wait_entries(results))


def wait_all(timepoints: Waits, timeout: SupportsFloat | None = None) -> None:
    """Block until every timepoint is reached, for at most `timeout` seconds.

    None means forever; an empty list returns at once. Raises the failure of a
    failed semaphore of the set as soon as there is one, as a fresh exception, and
    `DeadlineExceededError` at the time-out (S6).
    """
    begun = sync.monotonic()
    seconds = None if timeout is None else as_seconds(timeout)

    def left_of(waits: tuple[Any, ...]) -> list[Any]:
        """Ask the submissions for as long as that pays, and return the rest of a wait list.

        Most submissions end within that time, and then need no timepoint. The last comes first:
        once it has ended, those before it on its queue have, with no question of their own.
        """
        end = begun + waiting.POLL_SECONDS
        rest = []
        for wait in reversed(waits):
            if isinstance(wait, Submission):
                if wait._state == ISSUED and sync.monotonic() < end:
                    waiting.spin_for_operation(wait, seconds)
                if wait._state == DONE:
                    continue
            rest.append(wait)
        rest.reverse()
        return rest

    entries = wait_entries(timepoints, left_of)
    if entries:
        waiting.wait_all(entries, seconds, begun=begun)


def wait_any(timepoints: Waits, timeout: SupportsFloat | None = None) -> int | None:
    """Block until a timepoint is reached and return its index; errors as `wait_all`.

    Returns the lowest index if several are reached, and None, at once, for an empty list. A
    fence counts as a whole. A failure in the set ends the wait even if
    another entry is reached (S6).
    """
    if isinstance(timepoints, _KINDS):
        timepoints = (timepoints,)
    groups = [wait_entries((entry,)) for entry in as_items(timepoints, _RULE)]
    return waiting.wait_groups(groups, timeout)
