"""A device: bound to threads, with the order of its work, its pool, and access to others."""

from __future__ import annotations

import ctypes
import struct
import time
from collections import Counter
from typing import Final

from hal.capture_modes import captured
from hal.errors import DeviceLostError, HalError, OperationError, OutOfMemoryError
from hal.handlers import dropped, own
from hal.locks import RLock
from hal.native import CallTable, DeviceInfo, NativeDevice
from hal_hip import _driver
from hal_hip._driver import (
    NOT_READY,
    call,
    device_attribute,
    entry_point,
    fail,
    hip,
    relaxed_entry_point,
)

_ALREADY_ENABLED: Final = 704
_DEFAULT_STREAM: Final = 1 << 64
"""The handle of the null stream: positive as all are, and a null pointer in C, to which the lowest
64 bits are passed."""
_POINTER_BITS: Final = (1 << 64) - 1
_LEGACY: Final = 1

_POOL_FUNCTIONS: Final = (
    "hipMemPoolCreate",
    "hipMemPoolDestroy",
    "hipMemPoolSetAttribute",
    "hipMemPoolGetAttribute",
    "hipMemPoolTrimTo",
    "hipMallocFromPoolAsync",
    "hipFreeAsync",
)
_PINNED: Final = 1
_ON_DEVICE: Final = 1
_READ_WRITE: Final = 3
_OUT_OF_MEMORY: Final = 2
_TRIAL: Final = 4096
_FIRST_PAUSE: Final = 20e-6
_LONGEST_PAUSE: Final = 1e-3

_names: Final = hip.hipMemPoolAttr
_REUSE: Final = {
    "ordered": _names.hipMemPoolReuseFollowEventDependencies,
    "complete": _names.hipMemPoolReuseAllowOpportunistic,
    "waited for": _names.hipMemPoolReuseAllowInternalDependencies,
}
_ALLOWED: Final = {"stream": (), "ordered": ("ordered",), "any": tuple(_REUSE)}
"""The runtime's settings for each mode of `NativeDevice.configure_pool`."""

# Called by every submission.
_P: Final = ctypes.c_void_p
_set_device: Final = entry_point("hipSetDevice", ctypes.c_int)
_record: Final = entry_point("hipEventRecord", _P, _P)
_query: Final = relaxed_entry_point("hipEventQuery", _P)
_is_capturing: Final = entry_point("hipStreamIsCapturing", _P, _P)
_wait: Final = entry_point("hipStreamWaitEvent", _P, _P, ctypes.c_uint)
_N: Final = ctypes.c_uint64
_write_value: Final = entry_point("hipStreamWriteValue64", _P, _P, _N, ctypes.c_uint)
_wait_value: Final = entry_point("hipStreamWaitValue64", _P, _P, _N, ctypes.c_uint, _N)
_ALL_BITS: Final = (1 << 64) - 1
_host_function: Final = entry_point("hipLaunchHostFunc", _P, _P, _P)
_copy_peer: Final = entry_point(
    "hipMemcpyPeerAsync", _P, ctypes.c_int, _P, ctypes.c_int, ctypes.c_size_t, _P
)
_allocate: Final = relaxed_entry_point("hipMallocFromPoolAsync", _P, ctypes.c_size_t, _P, _P)
_free: Final = relaxed_entry_point("hipFreeAsync", _P, _P)
_fill: Final = entry_point("hipMemsetD8Async", _P, ctypes.c_ubyte, ctypes.c_size_t, _P)
_query_stream: Final = relaxed_entry_point("hipStreamQuery", _P)


_open: Final = Counter[int]()
"""How many devices of ours are open, by HIP's number."""
_opening: Final = RLock()
"""Held while that changes, and while a device is reset."""


def _begin_afresh(index: int, error: DeviceLostError) -> None:
    """Reset a device that has failed for good; with the lock.

    HIP has one context for each device and process, and does not tell who else
    uses it; all its users get the same error from every call.
    """
    what = "close the other devices of hal on it"
    if not _open[index]:
        try:
            call(hip.hipDeviceReset)
            call(hip.hipMemGetInfo)
        except own(HalError):
            what = "end the process, and go on in a new one"
        else:
            return
    message = f"the device has failed for this process: {what} ({error})"
    raise DeviceLostError(
        message, native_name=error.native_name, native_code=error.native_code
    ) from error


