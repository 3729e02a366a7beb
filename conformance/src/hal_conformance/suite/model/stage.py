"""The stage of programs: a device, its queues, and the buffers that they share."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final

import hal
from hal_conformance.suite.model.things import Access, Memory
from hal_conformance.suite.support import LIMIT

__all__ = ["LARGE", "SIZE", "Handle", "Record", "Stage"]

SIZE: Final = 96
"""Bytes of a memory."""

LARGE: Final = 80_000
"""Bytes of one that a single write cannot take during the call."""


class Handle:
    """A buffer: hal's, and the bytes that it is."""

    def __init__(self, number: int, memory: Memory, offset: int, size: int, real: Any) -> None:  # noqa: ANN401
        self.number = number
        self.memory = memory
        self.offset = offset
        self.size = size
        self.real = real
        self.is_whole = False  # of an alloca, which a dealloca takes

    def access(self, start: int, size: int, *, writes: bool) -> Access:
        """Return what an operation on a range of it touches."""
        start += self.offset
        return Access(self.memory, start, start + size, writes)


class Stage:
    """A device and its queues, for the programs of a test.

    Attributes
    ----------
    kernel
        The suite's kernel ``mix`` on this device, if it has kernels.
    """

    def __init__(
        self,
        open_device: Callable[[], hal.Device],
        find_kernel: Callable[[hal.Device], hal.Kernel | None],
    ) -> None:
        self.open_device = open_device
        self._find_kernel = find_kernel
        self._set()

    def _set(self) -> None:
        self.device = self.open_device()
        self.kernel = self._find_kernel(self.device)
        self.reader = self.device.create_queue(ordered=False)
        self.queues = [
            self.device.queue,
            self.device.create_queue(),
            self.device.create_queue(ordered=False),
        ]
        self.lowerings = ["auto", "stream"]
        if "graphs" in self.device.features:
            self.lowerings.append("graph")
        self.visible = {heap.memory for heap in self.device.heaps if heap.host_visible}
        gc.collect()
        self.allocations = self.device.statistics().allocations

    def replace(self) -> None:
        """Open another device: on this one a program has gone wrong."""
        self.device.close(0.0)
        self._set()

    def leaks(self) -> int:
        """Return how many allocations are left, once they had time to be freed."""
        deadline = time.monotonic() + LIMIT
        while True:
            gc.collect()
            left = self.device.statistics().allocations - self.allocations
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.001)


class Record:
    """The text of the current program, and of the shortest one that has failed.

    Attributes
    ----------
    lines
        The text.
    failure
        The failed program's, and its exception; None while none has failed.
    is_over
        Whether a program was not begun because time was up.
    """

    def __init__(self, seconds: float, more: float) -> None:
        self.lines: list[str] = []
        self.failure: tuple[list[str], BaseException] | None = None
        self.is_over = False
        self._deadline = time.monotonic() + seconds
        self._more = more

    def note(self, error: BaseException) -> None:
        """Note that the program has failed; after the first failure time is short."""
        if self.failure is None:
            self._deadline = time.monotonic() + self._more
        if self.failure is None or len(self.lines) <= len(self.failure[0]):
            self.failure = self.lines.copy(), error

    def has_time(self) -> bool:
        """Return whether another program may be begun."""
        self.is_over = time.monotonic() > self._deadline
        return not self.is_over
