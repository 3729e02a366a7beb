"""Groups that were closed: they are freed once all of their ranks have closed them.

To free a communicator takes all ranks, and a rank that waited for the others might wait for one
that is gone. So nobody waits: each join, split, rebuild and close frees what all have closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from hal.handlers import dropped
from hal_mpi import _mpi

__all__ = ["ANSWERS", "ClosedGroup", "free", "kept", "leaving"]

ANSWERS: Final = 0.5
"""Seconds that a rank waits for answers before it calls the others missing."""


class ClosedGroup(Protocol):
    """A group, with the questions that it is asked at its end."""

    @property
    def has_failed(self) -> bool:
        """Whether it is broken: a process of its ranks may be gone."""

    def free(self) -> bool:
        """Free what it has if all ranks have closed it; return whether nothing is left to do."""


leaving: Final[dict[ClosedGroup, None]] = {}
"""Groups that are closed here, and maybe not on all ranks."""
kept: Final[dict[ClosedGroup, None]] = {}
"""Groups whose memory MPI may use."""
_mpi.keep((leaving, kept))

_freeing: Final[dict[str, object]] = {}
"""The call that frees groups which have failed: for good, if a process is gone and MPI hangs."""


def free() -> None:
    """Free the groups that all ranks have closed: no rank waits for that, or it might hang."""
    groups = list(leaving)
    broken = [group for group in groups if group.has_failed]
    _free_some([group for group in groups if not group.has_failed])
    if broken and not _freeing:
        _mpi.apart(_free_broken, 2 * ANSWERS, broken)


def _free_broken(groups: Sequence[ClosedGroup]) -> None:
    mine = object()
    if _freeing.setdefault("", mine) is mine:
        _free_some(groups)
        _freeing.clear()


def _free_some(groups: Sequence[ClosedGroup]) -> None:
    for group in groups:
        is_done = True  # also if MPI has failed: the group keeps its communicator then
        with dropped(Exception):
            is_done = group.free()
        if is_done:
            leaving.pop(group, None)
