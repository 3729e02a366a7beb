"""A device: bound to threads, with the order of its work, and access to other devices."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from typing import Final

from hal.capture_modes import captured
from hal.errors import DeviceLostError, HalError, OperationError
from hal.native import CallTable, DeviceInfo, NativeDevice
from hal_hip import _driver, _pool
from hal_hip._driver import NOT_READY, call, entry_point, fail, hip, relaxed_entry_point

__all__ = ["ContextDevice"]

_ALREADY_ENABLED: Final = 704
_DEFAULT_STREAM: Final = 1 << 64
"""The handle of the null stream: positive as all are, and a null pointer in C, to which the lowest
64 bits are passed."""
_POINTER_BITS: Final = (1 << 64) - 1
_LEGACY: Final = 1

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


_open: Final = Counter[int]()
"""How many devices of ours are open, by HIP's number."""
_opening: Final = threading.Lock()
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
        except HalError:
            what = "end the process, and go on in a new one"
        else:
            return
    message = f"the device has failed for this process: {what} ({error})"
    raise DeviceLostError(
        message, native_name=error.native_name, native_code=error.native_code
    ) from error


class ContextDevice(NativeDevice):
    """A device with a HIP context, and its streams, events, peers and timers.

    Streams and events have HIP's own handles.

    Attributes
    ----------
    pool
        The pool of stream-ordered allocations, or None.
    """

    __slots__ = ("_is_open", "_only", "pool")

    def __init__(self, info: DeviceInfo, *, only: bool) -> None:
        """Make a device current; `only` means that there is no other.

        A device that has failed is reset, unless another device of ours is on
        it: raises `DeviceLostError` then, and if a reset does not help.
        """
        self.info = info
        self._only = only
        self.pool: _pool.Pool | None = None
        call(hip.hipSetDevice, info.index)
        with _opening:
            try:
                call(hip.hipMemGetInfo)
            except DeviceLostError as error:
                _begin_afresh(info.index, error)
            self._is_open = True
            _open[info.index] += 1

    # Context

    def close(self) -> None:
        """Do nothing: HIP keeps the context until the process ends, or the device is reset."""
        with _opening:
            _open[self.info.index] -= self._is_open
            self._is_open = False

    def bind(self) -> None:
        """Make this the calling thread's device; with only one, every thread has that."""
        if not self._only and (status := _set_device(self.info.index)):
            fail(status, _set_device)

    def call_table(self) -> CallTable | None:
        """Return the runtime's own functions; with one device, every thread may call them."""
        table, pool = _driver.call_table(self.info.index), self.pool
        if table is None:
            return None
        current = 0 if self._only else table.current
        return table._replace(current=current, pool=0 if pool is None else pool.handle)

    # Streams and events

    def create_stream(self) -> int:
        return int(call(hip.hipStreamCreateWithFlags, hip.hipStreamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        call(hip.hipStreamDestroy, stream)

    def synchronize_stream(self, stream: int) -> None:
        """Block until the stream is idle; Ctrl-C ends it."""
        _pool.wait_for_stream(stream)

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
        except HalError as error:
            if error.native_code != _ALREADY_ENABLED:
                raise
        if other.pool is not None:
            other.pool.allow(self.info.index)

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
