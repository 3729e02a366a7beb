"""A device's primary context: bound to threads, with the order of work in it, and a pool."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Final

from hal.errors import DeviceLostError, HalError, OperationError, UnimplementedError
from hal.handlers import dropped, is_a_handlers, own
from hal.native import CallTable, NativeDevice
from hal_cuda import _driver
from hal_cuda._driver import call, cuda

_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING
_NO_TIMING: Final = 2  # CU_EVENT_DISABLE_TIMING
_LEGACY_STREAM: Final = 1  # CU_STREAM_LEGACY
_PEER_ENABLED: Final = 704
_LOST_CONTEXT: Final = frozenset({_driver.INVALID_CONTEXT, _driver.INVALID_HANDLE})

# Called by every submission, so looked up once.
_query: Final = _driver.query
_record: Final = cuda.cuEventRecord
_wait: Final = cuda.cuStreamWaitEvent
_NOT_READY: Final = _driver.NOT_READY


class _Streams(dict[int, Any]):
    """The objects of our streams by handle; foreign ones are checked at each use."""

    def __missing__(self, stream: int) -> Any:  # noqa: ANN401 - the bindings' object
        return _driver.uncaptured(stream)


# The bindings' own objects for our handles, which they take faster than numbers. They are shared by
# all devices, which wait for each other's events. Adopted events stay: there are never many.
streams: Final = _Streams()
_events: Final[dict[int, Any]] = {}

_tokens: Final = itertools.count(1)

_names: Final = cuda.CUmemPool_attribute
_REUSE: Final = {
    "ordered": _names.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
    "complete": _names.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    "waited for": _names.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
}
_ALLOWED: Final = {"stream": (), "ordered": ("ordered",), "any": tuple(_REUSE)}
"""The driver's settings for each mode of `NativeDevice.configure_pool`."""

_GIVEN_UP: Final = (
    "the driver uses this device no more in this process, after an error that ended its context: "
    "end the process, and go on in a new one"
)
_SHARED: Final = (
    "the context that this process has on the device has failed, and somebody still holds it: "
    "close the other devices of hal on it, and end what other libraries have there; if that does "
    "not help, end the process, and go on in a new one"
)


class _Thread(threading.local):
    """The open device whose context was made current last on the calling thread."""

    token: int = 0


_thread: Final = _Thread()


