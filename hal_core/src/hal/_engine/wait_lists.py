"""Check the wait and signal lists of submissions (rule S1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from hal._engine.backlog import CheckedWaits
from hal._engine.fence import distinct, wait_entries
from hal._engine.submission import Submission
from hal._engine.timelines import Timeline, Timepoint
from hal.arguments import as_items
from hal.errors import ArgumentTypeError, InvalidArgumentError

Signals: TypeAlias = Iterable[Timepoint] | Timepoint
"""A signal list, or the one timepoint in it."""

_Pairs: TypeAlias = tuple[Timepoint, ...]

_NOTHING: Final = ()
_WAITABLE: Final = (Timepoint, Submission)
_SIGNALS: Final = "a signal list takes timepoints (semaphore.at(value))"


def check_lists(
    wait: Any,  # noqa: ANN401 - as users give them
    signal: Any,  # noqa: ANN401
) -> tuple[CheckedWaits, _Pairs]:
    """Check a wait and a signal list, and return them as tuples.

    Each semaphore stands once in each, and is signalled above the value that it is
    waited for (S1).
    """
    if wait is _NOTHING and signal is _NOTHING:  # the defaults: there is one empty tuple
        return _NOTHING, _NOTHING
    # Lists of one are on the hottest path.
    waits: CheckedWaits = tuple(wait) if type(wait) is list else wait
    if type(waits) is not tuple or len(waits) != 1 or type(waits[0]) not in _WAITABLE:
        waits = _check_waits(waits)
    signals: _Pairs = tuple(signal) if type(signal) is list else signal
    if type(signals) is not tuple or len(signals) != 1 or type(signals[0]) is not Timepoint:
        signals = check_signals(signals)
    for timepoint in signals:
        semaphore = timepoint._semaphore
        for each in waits:
            # A submission's semaphore is made when it is needed first.
            other = each if isinstance(each, Timepoint) else each._private
            if other is None or other._semaphore is not semaphore:
                continue
            if timepoint._value <= other._value:
                raise InvalidArgumentError(
                    f"the operation waits for {semaphore.name}@{other._value} and signals "
                    f"{semaphore.name}@{timepoint._value}: it would wait for itself; signal more "
                    f"than {other._value}"
                )
    return waits, signals


def _check_waits(wait: Any) -> CheckedWaits:  # noqa: ANN401 - as users give them
    """Return a wait list as a tuple of distinct entries; raise if it is malformed.

    One or two submissions stay as they are: they need no semaphores.
    """
    if wait is None:
        return ()
    if type(wait) in _WAITABLE:
        return (wait,)
    if type(wait) is tuple and len(wait) == 2:  # noqa: PLR2004 - common, too
        one, other = wait
        if type(one) is type(other) is Submission and one is not other:
            return wait
        if type(one) is type(other) is Timepoint and one._semaphore is not other._semaphore:
            return wait
    return distinct(wait_entries(wait))


def check_signals(signal: Any) -> _Pairs:  # noqa: ANN401
    """Return a signal list as timepoints; raise if it is malformed."""
    if signal is None or (type(signal) is tuple and not signal):
        return ()
    if isinstance(signal, Timepoint):
        return (signal,)
    entries = as_items(signal, _SIGNALS)
    seen: set[Timeline] = set()
    for entry in entries:
        if not isinstance(entry, Timepoint):
            message = f"{_SIGNALS}, not {type(entry).__name__}"
            raise ArgumentTypeError(message)
        if entry._semaphore in seen:
            raise InvalidArgumentError(f"{entry._semaphore.name} stands twice in the signal list")
        seen.add(entry._semaphore)
    return entries
