"""Check the wait and signal lists of submissions (rule S1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from hal._engine.backlog import CheckedWaits
from hal._engine.fence import distinct, wait_entries
from hal._engine.semaphore import Semaphore
from hal._engine.submission import Submission
from hal._engine.timelines import Timepoint
from hal.arguments import as_items
from hal.errors import ArgumentTypeError, InvalidArgumentError

Signals: TypeAlias = Iterable[Timepoint] | Timepoint
"""A signal list, or the one timepoint in it."""

_Pairs: TypeAlias = tuple[Timepoint, ...]

_NOTHING: Final = ()
_WAITABLE: Final = (Timepoint, Submission)
_SIGNALLABLE: Final = (Timepoint,)
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
    waits: CheckedWaits | None = _plain(wait, _WAITABLE)
    if waits is None:
        waits = distinct(wait_entries(wait))
    signals: _Pairs | None = _plain(signal, _SIGNALLABLE)
    if signals is None:
        signals = check_signals(signal)
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


def _plain(given: Any, kinds: tuple[type, ...]) -> tuple[Any, ...] | None:  # noqa: ANN401 - as users give them
    """Return a list of at most two entries, of one of these kinds and distinct, as a tuple.

    Returns None for any other: this is on the hottest path. Submissions stay as they are.
    """
    kind = type(given)
    if kind is not tuple and kind is not list:
        return (given,) if kind in kinds else () if given is None else None
    entries = tuple(given)  # itself, if it is one
    count = len(entries)
    if count == 1:
        return entries if type(entries[0]) in kinds else None
    if not count:
        return entries
    one, other = entries[:2]
    kind = type(one)
    if count > 2 or kind not in kinds or type(other) is not kind or one is other:  # noqa: PLR2004
        return None
    return None if kind is Timepoint and one._semaphore is other._semaphore else entries


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
            message = f"{_SIGNALS}, not {type(entry).__name__}"
            raise ArgumentTypeError(message)
        if entry._semaphore in seen:
            raise InvalidArgumentError(f"{entry._semaphore.name} stands twice in the signal list")
        seen.add(entry._semaphore)
    return entries
