"""Regions: files in memory that several processes of one user map.

A region is Linux's memory file (``memfd_create``), which has no name in any file system and is
gone with the last process that uses it, however that ends. Another process opens it through
``/proc``, where the kernel checks the user; no process listens anywhere. POSIX's named shared
memory was rejected, because what a killed process leaves of it stays until the next boot.

The first page says what the region is and which processes are its *members*. Every word of it
has one writer at a time: a member writes its own slot, and what is common is written under a
lock of the file. So a reader needs no lock, and the value of a timeline is the highest of those
in the slots.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from hal._base import futex, sync
from hal.errors import ClosedError, InvalidArgumentError, OutOfMemoryError, UnimplementedError
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from hal.tickets import Ticket


PAGE: Final = 4096
"""The bytes of the first page; the data is behind it."""

_MAGIC: Final = b"hal-1.0\0"
_KINDS: Final = {"bell": 1, "buffer": 2, "semaphore": 3, "group": 4}

# The first page: magic, kind, secret, size of the rest in bytes; then words of eight bytes
_HEAD: Final = struct.Struct("8sQ16sQ")
_TOP: Final = 5  # the number of slots that were ever taken
_COUNT: Final = 6
"""How often a slot was taken or given back: readers of the slots look at this first."""
_FAILED: Final = 7
_IS_SHUT: Final = 8
_SLOTS: Final = 16
_MEMBERS: Final = 32
_TEXT: Final = 8 * (_SLOTS + 8 * _MEMBERS)  # its offset in bytes
BELL_WORD: Final = 8 * _SLOTS
"""The offset of the word of a bell, which has no members."""

# A slot: eight words, one line of the processor's cache. The first three are those of a `Member`.
_PROCESS: Final = 0
_STARTED: Final = 1
_BELL: Final = 2
_VALUE: Final = 3
_STATE: Final = 4
_AWAKE: Final = 5

_JOINED: Final = 1
_LEFT: Final = 2
"""States of a slot; 0 is one that was never taken."""

_ANY: Final = object()  # no ticket has it as its secret


before_first: Final[list[Callable[[], None]]] = []
"""Called once each, before this process makes a region: what only programs that share need."""


class Member(NamedTuple):
    """A process that uses a region, as its slot says."""

    number: int
    process: int
    started: int
    bell: int

    def is_alive(self) -> bool:
        """Return whether the process still runs; reads one file of ``/proc``."""
        return started_at(self.process, self.started) == self.started


class _FileLock:
    """A region's lock in this process, for all of its mappings.

    The system gives one to each opening of the file. A signal handler that opens what its thread
    is opening would wait for the other.
    """

    __slots__ = ("__weakref__", "depth", "fd", "lock")

    def __init__(self) -> None:
        self.lock = sync.OwnedLock()
        self.depth = 0  # how often its thread holds it: more than once in a signal handler
        self.fd = -1  # the file by which it is held


_file_locks: Final[WeakValueDictionary[bytes, _FileLock]] = WeakValueDictionary()
"""By the secrets of the regions."""


class SharedRegion:
    """One process's mapping of a region."""

    def __init__(self, fd: int, kind: str, size: int, secret: bytes) -> None:
        """Map a file; the caller closes it, or has `fd` own it once nothing can interrupt that."""
        self.fd = -1
        self.kind = kind
        self.size = size  # of what follows its first page
        self.secret = secret  # a ticket must name it
        self.slot = -1  # the number of this process's, once it has joined
        self._map = mmap.mmap(fd, PAGE + size)
        # Read word by word: without the interpreter lock, CPython 3.13 miscounts the slices that
        # threads make of one view, and then releases the view.
        self._words = memoryview(self._map)[:PAGE].cast("Q")
        # Of its first page, in this process
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        # What `members` has found at a count; together, since several threads look at once.
        self._others: tuple[int, tuple[Member, ...]] = (0, ())
        self._lock = _file_locks.get(secret) or _file_locks.setdefault(secret, _FileLock())

    @classmethod
    def create(cls, kind: str, size: int) -> SharedRegion:
        """Create a region with `size` bytes of data, all zero.

        Raises `UnimplementedError` on a system without what it needs, and `OutOfMemoryError`.
        """
        if not futex.is_available() or not hasattr(os, "memfd_create"):
            raise UnimplementedError(
                "sharing between processes needs Linux on a 64-bit machine; elsewhere, send the "
                "bytes, as in buffer.numpy()"
            )
        while before_first:
            before_first.pop()()
        if size > _available():  # the system promises more than it has, and kills processes later
            raise OutOfMemoryError(
                f"{size:,} bytes of shared memory were asked for, and the system has "
                f"{_available():,} available; close other buffers, or ask for less"
            )
        secret = os.urandom(16)
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create(f"hal-{kind}", flags)
            try:
                os.ftruncate(fd, PAGE + size)
                # No process can cut it short and have the others die of a bus error.
                fcntl.fcntl(
                    fd,
                    fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
                )
                region = cls(fd, kind, size, secret)
                region.fd = fd
            except BaseException:
                os.close(fd)
                raise
        except own(OSError) as error:
            raise OutOfMemoryError(
                f"{size:,} bytes of shared memory were asked for, and the system gives none "
                f"({error.strerror}); close other buffers, or raise the limits of memory and of "
                "open files"
            ) from error
        head = _HEAD.pack(_MAGIC, _KINDS[kind], secret, size)
        region._map[: len(head)] = head
        return region

    @classmethod
    def open(cls, ticket: Ticket, kind: str, size: int) -> SharedRegion:
        """Open the region of another process, or of this one.

        Raises `InvalidArgumentError` for a ticket of another host, boot or user, and
        `ClosedError` if its process has ended or closed what it shared.
        """
        what = f"the ticket of a {kind} of process {ticket.process}"
        if ticket.boot != boot():
            raise InvalidArgumentError(
                f"{what} is of another host, or of this one before its last boot; make one here"
            )
        if ticket.user != os.geteuid():
            raise InvalidArgumentError(
                f"{what} is of user {ticket.user}, and this process runs as user {os.geteuid()}; "
                "share between processes of one user"
            )
        if started_at(ticket.process) != ticket.started:
            raise ClosedError(
                f"{what} cannot be opened: that process has ended; share again from one that runs"
            )
        return cls.open_file(ticket.process, ticket.file, kind, size, what, ticket.secret)

    @classmethod
    def open_file(
        cls, process: int, file: int, kind: str, size: int, what: str, secret: object = _ANY
    ) -> SharedRegion:
        """Open a process's file by its number, if it is a region of that kind and secret."""
        closed = ClosedError(
            f"{what} cannot be opened: it was closed there; keep it until it was opened"
        )
        path = f"/proc/{process}/fd/{file}"
        region = None
        try:
            # Another file may have the number by now.
            if not os.readlink(path).startswith(f"/memfd:hal-{kind}"):
                raise closed
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                found, there = _head_of(fd, kind)
                if there >= size and secret in {_ANY, found}:
                    region = cls(fd, kind, there, found)
                    region.fd = fd
            finally:
                if region is None:
                    os.close(fd)
        except own(FileNotFoundError, ProcessLookupError):
            raise closed from None
        except own(OSError) as error:
            raise InvalidArgumentError(
                f"{what} cannot be opened: the system refuses it ({error.strerror}); both "
                "processes must be of one user, in one container, and within their limits of open "
                "files and memory"
            ) from error
        if region is None:
            raise closed
        return region

    def names(self) -> dict[str, Any]:
        """Return the fields of a ticket that names this region."""
        return {
            "process": os.getpid(),
            "started": began(os.getpid()),
            "boot": boot(),
            "user": os.geteuid(),
            "file": self.fd,
            "secret": self.secret,
        }

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's lock, which the kernel takes from a process that dies."""
        held = self._lock
        with held.lock:
            depth = held.depth
            try:
                if not depth:
                    held.fd = self.fd
                held.depth = depth + 1
                fcntl.flock(held.fd, fcntl.LOCK_EX)  # also if the handler's caller has not yet
                yield
            finally:
                held.depth = depth
                if not depth:  # else the kernel, which does not count, would free it
                    fcntl.flock(held.fd, fcntl.LOCK_UN)

    # Members

    def join(self, bell: int) -> None:
        """Take a slot for this process, whose bell is the file of that number.

        Raises `InvalidArgumentError` if there is none, `ClosedError` if it was shut, and as
        `began` does.
        """
        words, process = self._words, os.getpid()
        started = began(process)
        with self._locked():
            if words[_IS_SHUT]:
                raise ClosedError(f"the {self.kind} was closed by the process that shared it")
            states = [words[_SLOTS + 8 * slot + _STATE] for slot in range(_MEMBERS)]
            number = next((slot for slot, state in enumerate(states) if state != _JOINED), None)
            if number is None:
                raise InvalidArgumentError(
                    f"a shared {self.kind} has at most {_MEMBERS} users at a time, and it has "
                    "them; close it elsewhere, or share another"
                )
            base = _SLOTS + 8 * number
            words[base + _PROCESS] = process
            words[base + _STARTED] = started
            words[base + _BELL] = bell
            # Readers take no lock. So the value of a member that has left never goes back, and the
            # state, by which they find a member, comes last.
            words[base + _VALUE] = max(self.value(), words[base + _VALUE])
            words[base + _AWAKE] = 0
            words[base + _STATE] = _JOINED
            words[_TOP] = max(words[_TOP], number + 1)
            words[_COUNT] += 1
            self.slot = number

    def shut(self) -> None:
        """Let no process join any more."""
        with self._locked():
            self._words[_IS_SHUT] = 1

    def leave(self) -> None:
        """Give the slot back; its value stays. May be called twice."""
        if self.slot >= 0:
            self._words[_SLOTS + 8 * self.slot + _STATE] = _LEFT
            with self._locked():
                self._words[_COUNT] += 1
            self.slot = -1

    def members(self) -> tuple[Member, ...]:
        """Return the other members, those that have died included."""
        words = self._words
        seen, others = self._others
        if words[_COUNT] != seen:
            seen = words[_COUNT]
            found = []
            for number in range(_MEMBERS):
                base = _SLOTS + 8 * number
                if number != self.slot and words[base + _STATE] == _JOINED:
                    found.append(Member(number, *(words[base + each] for each in range(_VALUE))))
            others = tuple(found)
            self._others = seen, others
        return others

    def expel_dead(self) -> list[Member]:
        """Give back the slots of members that have died, and return those; their values stay."""
        dead = [member for member in self.members() if not member.is_alive()]
        for member in dead:
            with self._locked():
                base = _SLOTS + 8 * member.number
                # By now it may be that of another process, which began in the same tick.
                told = self._words[base + _PROCESS], self._words[base + _STARTED]
                if told == (member.process, member.started):
                    self._words[base + _STATE] = _LEFT
                    self._words[_COUNT] += 1
        return dead

    def is_sleeping(self, member: Member) -> bool:
        """Return whether a member looks only when its bell rings."""
        return not self._words[_SLOTS + 8 * member.number + _AWAKE]

    def is_awake(self) -> bool:
        """Return whether a thread of this process looks at the values all the time."""
        return bool(self._words[_SLOTS + 8 * self.slot + _AWAKE])

    def set_awake(self, count: int) -> None:
        """Say how many threads of this process look at the values all the time."""
        self._words[_SLOTS + 8 * self.slot + _AWAKE] = count

    def bell(self) -> int:
        """Return the last ring of a bell."""
        return self._words[_SLOTS]

    def set_bell(self, ring: int) -> None:
        """Note a ring of a bell."""
        self._words[_SLOTS] = ring

    # A timeline's value and failure

    def value(self) -> int:
        """Return the highest value of any member, past or present; takes no lock."""
        words = self._words
        top = _SLOTS + 8 * words[_TOP]
        return max(map(words.__getitem__, range(_SLOTS + _VALUE, top, 8)), default=0)

    def raise_to(self, value: int) -> None:
        """Note the value that this process has reached."""
        self._words[_SLOTS + 8 * self.slot + _VALUE] = value

    def failure(self) -> tuple[str, str] | None:
        """Return the class and the message of the first failure, or None."""
        if not self._words[_FAILED]:
            return None
        text = bytes(self._map[_TEXT:PAGE]).rstrip(b"\0").decode(errors="ignore")
        kind, _, message = text.partition("\n")
        return kind, message

    def fail(self, kind: str, message: str) -> None:
        """Note a failure, whose message may be cut short; the first one stays."""
        text = f"{kind}\n{message}".encode(errors="replace")[: PAGE - _TEXT]
        with self._locked():
            if not self._words[_FAILED]:
                self._map[_TEXT : _TEXT + len(text)] = text
                self._words[_FAILED] = 1

    # The end

    def __del__(self) -> None:
        """Close the file; the mapping goes with its last user."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)


@functools.cache
def boot() -> str:
    """Return the name of this host's present boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except own(OSError):
        return ""


