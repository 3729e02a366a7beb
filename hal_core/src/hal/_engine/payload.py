"""The issue of an operation: one native call, or a sequence of several (C4, Q1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from hal._engine.operation import Operation


class CallSequence:
    """The issue of an operation that takes more than one native call.

    One thread at a time uses it, the holder of its queue's baton.
    """

    __slots__ = ("is_starved", "left")

    def __init__(self, count: int) -> None:
        self.left = count  # how many native launches are left
        self.is_starved = False  # whether it found no memory; nothing was enqueued then

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, at most `most`, and return their number."""
        raise NotImplementedError


Payload: TypeAlias = tuple[Callable[..., object] | CallSequence | None, tuple[Any, ...], object]
"""The function to call with the native stream, its arguments, and what to keep until retirement.

A host operation's function gets no stream: it runs on a thread of the pool.
"""

Checked: TypeAlias = tuple[Payload, bool]
"""What the check of an operation returns: its payload, and whether that is a host operation."""

NOTHING: Final[Payload] = (None, (), None)
"""Enqueues nothing: zero sizes and barriers still order and signal (C4)."""
