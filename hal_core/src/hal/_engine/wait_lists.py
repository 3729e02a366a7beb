"""Check the wait and signal lists of submissions (rule S1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hal._engine.fence import distinct, wait_entries
from hal._engine.semaphore import Semaphore
from hal._engine.submission import Submission
from hal._engine.timelines import Timepoint
from hal.arguments import as_items
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._engine.backlog import CheckedWaits

__all__ = ["Signals", "check_lists", "check_signals"]

Signals: TypeAlias = Iterable[Timepoint] | Timepoint
"""A signal list, or the one timepoint in it."""

_Pairs: TypeAlias = tuple[Timepoint, ...]

_SIGNALS: Final = "a signal list takes timepoints (semaphore.at(value))"


def check_lists(
    wait: Any,  # noqa: ANN401 - as users give them
    signal: Any,  # noqa: ANN401
) -> tuple[CheckedWaits, _Pairs]:
    """Check a wait and a signal list, and return them as tuples.

    Each semaphore stands once in each, and is signalled above the value that it is
    waited for (S1). On the hottest path, so lists of one or two, in which submissions
    stay as they are, come first.
    """
    waits: CheckedWaits = ()
    signals: _Pairs = ()
    kind = type(wait)
    if kind is tuple or kind is list:
        if wait:
            waits = tuple(wait) if _are_plain(wait) else distinct(wait_entries(wait))
    elif kind is Submission or kind is Timepoint:
        waits = (wait,)
    elif wait is not None:  # not by truthiness: arrays raise, and strings are iterable
        waits = distinct(wait_entries(wait))
    kind = type(signal)
    if (kind is not tuple and kind is not list) or len(signal) > 1:
        signals = check_signals(signal)
    elif signal:
        first = signal[0]
        if type(first) is not Timepoint:
            raise ArgumentTypeError(_not_signal(first))
        signals = (first,)
    for timepoint in signals:
        semaphore, value = timepoint._semaphore, timepoint._value
        for each in waits:
            other = each if isinstance(each, Timepoint) else each._private
            if other is None:  # its semaphore does not exist yet
                continue
            waited, least = other._semaphore, other._value
            if waited is semaphore and value <= least:
                message = (
                    f"the operation waits for {semaphore.name}@{least} and signals "
                    f"{semaphore.name}@{value}: it would wait for itself; "
                    f"signal more than {least}"
                )
                raise InvalidArgumentError(message)
    return waits, signals


def _are_plain(wait: Any) -> bool:  # noqa: ANN401
    """Return whether this is a timepoint or submission, or two of a kind that differ."""
    count = len(wait)
    one = wait[0]
    kind = type(one)
    if count == 1:
        return kind is Timepoint or kind is Submission
    other = wait[1]
    if count != 2 or type(other) is not kind:  # noqa: PLR2004
        return False
    if kind is Timepoint:
        return one._semaphore is not other._semaphore
    return kind is Submission and one is not other


def check_signals(signal: Any) -> _Pairs:  # noqa: ANN401
    """Return a signal list as timepoints; raise if it is malformed."""
    if signal is None or (type(signal) is tuple and not signal):
        return ()
    if isinstance(signal, Timepoint):
        return (signal,)
    entries = as_items(signal, _SIGNALS)
    seen: set[Semaphore] = set()
    for entry in entries:
        if not isinstance(entry, Timepoint):
            raise ArgumentTypeError(_not_signal(entry))
        if entry._semaphore in seen:
            message = f"{entry._semaphore.name} stands twice in the signal list"
            raise InvalidArgumentError(message)
        seen.add(entry._semaphore)
    return entries


def _not_signal(entry: object) -> str:
    return f"{_SIGNALS}, not {type(entry).__name__}"
