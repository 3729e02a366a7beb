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

    Attributes
    ----------
    process, started
        The number of the process that made it, and when that began, in the
        system's clock ticks since its boot.
    boot, user
        The system's name of that boot, and the user's number.
    file
        The number of the process's file behind it.
    secret
        16 random bytes, which stand in that file too.
    """

    process: int
    started: int
    boot: str
    user: int
    file: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreTicket(Ticket):
    """A ticket of a semaphore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferTicket(Ticket):
    """A ticket of a buffer.

    Attributes
    ----------
    offset, size
        Which bytes of the shared memory it is.
    dtype, shape
        Its elements' type, as numpy's files write it or ``"bfloat16"``, and its shape.
    denied
        The rights that it lacks.
    device, handle
        The ``uuid`` of the device, and the driver's handle, of device memory; else empty.
    """

    offset: int
    size: int
    dtype: Any  # a text, or a list for a structure
    shape: tuple[int, ...]
    denied: int
    device: str = ""
    handle: bytes = field(default=b"", repr=False)
