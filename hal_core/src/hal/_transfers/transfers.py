"""Check transfers and turn them into payloads (`hal._engine.payload`).

A transfer to or from host memory may be a host operation (M1), whose function is called without a
stream, on a thread of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hal._base.checks import check_copy, check_range
from hal._buffers.buffer import Buffer
from hal._engine.payload import NOTHING, Checked, Payload
from hal._memory import blocking, peers
from hal._memory.access import check_buffer, late_address
from hal._memory.replay import Replay
from hal._memory.storage import Storage
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal._memory.views import HostView, array_address, put
from hal._transfers.host_copies import HostLocation, is_between_hosts, move
from hal._transfers.patterns import NATIVE, pattern_of
from hal.arguments import as_memory, check_elements, no_data
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native import MemoryType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hal._memory.core import DeviceCore


CHUNK: Final = 1 << 30
"""The most bytes of one native fill or copy."""

SMALL: Final = 64 << 10
"""The most bytes that a write captures during the call."""


def fill(
    device: DeviceCore, buffer: Buffer, value: object, offset: object, size: object
) -> Payload:
    """Check a fill; see `Queue.fill`."""
    storage = check_buffer(device, buffer, "fill", TRANSFER_TARGET)
    base = storage.address
    start = buffer._offset if base is None else base + buffer._offset
    first, length, pattern, width = check_fill(
        start, buffer._size, buffer._dtype, value, offset, size
    )
    if not length:
        return NOTHING
    start += first
    if width > NATIVE:
        return _WideFill(device, storage, start - (base or 0), length, pattern, width), (), storage
    if base is not None and length <= CHUNK:
        return device._fill, (start, pattern, width, length // width), storage
    arguments = (start, pattern, width, length // width, device._fill)
    if base is not None:
        return _fill_in_parts, arguments, storage
    return _late, (_fill_in_parts, arguments, ((0, storage),)), storage


def check_fill(
    base: int, whole: int, dtype: np.dtype[Any], value: object, offset: object, size: object
) -> tuple[int, int, int, int]:
    """Return a fill's offset, its size in bytes, its pattern, and the pattern's width.

    The buffer has `whole` bytes and begins at `base`, if that is known by now.
    """
    pattern, width = pattern_of(value, dtype)
    start, length = check_range(whole, offset, size, "fill")
    # Our allocations are aligned to more than any pattern; foreign memory may begin anywhere.
    if (length | (start | base) & (NATIVE - 1)) & (width - 1):
        alignment = min(width, NATIVE)
        raise InvalidArgumentError(
            f"fill: a pattern of {width} bytes needs an offset and a size that are multiples of "
            f"{alignment} and {width}; offset {start} and size {length} were given"
        )
    return start, length, pattern, width


def write(device: DeviceCore, buffer: Buffer, array: object, offset: object, what: str) -> Checked:
    """Check a write; see `Queue.write`, and `Queue.update`, which captures the bytes."""
    storage = check_buffer(device, buffer, what, TRANSFER_TARGET)
    host = _bytes_of(array, what, buffer._dtype)
    start, length = check_range(buffer._size, offset, host.size, what)
    if not length:
        return NOTHING, False
    start += buffer._offset
    if length <= SMALL:
        return _capture_and_write(device, storage, start, host)
    if what == "update":
        host = np.array(host, copy=True)
    return _from_host(device, storage, start, host)


def read(device: DeviceCore, buffer: Buffer, array: object, offset: object) -> Checked:
    """Check a read; see `Queue.read`."""
    storage = check_buffer(device, buffer, "read", TRANSFER_SOURCE)
    host = _bytes_of(array, "read", buffer._dtype)
    if not host.flags.writeable:
        raise InvalidArgumentError("read: the array is read-only; give one that can be written")
    start, length = check_range(buffer._size, offset, host.size, "read")
    if not length:
        return NOTHING, False
    start += buffer._offset
    if device._pageable:
        target = (array_address(host), None)
        return _copy(device._copy_to_host, target, (start, storage), length, host), False
    if _is_the_hosts(storage, start, host):
        return move((array_address(host), None), (start, storage), length, host), True
    pinned = _pinned(device, host)
    if pinned is not None:
        payload = _copy(device._copy, pinned, (start, storage), length, host)
        return _guarded(device, pinned, payload), False
    return (blocking.read, (device, storage, start, host, blocking.IS_OPERATION), None), True


def copy(
    device: DeviceCore, source: Buffer, target: Buffer, offsets: tuple[object, object], size: object
) -> Checked:
    """Check a copy; see `Queue.copy`."""
    written, read, length = check_ends((device, device), source, target, offsets, size)
    if not length:
        return NOTHING, False
    if is_between_hosts(device, written[1], read[1]):
        return move(written, read, length), True
    return _copy(device._copy, written, read, length, None), False


def check_ends(
    owners: tuple[DeviceCore, DeviceCore],
    source: Buffer,
    target: Buffer,
    offsets: tuple[object, object],
    size: object,
) -> tuple[tuple[int, Storage], tuple[int, Storage], int]:
    """Check both ends of a copy; return the place that it writes, the one it reads, and its size.

    `owners` are the devices of the source and of the target.
    """
    source_storage = check_buffer(owners[0], source, "copy: the source", TRANSFER_SOURCE)
    target_storage = check_buffer(owners[1], target, "copy: the target", TRANSFER_TARGET)
    begin, end = source_storage.address, target_storage.address
    if source_storage is target_storage:
        begin = end = 0
    apart = None  # unknown: different storages overlap in foreign memory only, which has an address
    if begin is not None and end is not None:
        apart = end + target._offset - begin - source._offset
    first, into, length = check_copy(source._size, target._size, offsets, size, apart)
    written = target._offset + into, target_storage
    return written, (source._offset + first, source_storage), length


def capture(device: DeviceCore, host: NDArray[np.uint8]) -> tuple[int, object]:
    """Return where a copy of host bytes stands that `copy_from_host` never blocks for.

    Also returns what keeps it alive. May make a native allocation, so it is for
    recordings; submissions do not use it.
    """
    if device._pageable:
        copied = np.array(host, copy=True)
        return array_address(copied), copied
    keeper = device._heap.allocate(host.size or 1, _HOST)
    return put(keeper, host), keeper


_HOST: Final = 1
"""The index of pinned memory in `hal._memory.usage.MEMORY_TYPES`."""


def _copy(
    function: Callable[..., object],
    target: HostLocation,
    source: HostLocation,
    length: int,
    host: object,
) -> Payload:
    """Return the payload of a native copy between two places."""
    target_start, target_storage = target
    source_start, source_storage = source
    late: tuple[tuple[int, Storage], ...] = ()
    if target_storage is not None:
        base = target_storage.address
        if base is None:
            late = ((0, target_storage),)
        else:
            target_start += base
    if source_storage is not None:
        base = source_storage.address
        if base is None:
            late = (*late, (1, source_storage))
        else:
            source_start += base
    resources = (target_storage, source_storage, host)
    if not late and length <= CHUNK:
        return function, (target_start, source_start, length), resources
    arguments = (target_start, source_start, length, function)
    if not late:
        return _copy_in_parts, arguments, resources
    return _late, (_copy_in_parts, arguments, late), resources


def _from_host(
    device: DeviceCore, storage: Storage, start: int, host: NDArray[np.uint8]
) -> Checked:
    """Return the payload of a copy from memory that does not change until then."""
    # As in `read`: where a native copy from pageable memory would block (M1, Q1), the host copies
    # to memory that is its own, the driver from memory that is pinned, and for the rest a thread of
    # the pool makes the native copy and waits for it.
    if device._pageable:
        source = (array_address(host), None)
        return _copy(device._copy_from_host, (start, storage), source, host.size, host), False
    if _is_the_hosts(storage, start, host):
        return move((start, storage), (array_address(host), None), host.size, host), True
    pinned = _pinned(device, host)
    if pinned is not None:
        payload = _copy(device._copy, (start, storage), pinned, host.size, host)
        return _guarded(device, pinned, payload), False
    return (blocking.write, (device, storage, start, host, blocking.IS_OPERATION), None), True


def _capture_and_write(
    device: DeviceCore, storage: Storage, start: int, host: NDArray[np.uint8]
) -> Checked:
    """Return the payload of a copy from memory that may change at once, without native calls."""
    if not device._pageable and storage.memory is not MemoryType.HOST:
        keeper = device._heap.reserve(host.size, _HOST)
        if keeper._lease is not None:
            keeper.publish()
            source = (put(keeper, host), None)
            place = (start, storage)
            return _copy(device._copy_from_host, place, source, host.size, keeper), False
        device._heap.prefetch(host.size)  # so that the next write finds a pinned block
    return _from_host(device, storage, start, np.array(host, copy=True))


def _is_the_hosts(storage: Storage, start: int, host: NDArray[np.uint8]) -> bool:
    """Return whether the host copies, itself, between a storage and an array.

    It does for its own memory, and for managed memory that the array is a view of: native copies
    do not take ends that overlap, and `memmove` does.
    """
    if storage.memory is MemoryType.HOST:
        return True
    seen = storage.host_address
    return seen is not None and abs(array_address(host) - seen - start) < host.size


def _pinned(device: DeviceCore, host: NDArray[np.uint8]) -> tuple[int, Storage] | None:
    """Return the device's address of an array in its own, pinned or imported memory, or None."""
    base: object = host
    while isinstance(base, np.ndarray):
        base = base.base
    address = array_address(host)
    keeper: Storage | None = None
    if type(base) is HostView and _sees(device, base.owner):
        keeper = base.owner
    elif device._heap.books.imports:
        keeper = device._heap.find_import(address, host.size)
    if keeper is None or keeper.address is None or not keeper.is_pinned():
        return None
    return address - (keeper.host_address or 0), keeper


