"""Guard host arrays that work in flight reads or writes: nobody changes them unnoticed."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError

__all__ = ["Bytes", "HeldArray", "ReadsInFlight", "bytes_of", "is_constant"]

Bytes = NDArray[np.uint8]

_MANY: Final = 64
"""Reads in flight from which on those that have ended are looked for."""

_ROW: Final = 4096
"""Words that a checksum keeps apart."""

_lock = threading.Lock()
_held: dict[int, tuple[NDArray[Any], int]] = {}
"""Of each array that was made read-only, by id: the array, and how many transfers hold it."""


def bytes_of(data: object, what: str) -> tuple[Bytes, bool]:
    """Return the bytes of an array or a bytes-like object, and whether nobody can change them.

    They are copied where they have gaps. Raises `ArgumentTypeError`.
    """
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            message = f"{what}: the array holds Python objects, which device memory cannot"
            raise ArgumentTypeError(message)
        host = np.ascontiguousarray(data)
        is_ours = not np.may_share_memory(host, data) or isinstance(_owner(host), bytes)
        return host.reshape(-1).view(np.uint8), is_ours
    if isinstance(data, (hal.Buffer, str)):
        message = f"{what} takes host memory, not {type(data).__name__}"
        raise ArgumentTypeError(message)
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        message = f"{what} takes a numpy array or a bytes-like object, not {type(data).__name__}"
        raise ArgumentTypeError(message) from None
    flat = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    return np.frombuffer(flat, np.uint8), isinstance(flat.obj, bytes)


def is_constant(data: object) -> bool:
    """Return whether these are contiguous bytes that nobody can change, or an array of them."""
    if isinstance(data, np.ndarray):
        return isinstance(_owner(data), bytes) and bool(data.flags.c_contiguous)
    return type(data) is bytes


def _owner(array: NDArray[Any]) -> object:
    """Return what the memory of an array belongs to."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


class HeldArray:
    """Keep an array from being changed until `end`, or find out that it was.

    The array and all that it is a view of are made read-only, where numpy can
    undo that. There may be other views of the same memory, which nobody can
    find: a checksum, taken now and at the end, tells whether they were used.
    """

    __slots__ = ("_bytes", "_chain", "_checksum")

    def __init__(self, array: object, host: Bytes) -> None:
        self._bytes = host
        self._chain: list[NDArray[Any]] = []
        chain: list[NDArray[Any]] = []
        each: object = array
        while isinstance(each, np.ndarray):
            chain.append(each)
            each = each.base
        # Of memory that is not numpy's own a flag cannot always be set again.
        if each is None and chain and chain[-1].flags.owndata:
            with _lock:
                self._make_read_only(chain)
        self._checksum = _checksum(host)

    def _make_read_only(self, chain: list[NDArray[Any]]) -> None:
        for array in chain:
            kept, count = _held.get(id(array), (array, 0))
            if count or array.flags.writeable:
                _held[id(array)] = (kept, count + 1)
                self._chain.append(array)
                array.flags.writeable = False

    def end(self) -> None:
        """Let the array be changed again; may be called twice."""
        with _lock:
            chain, self._chain = self._chain, []
            for array in chain[::-1]:  # whoever owns the memory comes first
                self._let_go(array)

    def _let_go(self, array: NDArray[Any]) -> None:
        _, count = _held[id(array)]
        if count > 1:
            _held[id(array)] = (array, count - 1)
        else:
            del _held[id(array)]
            array.flags.writeable = True

    def verify(self, transfer: hal.Submission) -> None:
        """Raise what a transfer failed with, and `OperationError` if the array was changed."""
        error = transfer.error
        if error is not None:
            raise error
        if _checksum(self._bytes) != self._checksum:
            message = (
                "the array was changed while it was read: what the buffer holds is undefined; "
                "wait for the submission of write() before, or pass hold=False, which copies the "
                "array during the call"
            )
            raise OperationError(message)


class ReadsInFlight:
    """Know which host arrays are being filled by reads of buffers. Any thread may use it."""

    __slots__ = ("_guard", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[hal.Queue, _Reads] = {}
        self._guard = threading.Lock()

    def add(self, array: NDArray[Any], submission: hal.Submission, queue: hal.Queue) -> None:
        """Note a read into an array."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes.setdefault(queue, _Reads())
        lane.reads.append((array, submission))
        # Somebody who is at it already does it for all.
        if len(lane.reads) > lane.limit and self._guard.acquire(blocking=False):
            try:
                lane.forget()
            finally:
                self._guard.release()

    def check(self, host: Bytes, what: str) -> None:
        """Raise `InvalidArgumentError` if a read that has not ended fills some of these bytes."""
        for queue, lane in list(self._lanes.items()):
            for array, submission in list(lane.reads):
                if np.may_share_memory(array, host) and not submission.done:
                    message = (
                        f"{what}: the array is still being filled by a {submission.kind} on "
                        f"{queue.name}; wait for that submission first"
                    )
                    raise InvalidArgumentError(message)


class _Reads:
    """Hold the reads of one queue, in its order, in which they end, too."""

    __slots__ = ("limit", "reads")

    def __init__(self) -> None:
        self.reads: deque[tuple[NDArray[Any], hal.Submission]] = deque()
        self.limit = _MANY

    def forget(self) -> None:
        """Forget those that have ended; one thread at a time."""
        reads = self.reads
        while reads and reads[0][1].done:
            reads.popleft()
        self.limit = max(_MANY, 2 * len(reads))


def _checksum(host: Bytes) -> int:
    """Return a number that changes with the bytes; at the speed of memory."""
    whole = host.size // 8 * 8
    words = host[:whole].view(np.uint64)
    rows = words[: words.size // _ROW * _ROW].reshape(-1, _ROW)
    number = zlib.crc32(np.bitwise_xor.reduce(rows, axis=0).data) if rows.size else 0
    number = zlib.crc32(words[rows.size :].data, number)
    return zlib.crc32(host[whole:].data, number)
