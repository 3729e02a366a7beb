"""The commonest numbers of operations, queues and books, as bases of their classes.

The C extension has them as numbers of C's. Without it they are slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal._base import speedups

if TYPE_CHECKING or speedups.module is None:

    class OperationNumbers:
        """The place of an operation in its queue; 0 before it is issued."""

        __slots__ = ("_launched", "_sequence")

        _launched: int
        _sequence: int

    class QueueNumbers:
        """The progress of a queue: its last operation, launches, and how many have retired."""

        __slots__ = ("_launched", "_retired", "_sequence")

        _launched: int
        _retired: int
        _sequence: int

    class BooksNumbers:
        """The sum that each alloca and dealloca of the driver's pool changes."""

        __slots__ = ("pooled",)

        pooled: int

else:
    OperationNumbers = speedups.module.OperationNumbers
    QueueNumbers = speedups.module.QueueNumbers
    BooksNumbers = speedups.module.BooksNumbers
