"""Guards of host arrays that work in flight reads or writes, against unnoticed changes."""

from __future__ import annotations

import ctypes
import zlib
from bisect import bisect_left
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

import hal
from hal.arguments import as_memory, no_data
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError
from hal.flow.locks import make_lock, refuse_reentrance
from hal.handlers import dropped, own

Bytes = NDArray[np.uint8]

_MANY: Final = 64  # the number of reads in flight from which ended ones are purged

_lock = make_lock()
_held: dict[int, dict[int, _Hold]] = {}
"""For each array that owns memory, by id: the arrays that were made read-only, by id."""


def bytes_of(data: object, what: str) -> tuple[Bytes, bool]:
    """Return the bytes of an array or a bytes-like object, and whether they are immutable.

    Copies them if they have gaps. Raises `ArgumentTypeError`.
    """
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            raise no_data(data.dtype, what)
        host = np.ascontiguousarray(data)
        is_ours = isinstance(_owner(host), bytes)
        if host is not data:
            is_ours = is_ours or not np.may_share_memory(host, data)
        whole = type(host) is np.ndarray and host.ndim == 1
        return (host if whole else host.reshape(-1)).view(np.uint8), is_ours
    if isinstance(data, (hal.Buffer, str)):
        raise ArgumentTypeError(f"{what} takes host memory, not {type(data).__name__}")
    view = as_memory(data, what)
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    return np.frombuffer(view, np.uint8), isinstance(view.obj, bytes)


def is_constant(data: object) -> bool:
    """Return whether these are contiguous immutable bytes, or an array of them."""
    if isinstance(data, np.ndarray):
        return isinstance(_owner(data), bytes) and bool(data.flags.c_contiguous)
    return type(data) is bytes


def _owner(array: NDArray[Any]) -> object:
    """Return the object that owns an array's memory."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


class _Hold:
    """An array that was made read-only, and its holders."""

    __slots__ = ("array", "holders")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.holders: set[HeldArray] = set()


class HeldArray:
    """A guard that prevents changes to an array from `begin` until `end`, or detects them.

    `host` is the array's bytes. The array and everything that it is a view of are made read-only,
    where numpy can undo that. There may be other views of the same memory, which cannot be
    found: a checksum, taken now and at the end, detects their use.
    """

    __slots__ = ("_bytes", "_checksum", "_root")

    def __init__(self, host: Bytes) -> None:
        self._bytes = host
        self._root: NDArray[Any] | None = None
        self._checksum = 0

    def begin(self, array: object) -> None:
        """Hold the array; whatever this raises, `end` lets go of it."""
        chain: list[NDArray[Any]] = []
        each: object = array
        while isinstance(each, np.ndarray):
            chain.append(each)
            each = each.base
        # If numpy does not own the memory, a cleared flag cannot always be set again.
        if each is None and chain and chain[-1].flags.owndata:
            refuse_reentrance(_lock)
            with _lock:
                self._make_read_only(chain)
        self._checksum = zlib.crc32(self._bytes.data)

    def _make_read_only(self, chain: list[NDArray[Any]]) -> None:
        """Hold these, the last of which owns the memory; `end` undoes what a Ctrl-C cuts short."""
        self._root = chain[-1]
        root = id(self._root)
        holds = _held.get(root, {})
        for array in chain:
            hold = holds.get(id(array))
            if hold is None and not array.flags.writeable:
                continue  # it was read-only before
            if hold is None:
                hold = holds[id(array)] = _Hold(array)
                _held[root] = holds
            hold.holders.add(self)
            array.flags.writeable = False

    def end(self) -> None:
        """Allow changes to the array again; may be called twice."""
        if self._root is None:
            return
        refuse_reentrance(_lock)
        with _lock:
            root, self._root = self._root, None
            if root is not None:
                self._let_go(id(root))

    def _let_go(self, root: int) -> None:
        """Release all holds on the memory of one array; with the lock."""
        holds = _held.get(root, {})
        for hold in holds.values():
            hold.holders.discard(self)
        # A view becomes writable only after its base, which may still be held.
        while free := [
            key
            for key, hold in holds.items()
            if not hold.holders and id(hold.array.base) not in holds
        ]:
            for key in free:
                array = holds.pop(key).array
                with dropped(ValueError):  # other code has locked it meanwhile
                    array.flags.writeable = True
        if not holds:
            _held.pop(root, None)

    def verify(self, transfer: hal.Submission) -> None:
        """Raise a transfer's failure, or `OperationError` if the array was changed."""
        error = transfer.error
        if error is not None:
            raise error
        if zlib.crc32(self._bytes.data) != self._checksum:
            raise OperationError(
                "the array was changed while it was read: what the buffer holds is undefined; "
                "wait for the submission of write() before, or pass hold=False, which copies the "
                "array during the call"
            )


