"""Provide every lock, thread, clock and doorbell of the core.

Nothing else in the core touches ``threading`` or ``time``. A test scheduler
puts a module with these same names in place of this one and so drives every
interleaving of the core (design section 6).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable

__all__ = [
    "Doorbell",
    "Lock",
    "get_ident",
    "monotonic",
    "start_thread",
    "yield_thread",
]

Lock = threading.Lock
"""A lock, not re-entrant: ``acquire(blocking=True, timeout=-1)``, ``release()``, ``with``."""

get_ident = threading.get_ident
"""Return an integer that names the calling thread."""

monotonic = time.monotonic
"""Return seconds of a clock that never goes back."""


def start_thread(name: str, target: Callable[[], None]) -> None:
    """Start a daemon thread that runs `target` once.

    Daemon, because others are joined before exit hooks run, and the hook that
    closes every device needs the helper threads.
    """
    threading.Thread(target=target, name=name, daemon=True).start()


def yield_thread() -> None:
    """Let other threads run: give up the interpreter lock and the processor once.

    Not ``time.sleep(0)``, which Linux rounds up to the timer slack of 50
    microseconds, nor `os.sched_yield`, which keeps the interpreter lock
    before Python 3.12.
    """
    _libc.sched_yield()


class Doorbell:
    """Let a driver's thread, which must not run Python, wake one of ours.

    A POSIX semaphore whose post is a plain C function: a native device gets
    its address and argument (`function`, `argument`) and calls it after a
    stream's work. The posted memory is never freed, since a driver may post
    after the stream is gone.
    """

    __slots__ = ("_storage", "argument", "function")

    _immortal: list[ctypes.Array[ctypes.c_char]] = []  # noqa: RUF012 - one list for all, on purpose

    def __init__(self) -> None:
        # sem_t has 32 bytes on 64-bit glibc and musl; twice that is a margin.
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
        """Sleep until rung or for `timeout` seconds; take all rings at once.

        Returns True if it was rung. The interpreter lock is let go meanwhile.
        """
        if _libc.sem_trywait(self.argument) != 0:
            deadline = time.clock_gettime(time.CLOCK_REALTIME) + timeout
            whole = int(deadline)
            limit = _Timespec(whole, int((deadline - whole) * 1e9))
            if _libc.sem_timedwait(self.argument, ctypes.byref(limit)) != 0:
                return False
        while _libc.sem_trywait(self.argument) == 0:
            pass
        return True


class _Timespec(ctypes.Structure):
    """Mirror POSIX's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


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
    libc.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Timespec))
    return libc


_libc = _load_libc()
_post_address: int = ctypes.cast(_libc.sem_post, ctypes.c_void_p).value or 0