def _head_of(fd: int, kind: str) -> tuple[bytes, int]:
    """Return a file's secret and the bytes of its data; -1 of those if it is no such region."""
    status = os.fstat(fd)
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) == _HEAD.size:
        magic, number, secret, size = _HEAD.unpack(head)
        told = magic, number, status.st_uid, status.st_size
        if told == (_MAGIC, _KINDS[kind], os.geteuid(), PAGE + size):
            return secret, size
    return b"", -1


def _available() -> int:
    """Return the bytes of memory that new pages can have; many if the system does not tell."""
    lines: list[str] = []
    with dropped(OSError), open("/proc/meminfo", encoding="ascii") as file:
        lines = file.readlines()
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return sys.maxsize


@functools.cache
def began(process: int) -> int:
    """Return when this process, of that number, began; raises `OutOfMemoryError`.

    No number stands for a time that is not known: others would take the process for dead.
    """
    started = started_at(process)
    if started is None:
        raise OutOfMemoryError(
            "the system opens no file that tells when this process began; raise its limit of open "
            "files, or close some"
        )
    return started


def started_at(process: int, unknown: int | None = None) -> int | None:
    """Return when a process began, in ticks since the boot; None if it has ended.

    `unknown` if the system does not tell, as one that opens no more files for this process.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except own(FileNotFoundError, ProcessLookupError):
        return None
    except own(OSError):
        return unknown
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])
