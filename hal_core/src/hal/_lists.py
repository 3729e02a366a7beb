"""Check the wait and signal lists of submissions (rule S1)."""

from __future__ import annotations

from typing import Any, TypeAlias

from hal._fence import Fence, wait_entries
from hal._semaphore import Semaphore
from hal._submission import Submission
from hal._timeline import Timepoint
from hal.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["check_lists"]

_Pairs: TypeAlias = tuple[Timepoint, ...]


def check_lists(  # noqa: PLR0912 - calls are what it costs
    wait: Any,  # noqa: ANN401 - as users give them
    signal: Any,  # noqa: ANN401
) -> tuple[_Pairs, _Pairs]:
    """Check a wait and a signal list, and return them as pairs.

    Each semaphore stands once in each, and is signalled above what it is
    waited for (S1). On the hottest path: lists of one timepoint or submission
    are looked at first.
    """
    waits: _Pairs = ()
    signals: _Pairs = ()
    if wait:
        kind = type(wait)
        if (kind is list or kind is tuple) and len(wait) == 1:
            first = wait[0]
            what = type(first)
            if what is Timepoint:
                waits = (first,)
            elif what is Submission:
                waits = (first._as_timepoint(),)
            else:
                waits = wait_entries(wait)
        else:
            waits = wait_entries(wait)
            if len(waits) > 1 and not _are_two(waits):
                waits = Fence(waits)._entries
    if signal:
        kind = type(signal)
        if (kind is list or kind is tuple) and len(signal) == 1:
            first = signal[0]
            if type(first) is not Timepoint:
                raise ArgumentTypeError(_not_signal(first))
            signals = (first,)
        else:
            signals = _signal_entries(signal)
        for timepoint in signals:
            semaphore, value = timepoint._semaphore, timepoint._value
            for other in waits:
                waited, least = other._semaphore, other._value
                if waited is semaphore and value <= least:
                    message = (
                        f"the operation waits for {semaphore.name}@{least} and signals "
                        f"{semaphore.name}@{value}: it would wait for itself; "
                        f"signal more than {least}"
                    )
                    raise InvalidArgumentError(message)
    return waits, signals


def _are_two(waits: _Pairs) -> bool:
    """Return whether these are two timepoints of two semaphores, as often in practice."""
    return len(waits) == 2 and waits[0]._semaphore is not waits[1]._semaphore  # noqa: PLR2004


def _signal_entries(signal: Any) -> _Pairs:  # noqa: ANN401
    """Return a signal list as pairs, or raise what is wrong with it."""
    if isinstance(signal, Timepoint):
        return (signal,)
    try:
        entries = tuple(signal)
    except TypeError:
        raise ArgumentTypeError(_not_signal(signal)) from None
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
    return f"a signal list takes timepoints (semaphore.at(value)), not {type(entry).__name__}"
