"""A cache of compiled code on disk, for plugins: a backend's images, its own helpers.

The content of an entry is run as code, so an entry is read only if it is complete and
no other user could have written it.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hal._base.whole_files import UNFINISHED, replace_whole
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    try:  # `hashlib` would load OpenSSL, for as long as many a device takes to open
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b

__all__ = ["DiskCache"]

_ENTRIES_AT_MOST: Final = 2000
_LONGEST_WRITE: Final = 3600.0  # seconds after which a write of an entry counts as abandoned
_KEY: Final = 32  # bytes
_SUM: Final = 4  # bytes
_LOG_SIZE: Final = 8  # bytes, for the length of the log before an image


class DiskCache:
    """A cache of entries, each under a key that is made from all of its inputs.

    Any thread and any number of processes may use one. No method raises
    `OSError`: without a directory to write to, nothing is found and nothing
    kept. Beyond 2,000 entries the oldest quarter is removed.

    `name` is the backend's: the directory is ``$HAL_CACHE_DIR/name``, else
    ``$XDG_CACHE_HOME/hal/name``, else ``~/.cache/hal/name``. Every call
    reads the environment.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def directory(self) -> str | None:
        """Return the directory, created if necessary, or None if that is impossible.

        A directory that belongs to another user, or that others may write to, is not
        used.
        """
        root = os.environ.get("HAL_CACHE_DIR", "")
        if not root:
            base = os.environ.get("XDG_CACHE_HOME", "")
            # The specification says to ignore relative paths.
            has_base = os.path.isabs(base)
            root = os.path.join(base, "hal") if has_base else os.path.expanduser("~/.cache/hal")
            if root.startswith("~"):
                return None  # this user has no home
        with dropped(OSError):
            directory = os.path.join(os.path.abspath(root), self._name)
            try:
                about = os.lstat(directory)
            except own(FileNotFoundError):
                os.makedirs(directory, mode=0o700, exist_ok=True)
                about = os.lstat(directory)
            if stat.S_ISDIR(about.st_mode) and _is_private(about):
                return directory
        return None

    @staticmethod
    def key(*parts: str | bytes) -> str:
        """Return the key of a result of these parts, in this order."""
        digest = blake2b(digest_size=_KEY)
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            # The length keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def load(self, key: str) -> bytes | None:
        """Return an entry's content; None if it is absent, damaged or writable by others."""
        directory = self.directory()
        if directory is None:
            return None
        try:
            # The path may be a pipe, which must not block the thread.
            handle = os.open(
                os.path.join(directory, key),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            )
            try:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode) or not _is_private(about):
                    return None
                # One that is cut short meanwhile is damaged, as its checksum says.
                data = os.read(handle, about.st_size)
            finally:
                os.close(handle)
        except own(OSError):
            return None
        content = data[_SUM:]
        return content if _sum(content) == data[:_SUM] else None

    def store(self, key: str, content: bytes) -> None:
        """Put an entry into the cache, whole or not at all; without a cache do nothing."""
        directory = self.directory()
        if directory is None:
            return
        # A process that looks at the same time sees the old entry or the new one.
        with dropped(OSError):
            entry = _sum(content) + content
            replace_whole(os.path.join(directory, key), entry, 0o600)
            _prune(directory)

    def image(self, key: str | None, make: Callable[[], tuple[bytes, str]]) -> tuple[bytes, str]:
        """Return an image and its compiler's log, from the cache or else from `make`.

        A key of None is for inputs that may change, so the image is made each time.
        """
        if key is None:
            return make()
        entry = f"{key}.image"
        content = self.load(entry)
        if content is not None:
            # One file for both: most logs are empty, and a hit would look for theirs in vain.
            start = _LOG_SIZE + int.from_bytes(content[:_LOG_SIZE], "little")
            return content[start:], content[_LOG_SIZE:start].decode()
        image, log = make()
        text = log.encode()
        self.store(entry, b"".join((len(text).to_bytes(_LOG_SIZE, "little"), text, image)))
        return image, log


def _sum(content: bytes) -> bytes:
    # It tells of accidents: who could replace an entry could replace its digest, too.
    return zlib.crc32(content).to_bytes(_SUM, "little")


def _is_private(about: os.stat_result) -> bool:
    """Return whether only this user can write to a file or directory."""
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _prune(directory: str) -> None:
    """Remove the oldest entries when there are too many, and files of killed processes."""
    with os.scandir(directory) as found:
        entries = list(found)
    ages: list[tuple[float, str]] = []
    is_full = len(entries) > _ENTRIES_AT_MOST
    for entry in entries:
        if is_full or entry.name.startswith(UNFINISHED):
            with dropped(OSError):
                ages.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    ages.sort()
    oldest = {name for _, name in ages[: len(ages) // 4]} if is_full else set()
    for written, name in ages:
        is_left = name.startswith(UNFINISHED) and written < time.time() - _LONGEST_WRITE
        if is_left or name in oldest:
            with dropped(OSError):
                os.unlink(os.path.join(directory, name))
