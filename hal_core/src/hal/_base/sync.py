"""Every lock, thread, clock and doorbell of the core.

Nothing else in the core touches ``threading`` or ``time``. A test scheduler
replaces this module with one that has the same names, and so drives every
interleaving of the core (design section 6).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hal import locks
from hal._base import speedups
from hal._base.futex import Timespec
from hal.errors import OperationError
from hal.handlers import dropped, own

Lock: Callable[[], Any] = locks.Lock
OwnedLock: Callable[[], Any] = locks.RLock
"""Nobody takes one twice: see `hal._engine.steps.begin`."""

LeafLock: Callable[[], Any] = (
    OwnedLock if speedups.module is None else locks.fit(speedups.module.OwnedLock)
)
"""An `OwnedLock` that the C extension takes, too, and that nobody holds across a native call.

A thread that waits for the extension's lock needs the interpreter lock to take it. An owner that
released the interpreter lock in between, again and again, would starve the others.
"""

Mark: Callable[[], Any] = Lock if speedups.module is None else locks.fit(speedups.module.OwnedLock)
"""A lock that marks where a thread is: held by ``with``; ``locked()`` tells the others.

A type of its own, since no thread ever waits for one. The extension's can be released without
memory, where the end of a ``with`` needs a tuple for Python's.
"""

get_ident = threading.get_ident
"""Return an integer that identifies the calling thread."""

monotonic = time.monotonic
"""Return the seconds of a clock that never goes back."""


def start_thread(name: str, target: Callable[[], None]) -> None:
    """Start a daemon thread that runs `target` once; raises `OperationError` if none starts."""
    try:
        # A daemon, because others are joined before exit hooks run, and the hook that closes every
        # device needs the helper threads.
        threading.Thread(target=target, name=name, daemon=True).start()
    except own(RuntimeError, MemoryError) as error:
        raise OperationError(
            f"the thread {name} was asked for, and the system starts none ({error}); end threads "
            "or processes, or raise their limit (ulimit -u, pids.max of the container) or that of "
            "memory (ulimit -v)"
        ) from error


def yield_thread() -> None:
    """Let other threads run: give up the interpreter lock and the processor once."""
    # Not `time.sleep(0)`, which Linux rounds up to the timer slack of 50 microseconds, nor
    # `os.sched_yield`, which keeps the interpreter lock before Python 3.12.
    _libc.sched_yield()


def nap(seconds: float) -> None:
    """Sleep for at least some 60 microseconds."""
    gate = Lock()
    gate.acquire()
    gate.acquire(timeout=seconds)


_LOOK_SECONDS: Final = 0.5
_LONGEST_SECONDS: Final = 1e6


class Doorbell:
    """A doorbell for another thread, one of a driver's too, to wake one of ours.

    A POSIX semaphore whose post is a plain C function: a native device gets
    its address and argument (`function`, `argument`) and calls it after a
    stream's work, on a thread that must not run Python. The memory is never freed, since a driver
    may post after the stream is gone. So it may ring for work that ended long ago, and a woken
    thread looks for the reason.
    """

    __slots__ = ("_flag", "argument", "function")

    _immortal: list[ctypes.Array[ctypes.c_char]] = []  # noqa: RUF012 - one list for all, on purpose

    def __init__(self) -> None:
        # A flag, see `spin`, and behind it a sem_t, which has 32 bytes on 64-bit glibc and musl;
        # twice that leaves a margin.
        self._flag = ctypes.create_string_buffer(_SHUT, len(_SHUT) + 64)
        self._immortal.append(self._flag)
        self.argument: int = ctypes.addressof(self._flag) + len(_SHUT)
        if _quick.sem_init(self.argument, 0, 0) != 0:
            message = f"sem_init failed with errno {ctypes.get_errno()}"
            raise OSError(ctypes.get_errno(), message)
        self.function: int = _post_address

    def ring(self) -> None:
        """Wake the waiter, or the next one to wait. Never blocks; any thread."""
        self._flag[0] = b"x"
        _quick.sem_post(self.argument)

    def spin(self) -> None:
        """Busy-wait for `ring` without the interpreter lock, some 50 microseconds; then `wait`."""
        if _CAN_SPIN:
            # To wake a sleeping processor can cost as much, and so can the interpreter lock when
            # two threads contend for it: a loop in Python would contend with the very thread that
            # is to ring. So the C library spins: a linear search compares the flag with that of a
            # rung one over and over. Both are long, and take some microseconds to compare once
            # rung; by then the ringer has probably released the interpreter lock.
            _libc.lfind(self._flag, _RUNG, _SPINS, 0, _compare)

    def wait(self, timeout: float) -> bool:
        """Sleep until rung or for `timeout` seconds, infinity too; consume all rings at once.

        Returns True if it was rung. Releases the interpreter lock meanwhile. Ctrl-C ends it in the
        main thread.
        """
        # The main thread looks for a Ctrl-C every half a second: a signal whose C handler ran
        # between Python's last look and the system call, or on another thread, ends no sleep.
        is_main = get_ident() == threading.main_thread().ident
        most = _LOOK_SECONDS if is_main else _LONGEST_SECONDS
        end = monotonic() + timeout
        while not _sleep_at(self.argument, min(timeout, most)):
            timeout = end - monotonic()
            if timeout <= 0:
                return False
        self._flag[0] = b"-"
        return True

    def clear(self) -> bool:
        """Forget all rings so far; return whether there was one."""
        self._flag[0] = b"-"
        return _take_all(self.argument)


def _take_all(semaphore: int) -> bool:
    was_posted = False
    while _quick.sem_trywait(semaphore) == 0:
        was_posted = True
    return was_posted


def _sleep_in_python(semaphore: int, seconds: float) -> bool:
    """Sleep at a POSIX semaphore until it is posted, or for a time; take all posts."""
    if _CAN_CLOCK:
        until = ctypes.byref(Timespec(monotonic() + seconds))
        is_posted: bool = _libc.sem_clockwait(semaphore, time.CLOCK_MONOTONIC, until) == 0
    else:  # a clock that is set back makes it longer
        until = ctypes.byref(Timespec(time.time() + seconds))
        is_posted = _libc.sem_timedwait(semaphore, until) == 0
    return _take_all(semaphore) or is_posted


_sleep_at: Callable[[int, float], bool] = (
    _sleep_in_python if speedups.module is None else speedups.module.sleep_at
)


_Libc = TypeVar("_Libc", bound=ctypes.CDLL)


def _load_libc(load: type[_Libc]) -> _Libc:
    """Load the C library's POSIX semaphores, which libpthread holds on older systems."""
    libc = load(None, use_errno=True)
    if not hasattr(libc, "sem_timedwait"):
        with dropped(OSError):
            libc = load("libpthread.so.0", use_errno=True)
    for name in ("sem_init", "sem_post", "sem_trywait", "sem_timedwait"):
        getattr(libc, name).restype = ctypes.c_int
    libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    libc.sem_post.argtypes = (ctypes.c_void_p,)
    libc.sem_trywait.argtypes = (ctypes.c_void_p,)
    libc.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(Timespec))
    return libc


_libc = _load_libc(ctypes.CDLL)
_CAN_CLOCK: Final = hasattr(_libc, "sem_clockwait")  # glibc since 2.30, and not musl
if _CAN_CLOCK:
    _libc.sem_clockwait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(Timespec))
_quick = _load_libc(ctypes.PyDLL)  # keeps the interpreter lock, for what never blocks
_libc.lfind.restype = ctypes.c_void_p
_libc.lfind.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_size_t, ctypes.c_void_p)
_compare: Final = ctypes.cast(_libc.strverscmp, ctypes.c_void_p)  # a few ns a character
_RUNG: Final = b"x" * 4095 + b"\0"
_SHUT: Final = b"-" + _RUNG[1:]
_SPINS: Final = ctypes.byref(ctypes.c_size_t(20_000))
_CAN_SPIN: Final = (os.cpu_count() or 1) > 1
_post_address: int = ctypes.cast(_libc.sem_post, ctypes.c_void_p).value or 0
