"""Shared by the tests that run on a device short of memory."""

from __future__ import annotations

import time
from typing import Final, Protocol
from weakref import WeakSet

import hal
from hal_conformance.suite.support import LIMIT, Hold

__all__ = [
    "BIG",
    "BLOCK",
    "ROOM",
    "MakeHold",
    "allocation",
    "cycle",
    "give_back_behind",
    "held",
    "of_the_driver",
    "until_issued",
]

ROOM: Final = 4 << 20
"""Bytes that there are."""

BLOCK: Final = 1 << 19
"""Bytes of an allocation of which there is room for a few."""

BIG: Final = 3 << 20
"""Bytes of one of which there is room for a single one, and for small things beside it."""


POOLS: Final[dict[str, dict[str, str]]] = {"own": {"async_allocations": "false"}, "native": {}}
"""Where allocas have device memory from: the core's pool, or the driver's where there is one."""

of_the_driver: Final[WeakSet[hal.Device]] = WeakSet()
"""Devices whose allocas the driver's own pool may serve."""


def held(device: hal.Device) -> int:
    """Return the bytes held that count against `ROOM`.

    What the driver's pool keeps does not count: it takes memory in units of its own.
    """
    there = device.statistics()
    return there.bytes_held - (there.bytes_cached if device in of_the_driver else 0)


class MakeHold(Protocol):
    """Makes kernels that hold up a queue, and are released at the end of the test."""

    def __call__(self, queue: hal.Queue) -> Hold: ...


def allocation(buffer: hal.Buffer) -> hal.Submission:
    """Return the handle of a buffer's alloca."""
    assert buffer.allocation is not None
    return buffer.allocation


def cycle(
    queue: hal.Queue, size: int, value: int = 0, memory: str = "device"
) -> list[hal.Submission]:
    """Allocate, fill and give back; return the three submissions."""
    buffer = queue.alloca(size, memory=memory)
    return [allocation(buffer), queue.fill(buffer, value % 256), queue.dealloca(buffer)]


def give_back_behind(
    make_hold: MakeHold, queue: hal.Queue, size: int, memory: str = "device"
) -> Hold:
    """Allocate, and give the memory back behind a kernel that is held.

    Until the kernel is released no other queue gets the memory, and allocas that
    need it have something to wait for.
    """
    buffer = queue.alloca(size, memory=memory)
    queue.fill(buffer, 0).wait(LIMIT)
    hold = make_hold(queue)
    queue.fill(buffer, 1)
    until_issued(queue.dealloca(buffer))
    return hold


def until_issued(submission: hal.Submission) -> None:
    """Block until an operation is issued, or has ended; check that it has not failed.

    Not a wait for its end: behind a held kernel it does not end.
    """
    deadline = time.monotonic() + LIMIT
    while submission.state == "pending":
        assert time.monotonic() < deadline, f"it is not issued: {submission}"
        time.sleep(0.0005)
    assert submission.error is None
