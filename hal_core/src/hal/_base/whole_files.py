"""Read and write whole files: with a limit, and without ever replacing a device or a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, cast

from hal.arguments import as_path, shown_path
from hal.errors import FileError, InvalidArgumentError
from hal.handlers import dropped, own

MOST_BYTES: Final = 1 << 30
"""The most bytes read from a file."""
UNFINISHED: Final = ".new-"
"""The start of the names of files that are being written."""
_LEAST_ROOM: Final = 1 << 20  # some systems' generated files report no size

_KINDS: Final = {
    kind: type("FileError", (FileError, kind), {"__module__": "hal.errors"})
    for kind in (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
}


def read_whole(path: object, what: str) -> bytes:
    """Return the contents of a regular file.

    Raises `FileError` for a file that cannot be read, and `InvalidArgumentError`
    for a path that no file can have, for a device or a pipe, which may never
    end, and for more than `MOST_BYTES`. Their texts begin with `what`.
    """
    name = as_path(path, what)
    with _file_errors(what, name):
        # Without O_NONBLOCK a pipe without a writer would block the caller.
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            if stat.S_ISDIR(about.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(about.st_mode):
                message = f"{what}: {shown_path(name)} is a device or a pipe, and no file"
                raise InvalidArgumentError(f"{message}; pass its bytes")
            with open(handle, "rb", closefd=False) as file:
                room = min(max(about.st_size, _LEAST_ROOM), MOST_BYTES)
                content = file.read(room + 1)
        finally:
            os.close(handle)
    if len(content) > room:
        message = f"{what}: {shown_path(name)} has more than {room:,} bytes, which no image has"
        raise InvalidArgumentError(message)
    return content


def write_whole(path: object, content: bytes, what: str) -> None:
    """Write a file whole or not at all; raises `FileError`, and as `read_whole` for a path.

    A link stays, and its target is written. A file that is replaced
    keeps its permissions. Anything but a regular file, such as ``/dev/stdout``
    or a pipe with a reader, is written to and never replaced.
    """
    name = as_path(path, what)
    with _file_errors(what, name):
        try:
            mode: int | None = os.stat(name).st_mode
        except own(FileNotFoundError):
            mode = None
        if mode is None or stat.S_ISREG(mode):
            kept = None if mode is None else stat.S_IMODE(mode)
            replace_whole(os.path.realpath(name), content, kept)
            return
        # O_NONBLOCK refuses a pipe without a reader, which would block the caller.
        handle = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "wb") as file:
            os.set_blocking(handle, True)
            file.write(content)


@contextlib.contextmanager
def _file_errors(what: str, path: str) -> Iterator[None]:
    """Raise the system's errors as ours, except those of signal handlers (O3)."""
    try:
        yield
    except own(OSError) as error:
        kind = next((mine for kind, mine in _KINDS.items() if isinstance(error, kind)), FileError)
        message = f"{what}: {shown_path(path)}: {error.strerror or error}"
        raise cast("FileError", kind(message, errno=error.errno, filename=path)) from error


def replace_whole(target: str, content: bytes, mode: int | None) -> None:
    """Put a file in place of the existing one, if any; raises `OSError`.

    Without a mode it has that of a new file, from which the system takes the umask.
    """
    # Not `tempfile`, whose files have no such mode; it takes milliseconds to import, besides.
    name = os.path.join(os.path.dirname(target), UNFINISHED + os.urandom(8).hex())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(name, flags, 0o666 if mode is None else 0o600)
    try:
        with open(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(content)
        os.replace(name, target)
    except BaseException:
        with dropped(OSError):
            os.unlink(name)
        raise
