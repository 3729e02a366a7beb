"""Stand in for the vendor's library: streams, events and memory with a GPU's rules.

A real plugin has no such module; it calls the vendor's bindings. Here a device
is a share of the host's memory, and a stream is a thread that runs what was
enqueued, in order.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable

__all__ = ["DEVICES", "DEVICE_MEMORY", "VERSION", "AcmeError", "Context", "Event", "Stream"]

VERSION = "1.4"
DEVICES = 2
DEVICE_MEMORY = 256 << 20
"""Bytes of memory of each device."""

_libc = ctypes.CDLL(None)
_libc.posix_memalign.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None


class AcmeError(Exception):
    """Report what the library refused, by the vendor's name and number."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(name)
        self.name = name
        self.code = code


class Event:
    """Stand for the work that a stream had when the event was last recorded."""

    __slots__ = ("latch",)

    def __init__(self) -> None:
        self.latch: threading.Event | None = None  # None until recorded, which counts as complete


class Stream:
    """Run what is enqueued, in order, on a thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="acme-stream", daemon=True)
        self._thread.start()

    def enqueue(self, work: Callable[[], object]) -> None:
        """Let the thread call `work` after everything before it."""
        if self._context.fault is not None:
            raise AcmeError("ACME_CONTEXT_LOST", 700)
        self._work.put(work)

    def record(self, event: Event) -> None:
        """Let the event stand for everything enqueued so far."""
        latch = threading.Event()
        self.enqueue(latch.set)
        event.latch = latch

    def wait(self, event: Event) -> None:
        """Hold back later work until the event's last record, as it is now, has completed."""
        if event.latch is not None:
            self.enqueue(event.latch.wait)

    def synchronize(self) -> None:
        """Block until everything enqueued so far is done."""
        latch = threading.Event()
        self.enqueue(latch.set)
        latch.wait()

    def destroy(self) -> None:
        """Let the thread end after what is enqueued, and wait for that."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Act as the thread; after a fault go on, so that no waiter for an event hangs."""
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the context is lost
                self._context.fault = error


class Context:
    """Hold one device's memory and say whether the device still works."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.fault: Exception | None = None
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._used = 0

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes, aligned to 256, with whatever is in them."""
        address = ctypes.c_void_p()
        with self._lock:
            if self._used + size > self.limit:
                raise AcmeError("ACME_OUT_OF_MEMORY", 2)
            if _libc.posix_memalign(ctypes.byref(address), 256, size) or not address.value:
                raise AcmeError("ACME_OUT_OF_MEMORY", 2)
            self._sizes[address.value] = size
            self._used += size
            return address.value

    def free(self, address: int) -> None:
        """Give the bytes back."""
        with self._lock:
            self._used -= self._sizes.pop(address)
        _libc.free(address)

    def free_memory(self) -> int:
        """Return how many bytes are left."""
        return self.limit - self._used
