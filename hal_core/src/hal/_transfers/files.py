"""Transfers between files and buffers, as host operations of a queue (rule Q4).

The operation opens the file when it runs, on a thread of the pool, and reads or
writes it in chunks with calls that release the interpreter lock. Where the host sees
the buffer's memory, the bytes go straight between it and the file; elsewhere they
go through ordinary host memory, chunk by chunk. The system reads a file ahead, so the disk goes
on meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from hal._base.checks import check_index, check_range
from hal._buffers.buffer import Buffer
from hal._engine.payload import Payload
from hal._memory import blocking
from hal._memory.access import check_buffer, late_address
from hal._memory.core import DeviceCore
from hal._memory.storage import Storage
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal._memory.views import host_bytes
from hal.arguments import as_path, shown
from hal.errors import InvalidArgumentError, OperationError
from hal.handlers import own

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK: Final = 4 << 20
"""The most bytes that one system call moves, and one copy of the device's."""

_MAX_OFFSET: Final = 2**63 - 1
"""The highest file offset that the system supports."""


class File:
    """A range of bytes in a file: the host side of `Queue.write` and `Queue.read`.

    Immutable, and not open: each operation opens the file when it
    runs, and closes it when it ends. Any number of operations may use it.

    `path` is text, bytes or a path object; a relative one is resolved now, against the
    working directory. `offset` is where in the file the range begins,
    `size` its number of bytes; None means as many as the buffer has behind the
    operation's own offset. Raises `ArgumentTypeError` and
    `InvalidArgumentError`.
    """

    __slots__ = ("_offset", "_path", "_size")

    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        *,
        offset: int = 0,
        size: int | None = None,
    ) -> None:
        self._path = as_path(path, "File")
        if not os.path.isabs(self._path):
            try:  # not `abspath`, which drops a ".." behind a link
                self._path = os.path.join(os.getcwd(), self._path)
            except own(OSError) as error:
                raise InvalidArgumentError(
                    f"File: {self._path!r} is relative, and there is no working directory "
                    f"({error.strerror}); give an absolute path"
                ) from error
        self._offset = check_index(offset, "File: the offset")
        self._size = None if size is None else check_index(size, "File: the size")
        if self._offset + (self._size or 0) > _MAX_OFFSET:
            raise InvalidArgumentError(
                f"File: no file has bytes behind {_MAX_OFFSET}; "
                f"offset {shown(self._offset)} was given"
            )

    @property
    def path(self) -> str:
        """The absolute path."""
        return self._path

    @property
    def offset(self) -> int:
        """The start of the range in the file, in bytes."""
        return self._offset

    @property
    def size(self) -> int | None:
        """The number of bytes in the range; None for as many as the buffer has."""
        return self._size

    def __repr__(self) -> str:
        size = "" if self._size is None else f", size={self._size}"
        return f"File({self._path!r}, offset={self._offset}{size})"


def write(device: DeviceCore, buffer: Buffer, file: File, offset: object) -> Payload:
    """Check a write from a file to a buffer; see `Queue.write`."""
    storage = check_buffer(device, buffer, "write", TRANSFER_TARGET)
    return _to_buffer, _arguments(device, storage, buffer, file, offset, "write"), None


def read(device: DeviceCore, buffer: Buffer, file: File, offset: object) -> Payload:
    """Check a read from a buffer to a file; see `Queue.read`."""
    storage = check_buffer(device, buffer, "read", TRANSFER_SOURCE)
    return _to_file, _arguments(device, storage, buffer, file, offset, "read"), None


def _arguments(
    device: DeviceCore, storage: Storage, buffer: Buffer, file: File, offset: object, what: str
) -> tuple[DeviceCore, Storage, int, int, File]:
    start, length = check_range(buffer._size, offset, file._size, what)
    if file._offset + length > _MAX_OFFSET:
        message = f"{what}: {file!r} and {length} bytes are more than a file can have"
        raise InvalidArgumentError(message)
    return device, storage, buffer._offset + start, length, file


def _to_buffer(device: DeviceCore, storage: Storage, start: int, length: int, file: File) -> None:
    """Copy from a file into memory; runs on a thread of the pool."""
    if not length:
        return
    late_address(storage)  # first: it raises for memory without one
    with _Opened("write", file, length, os.O_RDONLY) as opened:
        opened.check_length()
        if storage.host_address is not None:
            opened.fill(host_bytes(storage, start, length).data, 0)
        else:
            for position, chunk in _chunks(length):
                opened.fill(chunk.data, position)
                blocking.write(device, storage, start + position, chunk, blocking.IS_OPERATION)


def _to_file(device: DeviceCore, storage: Storage, start: int, length: int, file: File) -> None:
    """Copy from memory into a file; runs on a thread of the pool."""
    if not length:
        return
    late_address(storage)  # first: without an address no file is created
    with _Opened("read", file, length, os.O_WRONLY | os.O_CREAT) as opened:
        if storage.host_address is not None:
            opened.drain(host_bytes(storage, start, length).data, 0)
        else:
            for position, chunk in _chunks(length):
                blocking.read(device, storage, start + position, chunk, blocking.IS_OPERATION)
                opened.drain(chunk.data, position)


def _chunks(length: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the position of each chunk, and memory of its size, which the next one uses again."""
    memory = np.empty(min(length, CHUNK), np.uint8)
    for position in range(0, length, CHUNK):
        yield position, memory[: length - position]


class _Opened:
    """An open file during one transfer; it turns system errors into ours."""

    __slots__ = ("_descriptor", "_file", "_length", "_moved", "_what")

    def __init__(self, what: str, file: File, length: int, flags: int) -> None:
        self._what = what
        self._file = file
        self._length = length
        self._moved = 0
        try:
            # A pipe must not block the thread: the first transfer refuses it.
            flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            self._descriptor = os.open(file._path, flags, 0o666)
        except own(OSError) as error:
            raise self._failure(_reason(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            os.close(self._descriptor)
        except own(OSError) as late:
            # Some file systems report a failed write only now.
            if kind is None:
                raise self._failure(_reason(late)) from late

    def check_length(self) -> None:
        """Raise if the file ends before the range does, before any byte is moved."""
        status = os.fstat(self._descriptor)
        # Files that the system generates while they are read have no size.
        if stat.S_ISREG(status.st_mode) and 0 < status.st_size < self._file._offset + self._length:
            raise self._failure(f"the file has {status.st_size} bytes")

    def fill(self, memory: memoryview, position: int) -> None:
        """Read into all of `memory` from `position` in the range on."""
        at, done = self._file._offset + position, 0
        while done < len(memory):
            try:
                count = os.preadv(self._descriptor, [memory[done : done + CHUNK]], at + done)
            except own(OSError) as error:
                raise self._failure(_reason(error)) from error
            if not count:
                raise self._failure(f"the file ends at {at + done}")
            done += count
            self._moved += count

    def drain(self, memory: memoryview, position: int) -> None:
        """Write all of `memory` from `position` in the range on."""
        at, done = self._file._offset + position, 0
        while done < len(memory):
            try:
                count = os.pwritev(self._descriptor, [memory[done : done + CHUNK]], at + done)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except own(OSError) as error:
                raise self._failure(_reason(error)) from error
            done += count
            self._moved += count

    def _failure(self, reason: str) -> OperationError:
        return OperationError(
            f"{self._what}: {self._length} bytes at offset {self._file._offset} of "
            f"{self._file._path!r} were asked for, and {self._moved} were moved: {reason}"
        )


def _reason(error: OSError) -> str:
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