class ReadsInFlight:
    """The host arrays that reads of buffers are filling. Any thread may use it.

    Sorted by address, apart for each power of two of their size: what overlaps some bytes
    begins at most so much before them. So neither costs more while many are on their way.
    """

    __slots__ = ("_is_busy", "_limit", "_lock", "_sizes", "_total")

    def __init__(self) -> None:
        self._lock = make_lock()
        self._is_busy = False  # whether a read is being noted; for the C extension
        self._sizes: dict[int, list[_Read]] = {}
        self._total = 0
        self._limit = _MANY

    def add(self, target: Any, submission: hal.Submission) -> None:  # noqa: ANN401 - the queue has checked it
        """Note a read into a C-contiguous array, or into an object with the buffer protocol."""
        size = target.nbytes if isinstance(target, np.ndarray) else memoryview(target).nbytes
        if not size:
            return
        start = _address(target)
        if self._is_busy:  # a `check` that was interrupted does not mind
            refuse_reentrance(self._lock)
        with self._lock:
            try:
                self._is_busy = True
                # The submission keeps the memory alive as long as it matters.
                self._note(size.bit_length(), (start, start + size, submission))
            finally:
                self._is_busy = False

    def _note(self, bits: int, read: _Read) -> None:
        """Note a read; with the lock."""
        alike = self._sizes.setdefault(bits, [])
        index = bisect_left(alike, read[0], key=_START)
        before = alike[index] if index < len(alike) else None
        if before is not None and before[:2] == read[:2] and before[-1].done:
            alike[index] = read
            return
        alike.insert(index, read)
        self._total += 1
        if self._total > self._limit:
            self._forget()

    def check(self, host: Any, what: str) -> None:  # noqa: ANN401 - an array, or what becomes one
        """Raise `InvalidArgumentError` if a read that has not ended fills some of these bytes."""
        if not self._total:
            return
        low, high = _bounds(host)
        with self._lock:
            for bits, reads in list(self._sizes.items()):
                index = bisect_left(reads, low - (1 << bits), key=_START)
                # The length is asked anew: a handler may add some. islice would pass by the first.
                while index < len(reads):
                    start, stop, submission = reads[index]
                    if start >= high:
                        break
                    index += 1
                    if low < stop and not submission.done:
                        raise InvalidArgumentError(
                            f"{what}: the array is still being filled by a {submission.kind} on "
                            f"{submission.queue.name}; wait for that submission first"
                        )

    def _forget(self) -> None:
        """Forget ended reads; with the lock."""
        for bits, reads in list(self._sizes.items()):
            left = [each for each in reads if not each[-1].done]
            self._sizes[bits] = left
            if not left:
                del self._sizes[bits]
        self._total = sum(map(len, self._sizes.values()))
        self._limit = max(_MANY, 2 * self._total)


_Read: TypeAlias = tuple[int, int, hal.Submission]
"""The first address of an array, the address behind it, and what fills it."""

_START: Final = itemgetter(0)

_byte_bounds: Final[Any] = getattr(np.lib, "array_utils", np).byte_bounds  # moved in numpy 2


def _address(target: Any) -> int:  # noqa: ANN401
    """Return where an array, or an object with the buffer protocol, has its memory."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(target))
    except own(TypeError, ValueError):  # read-only, or types that only numpy has
        return int(target.ctypes.data)  # four times as slow


def _bounds(host: Any) -> tuple[int, int]:  # noqa: ANN401
    """Return the first and last address of an array's bytes, with its gaps."""
    array = host
    if type(host) is not np.ndarray:
        array = np.asarray(host if isinstance(host, np.ndarray) else memoryview(host))
    if array.flags.c_contiguous:
        low = _address(array)
        return low, low + array.nbytes
    bounds: tuple[int, int] = _byte_bounds(array) if array.size else (0, 0)
    return bounds