def _sees(device: DeviceCore, storage: Storage) -> bool:
    """Return whether a storage is in a device's address space; pinned memory is the driver's."""
    if storage._heap is device._heap:
        return True
    owner = storage._heap._context
    return (
        storage.memory is MemoryType.HOST
        and owner.native.domain is device._native.domain
        and not owner.refuses_visits  # closed: its memory lives with the view, for the host
    )


def _guarded(device: DeviceCore, pinned: tuple[int, Storage], payload: Payload) -> Payload:
    """Return a payload that visits the other device whose pinned memory it uses, if any."""
    return payload if pinned[1]._heap is device._heap else peers.guard(device, payload)


# Run when an operation is issued


def _late(
    stream: int,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    places: tuple[tuple[int, Storage], ...],
) -> None:
    """Fill in the addresses that storages have got meanwhile (M3)."""
    values = list(arguments)
    for position, storage in places:
        values[position] += late_address(storage)
    function(stream, *values)


def _fill_in_parts(
    stream: int, address: int, pattern: int, width: int, count: int, function: Callable[..., object]
) -> None:
    part = CHUNK // width
    for start in range(0, count, part):
        number = min(part, count - start)
        function(stream, address + start * width, pattern, width, number)


class _WideFill(Replay):
    """A pattern that no native fill takes: one element is filled, and copied behind itself.

    Each part is a native call: its start, and the bytes that it copies, 0 for a fill.
    """

    __slots__ = ("_device", "_parts", "_pattern", "_start", "_storage")

    def __init__(
        self, device: DeviceCore, storage: Storage, start: int, size: int, pattern: int, width: int
    ) -> None:
        self._device = device
        self._storage = storage
        self._start = start
        self._pattern = pattern
        parts = [(part, 0) for part in range(0, width, NATIVE)]
        done = width
        while done < size:
            count = min(done, size - done, CHUNK)
            parts.append((done, count))
            done += count
        super().__init__(len(parts))
        self._parts = parts

    def replay(self, stream: int, start: int, end: int) -> None:
        """Make the native calls from `start` to before `end`."""
        address = late_address(self._storage) + self._start
        for done, count in self._parts[start:end]:
            if count:
                self._device._copy(stream, address + done, address, count)
            else:
                value = self._pattern >> 8 * done & 0xFFFFFFFF
                self._device._fill(stream, address + done, value, NATIVE, 1)


def _copy_in_parts(
    stream: int, target: int, source: int, size: int, function: Callable[..., object]
) -> None:
    for start in range(0, size, CHUNK):
        function(stream, target + start, source + start, min(CHUNK, size - start))


# Arguments


def _bytes_of(data: object, what: str, dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    """Return the memory of an array or a bytes-like object as flat bytes, uncopied.

    Raises unless its elements are those of a buffer of `dtype`.
    """
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            raise no_data(data.dtype, what)
        if not data.flags.c_contiguous:
            raise InvalidArgumentError(
                f"{what}: the array is not C-contiguous (strides {data.strides}); "
                "pass numpy.ascontiguousarray(array)"
            )
        check_elements(what, data.dtype, dtype)
        # Reshape keeps the subclass; a plain view would release the object of a subclass.
        flat = np.ndarray.reshape(data, -1)
        return np.ndarray.view(flat, np.uint8, np.ndarray).reshape(-1)
    if isinstance(data, Buffer):
        raise ArgumentTypeError(f"{what} takes host memory; use copy() between buffers")
    view = as_memory(data, what)
    if not view.c_contiguous:
        raise InvalidArgumentError(f"{what}: the memory is not C-contiguous")
    return np.frombuffer(view, np.uint8)
