"""Tell an error of the code that was called from one that a user's signal handler raised (O3).

Python calls a signal handler between any two instructions of the main thread, and what it raises
comes out of whatever runs there. So an ``except`` or a ``suppress`` that names kinds of errors
would also catch the user's errors of these kinds. `own` and `dropped` stand in their place.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

__all__ = ["dropped", "is_a_handlers", "own"]

_Error = TypeVar("_Error", bound=BaseException)

# The builtin class's descriptor: a user's class may redefine the attribute.
_traceback: Final[Any] = vars(BaseException)["__traceback__"]


def own(*kinds: type[_Error]) -> tuple[type[_Error], ...]:
    """Return the kinds for an ``except``, or none if a signal handler has raised the error.

    As in ``except own(OSError) as error:``. Python calls this while it looks for the ``except``
    that takes an error.
    """
    error = sys.exception()
    return () if isinstance(error, kinds) and is_a_handlers(error) else kinds


class dropped(contextlib.suppress):  # noqa: N801 - it is used as its base is
    """A block whose errors of some kinds are dropped, but not those of a signal handler."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        is_dropped = super().__exit__(kind, error, trace)
        return bool(is_dropped and error is not None and not is_a_handlers(error))


def is_a_handlers(error: BaseException) -> bool:
    """Return whether a signal handler has raised an error, and not the called function.

    It is recognised by the frame in its second argument, which is its caller's frame, or because it
    is installed now.
    """
    # Not the frame that has caught it: until Python 3.13 a look at variables makes a copy that the
    # frame keeps, and `error` in there would keep all that the frames refer to.
    trace = _traceback.__get__(error)
    trace = trace and trace.tb_next
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    codes: list[object] = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if callable(handler):
            handler = getattr(handler, "func", handler)  # of a `functools.partial`
            called = getattr(type(handler).__call__, "__code__", None)
            codes.append(getattr(handler, "__code__", called))
    while trace is not None:
        if trace.tb_frame.f_code in codes or _has_its_callers(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _has_its_callers(frame: FrameType) -> bool:
    """Return whether a frame has its caller's frame among its variables, as a handler does."""
    caller = frame.f_back
    return caller is not None and any(
        value is caller or (type(value) is tuple and any(each is caller for each in value))
        for value in list(frame.f_locals.values())
    )
