"""Sleep until a word of shared memory changes: Linux's futex, between processes."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
"""The number of the system call for each machine."""

_NUMBER: Final = (
    _NUMBERS.get(os.uname().machine, 0) if sys.platform == "linux" and sys.maxsize >> 32 else 0
)
_WAIT: Final = 0
_WAKE: Final = 1
_EVERYBODY: Final = 2**31 - 1

_syscall: Any = ctypes.CDLL(None).syscall if _NUMBER else None


class Timespec(ctypes.Structure):
    """POSIX's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    def __init__(self, seconds: float) -> None:
        whole = int(seconds)
        super().__init__(whole, int((seconds - whole) * 1e9))


def is_available() -> bool:
    """Return whether this system has futexes that this module knows how to call."""
    return _syscall is not None


def sleep(address: int, value: int, seconds: float) -> None:
    """Sleep until somebody wakes the 32-bit word, unless it differs from `value`, or for a time.

    May return early. Releases the interpreter lock.
    """
    word, limit = ctypes.c_void_p(address), ctypes.byref(Timespec(seconds))
    _syscall(_NUMBER, word, _WAIT, ctypes.c_uint32(value), limit, None, 0)


def wake(address: int) -> None:
    """Wake all that sleep at the 32-bit word, in any process."""
    _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)
