"""Driver calls that another library's graph capture would forbid or fail by (O1).

While another library captures a stream into a graph, some calls are forbidden, in every
thread or in one, and make the capture fail: queries, waits, allocations, frees, and the
end of modules and instances of graphs. A thread whose capture mode is relaxed may make
them. CUDA and HIP both have a function that exchanges a thread's mode, and the same
number for a relaxed one; a backend keeps one `CaptureMode` for its driver.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from hal.errors import OperationError

__all__ = ["RELAXED", "CaptureMode", "captured"]

RELAXED: Final = 2
"""The number of the relaxed mode, in CUDA and in HIP."""


def captured(stream: int) -> OperationError:
    """Return the error for a foreign stream that is being captured.

    Work put on it then would not run but become part of the foreign graph, and an
    event recorded there would draw our streams into the capture.
    """
    return OperationError(
        f"stream {stream:#x} is being captured into a graph, and work of hal's cannot become part "
        "of that: end the capture first, or use a queue of the device's own"
    )


class CaptureMode(threading.local):
    """An exchange of the calling thread's capture mode.

    `address` is that of the driver's function, which takes the address of an int; None without
    such a function.
    """

    def __init__(self, address: int | None = None) -> None:
        # Relaxed before an exchange and after the one back; the thread's own mode in between
        self.word = ctypes.c_int(RELAXED)
        # Exchanges the mode and the word. It keeps the interpreter lock, since releasing that takes
        # longer than the driver's function; and it is no Python function, so that no interrupt
        # comes between a call of it and its work.
        if address is None:
            self.swap: Callable[[], object] = int
        else:
            exchange = ctypes.PYFUNCTYPE(ctypes.c_int)(address)
            self.swap = functools.partial(exchange, ctypes.byref(self.word))

    def relaxed(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as it is
        """Call a function that a capture may forbid; return its result."""
        if self.word.value != RELAXED:  # inside another such call: a signal handler calls
            return function(*arguments)
        swap = self.swap
        try:
            swap()
            return function(*arguments)
        finally:
            swap()
