"""What an operation does when it is issued: one native call, or a plan of several (C4, Q1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from hal._engine.operation import Operation

__all__ = ["NOTHING", "Payload", "Plan"]


class Plan:
    """How an operation is issued that takes more than one native call.

    One thread at a time uses it, the holder of its queue's baton.

    Attributes
    ----------
    left
        How many native launches are left.
    is_starved
        Whether it found no memory; nothing was enqueued then.
    """

    __slots__ = ("is_starved", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.is_starved = False

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, `most` at most, and return how many those were."""
        raise NotImplementedError


Payload: TypeAlias = tuple[Callable[..., object] | Plan | None, tuple[Any, ...], object]
"""What is called with the native stream and the arguments, and what is kept until it has retired.

A host operation's function gets no stream: it runs on a thread of the pool.
"""

NOTHING: Final[Payload] = (None, (), None)
"""What enqueues nothing: zero sizes and barriers still order and signal (C4)."""
