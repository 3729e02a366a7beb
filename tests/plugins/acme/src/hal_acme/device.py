"""Implement hal's native primitives on the vendor's library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, TypeVar

from hal.errors import DeviceLostError, UnimplementedError
from hal.native import DeviceInfo, FunctionInfo, MemoryType, NativeDevice
from hal_acme import _driver

__all__ = ["AcmeDevice"]

_Notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Handle = TypeVar("_Handle")


class AcmeDevice(NativeDevice):
    """Make native calls on one Acme device."""

    __slots__ = ("_context", "_events", "_handles", "_streams")

    def __init__(
        self,
        domain: object,
        info: DeviceInfo,
        context: _driver.Context,
        events: dict[int, _driver.Event],
        handles: Iterator[int],
    ) -> None:
        self.info = info
        self.features = frozenset({"pageable_copies"})
        self.domain = domain
        self.max_in_flight = 64
        self._context = context
        self._events = events
        self._handles = handles
        self._streams: dict[int, _driver.Stream] = {}

    # Context

    def bind(self) -> None:
        """Do nothing: the library keeps no current context."""

    def close(self) -> None:
        """Do nothing: the context goes with this object."""

    # Streams and events

    def create_stream(self) -> int:
        """Start a stream's thread."""
        return self._keep(self._streams, _driver.Stream(self._context))

    def destroy_stream(self, stream: int) -> None:
        """End the stream's thread."""
        self._streams.pop(stream).destroy()

    def synchronize_stream(self, stream: int) -> None:
        """Block until the stream is idle."""
        with _driver.mapped_errors():
            self._streams[stream].synchronize()

    def create_event(self) -> int:
        """Create an event."""
        return self._keep(self._events, _driver.Event())

    def destroy_event(self, event: int) -> None:
        """Forget the event."""
        del self._events[event]

    def record_event(self, event: int, stream: int) -> None:
        """Record the event."""
        with _driver.mapped_errors():
            self._streams[stream].record(self._events[event])

    def wait_event(self, stream: int, event: int) -> None:
        """Hold the stream until the event's present record has completed."""
        with _driver.mapped_errors():
            self._streams[stream].wait(self._events[event])

    def query_event(self, event: int) -> bool:
        """Return whether the event's last record has completed."""
        if self._context.fault is not None:
            raise DeviceLostError(f"the Acme context is lost: {self._context.fault!r}")
        latch = self._events[event].latch
        return latch is None or latch.is_set()

    def notify(self, stream: int, function: int, argument: int) -> None:
        """Call the C function on the stream's thread."""
        call = _Notify(function)
        self._enqueue(stream, call, argument)

    # Memory

    def allocate(self, size: int, memory: MemoryType) -> int:
        """Take memory off the device's share."""
        with _driver.mapped_errors():
            return self._context.allocate(size)

    def free(self, address: int, memory: MemoryType) -> None:
        """Give memory back."""
        self._context.free(address)

    def host_pointer(self, address: int, memory: MemoryType) -> int | None:
        """Return the address, but for device memory, which a real device hides as well."""
        return None if memory is MemoryType.DEVICE else address

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of the share."""
        return self._context.free_memory(), self._context.limit

    # Transfers

    def fill(self, stream: int, address: int, pattern: int, width: int, count: int) -> None:
        """Fill on the stream's thread."""
        unit = pattern.to_bytes(8, "little")[:width]
        self._enqueue(stream, _fill, address, unit, count)

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy on the stream's thread."""
        self._enqueue(stream, ctypes.memmove, target, source, size)

    copy_from_host = copy
    copy_to_host = copy

    # Kernels

    def load_module(self, image: bytes) -> int:
        """Refuse."""
        _no_kernels()

    def unload_module(self, module: int) -> None:
        """Refuse."""
        _no_kernels()

    def get_function(self, module: int, name: str) -> int:
        """Refuse."""
        _no_kernels()

    def function_info(self, function: int) -> FunctionInfo:
        """Refuse."""
        _no_kernels()

    def get_global(self, module: int, name: str) -> tuple[int, int]:
        """Refuse."""
        _no_kernels()

    def launch(
        self,
        stream: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        """Refuse."""
        _no_kernels()

    def _keep(self, table: dict[int, _Handle], thing: _Handle) -> int:
        """Return a new handle for a thing."""
        handle = next(self._handles)
        table[handle] = thing
        return handle

    def _enqueue(self, stream: int, function: Callable[..., object], *arguments: object) -> None:
        """Let the stream's thread call a function."""
        with _driver.mapped_errors():
            self._streams[stream].enqueue(partial(function, *arguments))


def _fill(address: int, unit: bytes, count: int) -> None:
    """Write a pattern, then double what is written until all is."""
    ctypes.memmove(address, unit, len(unit))
    done, size = len(unit), len(unit) * count
    while done < size:
        step = min(done, size - done)
        ctypes.memmove(address + done, address, step)
        done += step


def _no_kernels() -> NoReturn:
    """State that there are no kernels here."""
    raise UnimplementedError("Acme devices copy and fill; they run no kernels")