class ContextDevice(NativeDevice):
    """A device with a HIP context, and its streams, events, peers, timers and pool.

    Streams, events and the pool have HIP's own handles.

    Attributes
    ----------
    pool
        The pool of stream-ordered allocations; 0 for none.
    """

    __slots__ = ("_is_open", "_only", "pool")

    def __init__(self, info: DeviceInfo, *, only: bool) -> None:
        """Make a device current; `only` means that there is no other.

        A device that has failed is reset, unless another device of ours is on
        it: raises `DeviceLostError` then, and if a reset does not help.
        """
        self.info = info
        self._only = only
        self.pool = 0
        call(hip.hipSetDevice, info.index)
        with _opening:
            try:
                call(hip.hipMemGetInfo)
            except own(DeviceLostError) as error:
                _begin_afresh(info.index, error)
            self._is_open = True
            _open[info.index] += 1

    # Context

    def close(self) -> None:
        """Destroy the pool; HIP keeps the context until the process ends or the device is reset."""
        with _opening:
            _open[self.info.index] -= self._is_open
            self._is_open = False
        pool, self.pool = self.pool, 0
        if pool:
            with dropped(HalError):  # a lost device's went with it
                call(hip.hipMemPoolDestroy, pool)

    def bind(self) -> None:
        """Make this the calling thread's device; with only one, every thread has that."""
        if not self._only and (status := _set_device(self.info.index)):
            fail(status, _set_device)

    def call_table(self) -> CallTable | None:
        """Return the runtime's own functions; with one device, every thread may call them."""
        table = _driver.call_table(self.info.index)
        if table is None:
            return None
        return table._replace(current=0 if self._only else table.current, pool=self.pool)

    # Streams and events

    def create_stream(self) -> int:
        return int(call(hip.hipStreamCreateWithFlags, hip.hipStreamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        call(hip.hipStreamDestroy, stream)

    def synchronize_stream(self, stream: int) -> None:
        """Block until the stream is idle, by polling it; Ctrl-C ends it.

        The runtime's own blocking call may hold a lock of the runtime's meanwhile,
        and then no other thread can enqueue the work that the stream waits for.
        """
        pause = 0.0
        while (status := _query_stream(stream)) == NOT_READY:
            time.sleep(pause)
            pause = min(pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
        if status:
            fail(status, _query_stream)

    def create_event(self) -> int:
        return int(call(hip.hipEventCreateWithFlags, hip.hipEventDisableTiming))

    def destroy_event(self, event: int) -> None:
        call(hip.hipEventDestroy, event)

    def record_event(self, event: int, stream: int) -> None:
        if status := _record(event, stream):
            fail(status, _record)

    def wait_event(self, stream: int, event: int) -> None:
        if status := _wait(stream, event, 0):
            fail(status, _wait)

    def query_event(self, event: int) -> bool:
        status = _query(event)
        if not status:
            return True
        if status == NOT_READY:
            return False
        raise _driver.error_of(status, "hipEventQuery")

    def write_value(self, stream: int, address: int, value: int) -> None:
        if status := _write_value(stream, address, value, 0):
            fail(status, _write_value)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        if status := _wait_value(stream, address, value, 0, _ALL_BITS):
            fail(status, _wait_value)

    def notify(self, stream: int, function: int, argument: int) -> None:
        if status := _host_function(stream, function, argument):
            fail(status, _host_function)

    # Other devices

    def can_access_peer(self, other: NativeDevice) -> bool:
        peer, index = other.info.index, self.info.index
        return peer == index or bool(call(hip.hipDeviceCanAccessPeer, index, peer))

    def enable_peer(self, other: NativeDevice) -> None:
        """Let kernels of this device use memory of `other`, including that of its pool."""
        assert isinstance(other, ContextDevice)  # noqa: S101 - for the type checker
        if other.info.index == self.info.index:
            return
        try:
            call(hip.hipDeviceEnablePeerAccess, other.info.index, 0)
        except own(HalError) as error:
            if error.native_code != _ALREADY_ENABLED:
                raise
        if other.pool:
            access = struct.pack("<3i", _ON_DEVICE, self.info.index, _READ_WRITE)
            call(hip.hipMemPoolSetAccess, other.pool, access, 1)

    def copy_peer(
        self,
        stream: int,
        target: int,
        target_device: NativeDevice,
        source: int,
        source_device: NativeDevice,
        size: int,
    ) -> None:
        to, from_ = target_device.info.index, source_device.info.index
        if status := _copy_peer(target, to, source, from_, size, stream):
            fail(status, _copy_peer)

    # Stream-ordered allocation, from a pool of the device's own

    def _open_pool(self) -> None:
        """Create the pool, if a trial shows that it works.

        The runtime's own word is not enough: some that declare pools fail on first use.
        """
        index = self.info.index
        if not (_driver.has(*_POOL_FUNCTIONS) and device_attribute(index, "MemoryPoolsSupported")):
            return
        try:
            properties = struct.pack("<4i72x", _PINNED, 0, _ON_DEVICE, index)
            self.pool = int(call(hip.hipMemPoolCreate, properties))
            self._try_pool()
        except own(HalError) as error:
            pool, self.pool = self.pool, 0
            if pool:
                call(hip.hipMemPoolDestroy, pool)
            if isinstance(error, OutOfMemoryError):
                raise

    def _try_pool(self) -> None:
        """Allocate, use and free twice; the second time reuses the first's memory."""
        stream = self.create_stream()
        try:
            for _ in range(2):
                address = self.allocate_async(stream, _TRIAL)
                try:
                    if status := _fill(address, 0, _TRIAL, stream):
                        fail(status, _fill)
                finally:
                    self.free_async(stream, address)
            self.synchronize_stream(stream)
        finally:
            self.destroy_stream(stream)
        self.trim_pool(0)  # it then holds only what is asked for

    def configure_pool(self, keep: int, reuse: str) -> None:
        values = {_names.hipMemPoolAttrReleaseThreshold: struct.pack("<Q", keep)}
        for way, name in _REUSE.items():
            values[name] = struct.pack("<i", way in _ALLOWED[reuse])
        for name, value in values.items():
            call(hip.hipMemPoolSetAttribute, self.pool, name, value)

    def allocate_async(self, stream: int, size: int) -> int:
        """Return the address of `size` bytes, in the order of a stream.

        HIP reuses a free block only whole, for about the same size, and does not
        return it to the device by itself: this tries that before it reports a lack of memory.
        """
        address = ctypes.c_void_p()
        arguments = ctypes.addressof(address), size, self.pool, stream
        status = _allocate(*arguments)
        if status == _OUT_OF_MEMORY:
            reserved, used = self.pool_statistics()
            if reserved > used:
                self.trim_pool(0)
                status = _allocate(*arguments)
        if status:
            fail(status, _allocate)
        return address.value or 0

    def free_async(self, stream: int, address: int) -> None:
        if status := _free(address, stream):
            fail(status, _free)

    def pool_statistics(self) -> tuple[int, int]:
        return (
            self._count(_names.hipMemPoolAttrReservedMemCurrent),
            self._count(_names.hipMemPoolAttrUsedMemCurrent),
        )

    def _count(self, name: object) -> int:
        value = ctypes.c_uint64()
        call(hip.hipMemPoolGetAttribute, self.pool, name, ctypes.addressof(value))
        return value.value

    def trim_pool(self, keep: int) -> None:
        call(hip.hipMemPoolTrimTo, self.pool, keep)

    # Points in time

    def create_timer(self) -> int:
        return int(call(hip.hipEventCreateWithFlags, hip.hipEventDefault))

    def elapsed(self, first: int, second: int) -> float:
        return float(call(hip.hipEventElapsedTime, first, second)) / 1000

    # Foreign streams and events

    def export_stream(self, stream: int) -> int:
        """Return the ``hipStream_t``, 0 for the default stream."""
        return stream & _POINTER_BITS

    def adopt_stream(self, handle: int) -> int:
        """Return a stream over a ``hipStream_t``; 0 and 1 are the default stream.

        Raises `OperationError` for an invalid one, or one being captured.
        """
        stream = _DEFAULT_STREAM if handle in {0, _LEGACY} else handle
        is_captured = ctypes.c_int()
        if status := _is_capturing(stream, ctypes.addressof(is_captured)):
            error = _driver.error_of(status, "hipStreamIsCapturing")
            message = f"{handle:#x} is no stream that {self.info.name} can use: {error}"
            raise OperationError(
                message, native_name=error.native_name, native_code=error.native_code
            )
        if is_captured.value:
            raise captured(handle)
        return stream

    def adopt_event(self, handle: int) -> int:
        """Return the ``hipEvent_t`` itself."""
        return handle
