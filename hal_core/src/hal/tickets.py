"""Tickets: what one process gives to another so that it can open its memory or semaphore.

A ticket is small and can be pickled, sent through a pipe or written to a file. It is a
capability: it holds 128 random bits, and the system checks the user besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["BufferTicket", "SemaphoreTicket", "Ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A ticket: `Buffer.share` and `Semaphore.share` return it, and `Device.open` takes it.

    Valid on this host, until its next boot, for processes of the same user, as
    long as the process that made it has not closed what it shared. It keeps nothing alive.
    """

    process: int
    """The number of the process that made it."""
    started: int
    """When that process began, in the system's clock ticks since its boot."""
    boot: str
    """The system's name of that boot."""
    user: int
    """The user's number."""
    file: int
    """The number of the process's file behind it."""
    secret: bytes = field(repr=False)
    """16 random bytes, which stand in that file too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreTicket(Ticket):
    """A ticket of a semaphore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferTicket(Ticket):
    """A ticket of a buffer: of `size` bytes of the shared memory, from `offset` on."""

    offset: int
    size: int
    dtype: Any
    """Its elements' type as numpy's files write it, a text or a list, or ``"bfloat16"``."""
    shape: tuple[int, ...]
    denied: int
    """The rights that it lacks."""
    device: str = ""
    """The ``uuid`` of the device whose memory it is; empty for the host's."""
    handle: bytes = field(default=b"", repr=False)
    """The driver's handle of device memory."""
