"""The errors of broken groups: who, what, and the last operations of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final

from hal.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RendezvousError,
)
from hal.native_collectives import CollectiveStep

RECORDS: Final = 16
"""Operations of each rank that are remembered."""

_SHOWN: Final = 3
_Records = Mapping[int, Sequence[str]]


def ranks_named(ranks: Iterable[int]) -> str:
    """Return ranks as words: ``rank 2``, ``ranks 0, 2``."""
    numbers = sorted(ranks)
    plural = "s" if len(numbers) > 1 else ""
    return f"rank{plural} {', '.join(map(str, numbers))}"


def mismatch(name: str, said: Mapping[int, str], records: _Records) -> CollectiveMismatchError:
    """Return the error of ranks that submitted different operations."""
    words = "; ".join(f"rank {rank}: {step}" for rank, step in sorted(said.items()))
    return CollectiveMismatchError(
        f"the ranks of {name} do not agree: {words}. Every rank submits the same operations, in "
        f"the same order{_last(records)}",
        ranks=sorted(said),
        records=records,
    )


def timed_out(
    name: str,
    rank: int,
    step: CollectiveStep,
    seconds: float,
    missing: Sequence[int],
    records: _Records,
) -> CollectiveTimeoutError:
    """Return the error of an operation that did not end in time."""
    who = f"{ranks_named(missing)} has not come" if missing else "it is not known who is late"
    if len(missing) > 1:
        who = f"{ranks_named(missing)} have not come"
    return CollectiveTimeoutError(
        f"{step} of {name} did not end within {seconds:g} s on rank {rank}: {who}; see why, or "
        f"give join() a longer timeout{_last(records)}",
        ranks=missing,
        records=records,
    )


def withdrawn(
    name: str, rank: int, step: CollectiveStep, cause: BaseException, records: _Records
) -> CollectiveError:
    """Return the error of an operation that a rank did not run, or that failed there."""
    error = CollectiveError(
        f"rank {rank} of {name} did not run {step}: {cause}{_last(records)}",
        ranks=(rank,),
        records=records,
    )
    error.__cause__ = cause
    return error


def not_all_came(name: str, rank: int, missing: Sequence[int], seconds: float) -> RendezvousError:
    """Return the error of ranks that have waited for others in vain."""
    who = f"{ranks_named(missing)} did not" if missing else "not all did"
    return RendezvousError(
        f"rank {rank} waited {seconds:g} s for all ranks of {name} to come, and {who}; start one "
        "process or thread for each rank, with the same size and rendezvous",
        ranks=missing,
    )


def again(error: CollectiveError) -> CollectiveError:
    """Return an error like a kept one, to raise."""
    made = copy(error)
    made.__cause__ = error.__cause__
    if hasattr(made, "__notes__"):  # which who raises it may add to
        made.__notes__ = [*made.__notes__]
    return made


def _last(records: _Records) -> str:
    lines = [
        f"\n  rank {rank}: {', '.join(steps[-_SHOWN:])}"
        for rank, steps in sorted(records.items())
        if steps
    ]
    return f".\nThe last operations of each rank:{''.join(lines)}" if lines else ""
