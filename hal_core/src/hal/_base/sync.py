"""Every lock, thread, clock and doorbell of the core.

Nothing else in the core touches ``threading`` or ``time``. A test scheduler
replaces this module with one that has the same names, and so drives every
interleaving of the core (design section 6).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hal._base import speedups
from hal._base.futex import Timespec
from hal.errors import OperationError

Lock = threading.Lock
"""A lock, not re-entrant: ``acquire(blocking=True, timeout=-1)``, ``release()``, ``with``."""

OwnedLock: Callable[[], Any] = threading.RLock
"""A lock for ``with`` that knows its owner.

``_is_owned()`` tells whether the calling thread holds it. Nobody takes one twice: see
`hal._engine.steps.begin`.
"""

LeafLock: Callable[[], Any] = (
    threading.RLock if speedups.module is None else speedups.module.OwnedLock
)
"""An `OwnedLock` that the C extension takes, too, and that nobody holds across a native call.

Who waits for the extension's needs the interpreter lock to get it: an owner that gave that up
in between, again and again, would starve the others.
"""

Mark = threading.Lock
"""A lock that marks where a thread is: held by ``with``; ``locked()`` tells the others.

A type of its own, since no thread ever waits for one.
"""

get_ident = threading.get_ident
"""Return an integer that identifies the calling thread."""

monotonic = time.monotonic
"""Return the seconds of a clock that never goes back."""


def start_thread(name: str, target: Callable[[], None]) -> None:
    """Start a daemon thread that runs `target` once.

    It is a daemon, because others are joined before exit hooks run, and the hook that
    closes every device needs the helper threads. Raises `OperationError` if the
    system cannot start one.
    """
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        raise OperationError(
            f"the thread {name} was asked for, and the system starts none ({error}); end threads "
            "or processes, or raise their limit (ulimit -u, pids.max of the container) or that of "
            "memory (ulimit -v)"
        ) from error


def yield_thread() -> None:
    """Let other threads run: give up the interpreter lock and the processor once.

    Not ``time.sleep(0)``, which Linux rounds up to the timer slack of 50
    microseconds, nor `os.sched_yield`, which keeps the interpreter lock
    before Python 3.12.
    """
    _libc.sched_yield()


def nap(seconds: float) -> None:
    """Sleep for at least some 60 microseconds."""
    gate = Lock()
    gate.acquire()
    gate.acquire(timeout=seconds)


_LOOK_SECONDS: Final = 0.5


class Gate:
    """A gate that one thread waits at until another opens it for good."""

    __slots__ = ("_flag", "_lock")

    def __init__(self) -> None:
        self._flag = _Flag.from_buffer_copy(_SHUT)
        self._lock = Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Wake the waiter, now or when it comes. Never blocks; any thread, any number of times."""
        self._flag[0] = b"x"
        # No look before: two threads could release it. A context manager would cost more.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass  # it is open

    def spin(self) -> bool:
        """Busy-wait some 50 microseconds for the gate to open, without the interpreter lock.

        Returns whether it is open. Waking a sleeping processor can cost as
        much, and so can the interpreter lock when two threads contend for it; a
        loop in Python would contend with the very thread that is to open
        the gate. So the C library spins here: a linear search compares the flag
        with an open one over and over. Two open flags, which are long, take it
        some microseconds to compare; by then the opener has probably released the
        interpreter lock.
        """
        if _CAN_SPIN:
            _libc.lfind(self._flag, _OPEN, _SPINS, 0, _compare)
        return self._flag[0] == b"x"

    def wait(self, seconds: float) -> bool:
        """Sleep until the gate is open or for `seconds`; return whether it is open.

        A negative number means forever; Ctrl-C ends it in the main thread. That looks for one
        every half a second: a signal whose C handler ran between Python's last look and
        the system call, or on another thread, ends no sleep.
        """
        lock = self._lock
        if get_ident() != threading.main_thread().ident or 0 <= seconds <= _LOOK_SECONDS:
            return lock.acquire(timeout=seconds)
        end = monotonic() + seconds if seconds >= 0 else math.inf
        while (left := end - monotonic()) > _LOOK_SECONDS:
            if lock.acquire(timeout=_LOOK_SECONDS):
                return True
        return lock.acquire(timeout=max(left, 0.0))


class Doorbell:
    """A doorbell for a driver's thread, which must not run Python, to wake one of ours.

    A POSIX semaphore whose post is a plain C function: a native device gets
    its address and argument (`function`, `argument`) and calls it after a
    stream's work. The memory is never freed, since a driver may post
    after the stream is gone.
    """

    __slots__ = ("_storage", "argument", "function")

    _immortal: list[ctypes.Array[ctypes.c_char]] = []  # noqa: RUF012 - one list for all, on purpose

    def __init__(self) -> None:
        # sem_t has 32 bytes on 64-bit glibc and musl; twice that leaves a margin.
        self._storage = ctypes.create_string_buffer(64)
        self._immortal.append(self._storage)
        self.argument: int = ctypes.addressof(self._storage)
        if _libc.sem_init(self.argument, 0, 0) != 0:
            message = f"sem_init failed with errno {ctypes.get_errno()}"
            raise OSError(ctypes.get_errno(), message)
        self.function: int = _post_address

    def ring(self) -> None:
        """Wake the waiter, or the next one to wait. Never blocks; any thread."""
        _libc.sem_post(self.argument)

    def wait(self, timeout: float) -> bool:
        """Sleep until rung or for `timeout` seconds; consume all rings at once.

        Returns True if it was rung. Releases the interpreter lock meanwhile.
        """
        if _libc.sem_trywait(self.argument) != 0:
            deadline = time.clock_gettime(time.CLOCK_REALTIME) + timeout
            if _libc.sem_timedwait(self.argument, ctypes.byref(Timespec(deadline))) != 0:
                return False
        while _libc.sem_trywait(self.argument) == 0:
            pass
        return True


def _load_libc() -> ctypes.CDLL:
    """Load the C library's POSIX semaphores, which libpthread holds on older systems."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "sem_timedwait"):
        with contextlib.suppress(OSError):
            libc = ctypes.CDLL("libpthread.so.0", use_errno=True)
    for name in ("sem_init", "sem_post", "sem_trywait", "sem_timedwait"):
        getattr(libc, name).restype = ctypes.c_int
    libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    libc.sem_post.argtypes = (ctypes.c_void_p,)
    libc.sem_trywait.argtypes = (ctypes.c_void_p,)
    libc.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(Timespec))
    return libc


_libc = _load_libc()
_libc.lfind.restype = ctypes.c_void_p
_libc.lfind.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_size_t, ctypes.c_void_p)
_compare: Final = ctypes.cast(_libc.strverscmp, ctypes.c_void_p)  # a few ns a character
_Flag: Final = ctypes.c_char * 4096
_OPEN: Final = _Flag.from_buffer_copy(b"x" * 4095 + b"\0")
_SHUT: Final = b"-" + bytes(_OPEN)[1:]
_SPINS: Final = ctypes.byref(ctypes.c_size_t(20_000))
_CAN_SPIN: Final = (os.cpu_count() or 1) > 1
_post_address: int = ctypes.cast(_libc.sem_post, ctypes.c_void_p).value or 0