class ContextDevice(NativeDevice):
    """A device's primary context, with its streams, events, peers, timers and pool.

    Attributes
    ----------
    ordinal
        The driver's number of the device.
    context
        The handle of its primary context.
    pool
        The driver's pool of its stream-ordered allocations, or None.
    token
        A number that no other open device has had.
    """

    __slots__ = ("context", "ordinal", "pool", "token")

    def __init__(self, index: int) -> None:
        """Retain the primary context, and make it current.

        Raises `DeviceLostError` if it has failed before, with the way out.
        """
        self.token = next(_tokens)
        self.ordinal = int(call(cuda.cuDeviceGet, index))
        self.pool: Any = None
        try:
            self.context = int(call(cuda.cuDevicePrimaryCtxRetain, self.ordinal))
        except own(DeviceLostError) as error:
            raise _failed(error, _GIVEN_UP) from error
        try:
            self._enter()
            call(cuda.cuMemGetInfo)
        except BaseException as error:
            cuda.cuDevicePrimaryCtxRelease(self.ordinal)
            if isinstance(error, DeviceLostError) and not is_a_handlers(error):
                raise _failed(error, _SHARED) from error
            raise

    # Context

    def bind(self) -> None:
        """Make the context current, if another of our devices was the last on this thread."""
        if _thread.token != self.token:
            self._enter()

    def _enter(self) -> None:
        """Make the context current unconditionally."""
        if error := cuda.cuCtxSetCurrent(self.context)[0]:
            _driver.fail(error, cuda.cuCtxSetCurrent)
        _thread.token = self.token

    def _again(self, error: int, function: Callable[..., Any], *arguments: object) -> None:
        """Raise a call's error, unless another context was current and it works in ours."""
        if int(error) in _LOST_CONTEXT and self._was_elsewhere():
            error = function(*arguments)[0]
            if not error:
                return
        _driver.fail(error, function)

    def _was_elsewhere(self) -> bool:
        """Return whether another context was current, and make ours current."""
        error, current = cuda.cuCtxGetCurrent()
        self._enter()
        return bool(error) or int(current) != self.context

    def close(self) -> None:
        """Release the context; it lives on while others, or other devices of ours, hold it."""
        if self.pool is not None:
            with dropped(HalError):  # a lost one's went with it
                self._enter()
                call(cuda.cuMemPoolDestroy, self.pool)
            self.pool = None
        _thread.token = 0
        call(cuda.cuDevicePrimaryCtxRelease, self.ordinal)

    def call_table(self) -> CallTable | None:
        """Return the driver's own functions, for threads on which the context is current."""
        table = _driver.call_table(self.context)
        return table and table._replace(pool=int(self.pool or 0))

    # Streams and events

    def create_stream(self) -> int:
        self._enter()
        stream = call(cuda.cuStreamCreate, _NON_BLOCKING)
        streams[int(stream)] = stream
        return int(stream)

    def destroy_stream(self, stream: int) -> None:
        call(cuda.cuStreamDestroy, streams.pop(stream))  # as in `destroy_event`

    def synchronize_stream(self, stream: int) -> None:
        """Block until the stream is idle.

        A foreign stream that is being captured cannot be waited for. Nothing of
        ours was put on it since the capture began, so there is nothing to wait for.
        """
        if stream not in streams and _driver.is_captured(stream):
            return
        call(cuda.cuStreamSynchronize, streams[stream])

    def create_event(self) -> int:
        self._enter()
        return _keep(call(cuda.cuEventCreate, _NO_TIMING))

    def destroy_event(self, event: int) -> None:
        """Destroy an event.

        It is forgotten first: once it is destroyed, another thread may create one of the same
        address, which this thread would then forget.
        """
        call(cuda.cuEventDestroy, _events.pop(event))

    def record_event(self, event: int, stream: int) -> None:
        try:
            error = _record(_events[event], streams[stream])[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _record) from problem
        if error:
            self._again(error, _record, event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        try:
            error = _wait(streams[stream], _events[event], 0)[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _wait) from problem
        if error:
            self._again(error, _wait, stream, event, 0)

    def query_event(self, event: int) -> bool:
        error = _query(_events[event])
        if not error:
            return True
        if error == _NOT_READY:
            return False
        return self._query_again(error, event)

    def _query_again(self, error: int, event: int) -> bool:
        if int(error) in _LOST_CONTEXT and self._was_elsewhere():
            error = _query(_events[event])
            if not error or error == _NOT_READY:
                return not error
        raise _driver.error_of(error, "the device's work")

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Write a number behind the stream's work, and behind a barrier for the whole system."""
        self._enqueue(cuda.cuStreamWriteValue64, streams[stream], address, value, 0)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        self._enqueue(cuda.cuStreamWaitValue64, streams[stream], address, value, 0)

    def _enqueue(self, function: Callable[..., Any], *arguments: object) -> None:
        try:
            error = function(*arguments)[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, function) from problem
        if error:
            self._again(error, function, *arguments)

    def notify(self, stream: int, function: int, argument: int) -> None:
        _driver.launch_host_function(stream, function, argument)

    # Other devices

    def can_access_peer(self, other: NativeDevice) -> bool:
        """Return whether the two are the same hardware, or linked."""
        assert isinstance(other, ContextDevice)  # noqa: S101 - of the same domain
        if other.ordinal == self.ordinal:
            return True
        return bool(call(cuda.cuDeviceCanAccessPeer, self.ordinal, other.ordinal))

    def enable_peer(self, other: NativeDevice) -> None:
        """Map the other's memory, including that of its pool."""
        assert isinstance(other, ContextDevice)  # noqa: S101 - of the same domain
        if other.ordinal == self.ordinal:
            return
        self._enter()
        (error,) = _driver.relaxed(cuda.cuCtxEnablePeerAccess, other.context, 0)
        if error and int(error) != _PEER_ENABLED:
            _driver.fail(error, cuda.cuCtxEnablePeerAccess)
        if other.pool is not None:
            access = cuda.CUmemAccessDesc()
            access.location = self._location()
            access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            call(cuda.cuMemPoolSetAccess, other.pool, [access], 1)

    def copy_peer(
        self,
        stream: int,
        target: int,
        target_device: NativeDevice,
        source: int,
        source_device: NativeDevice,
        size: int,
    ) -> None:
        """Enqueue a copy between two devices; the driver stages it where they are not linked."""
        assert isinstance(target_device, ContextDevice)  # noqa: S101 - of the same domain
        assert isinstance(source_device, ContextDevice)  # noqa: S101 - of the same domain
        contexts = target_device.context, source_device.context
        if contexts[0] == contexts[1]:
            self.copy(stream, target, source, size)
            return
        self._enqueue(
            cuda.cuMemcpyPeerAsync, target, contexts[0], source, contexts[1], size, stream
        )

    # Stream-ordered allocation, from a pool of the device's own

    def _open_pool(self) -> None:
        """Create the pool, if the device supports pools; the context is current."""
        if not _driver.attribute(self.ordinal, "MEMORY_POOLS_SUPPORTED"):
            return
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location = self._location()
        with dropped(OperationError, UnimplementedError):
            self.pool = call(cuda.cuMemPoolCreate, properties)

    def _location(self) -> Any:  # noqa: ANN401 - a structure of the bindings
        """Return the driver's name for the memory of this device."""
        place = cuda.CUmemLocation()
        place.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = self.ordinal
        return place

    def configure_pool(self, keep: int, reuse: str) -> None:
        values = {_names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: cuda.cuuint64_t(keep)}
        values |= {name: int(way in _ALLOWED[reuse]) for way, name in _REUSE.items()}
        for name, value in values.items():
            call(cuda.cuMemPoolSetAttribute, self.pool, name, value)

    def allocate_async(self, stream: int, size: int) -> int:
        return int(call(cuda.cuMemAllocFromPoolAsync, size, self.pool, streams[stream]))

    def free_async(self, stream: int, address: int) -> None:
        call(cuda.cuMemFreeAsync, address, streams[stream])

    def pool_statistics(self) -> tuple[int, int]:
        get, pool = cuda.cuMemPoolGetAttribute, self.pool
        reserved = call(get, pool, _names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        return int(reserved), int(call(get, pool, _names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))

    def trim_pool(self, keep: int) -> None:
        call(cuda.cuMemPoolTrimTo, self.pool, keep)

    # Points in time

    def create_timer(self) -> int:
        self._enter()
        return _keep(call(cuda.cuEventCreate, 0))

    def elapsed(self, first: int, second: int) -> float:
        """Return the seconds between two times, in the driver's steps of about 0.5 us."""
        return float(call(cuda.cuEventElapsedTime, _events[first], _events[second])) / 1000

    # Foreign streams and events

    def export_stream(self, stream: int) -> int:
        """Return the stream itself, which is a ``CUstream``."""
        return stream

    def adopt_stream(self, handle: int) -> int:
        """Return the stream itself; 0 is the legacy default stream.

        Raises `OperationError`, as do all calls on it, while it is captured.
        """
        stream = handle or _LEGACY_STREAM
        streams[stream]
        return stream

    def adopt_event(self, handle: int) -> int:
        """Return the event itself, which is a ``CUevent``."""
        _events[handle] = cuda.CUevent(handle)
        return handle


def _failed(error: DeviceLostError, what: str) -> DeviceLostError:
    """Return the error for a device that cannot be opened after its context has failed."""
    return DeviceLostError(
        f"{what} ({error})", native_name=error.native_name, native_code=error.native_code
    )


def _keep(event: Any) -> int:  # noqa: ANN401 - the bindings' object
    """Keep the object of an event; return its handle."""
    _events[int(event)] = event
    return int(event)
