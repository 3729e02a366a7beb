"""Keep errors that many threads will see, and raise them afresh (rule S4)."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final

from hal.errors import HalError, OperationError, SemaphoreFailedError

__all__ = ["as_failure", "fresh", "is_users", "keep", "placed", "told"]


# Of the builtin class: a user's may do as it likes with its attributes.
_traceback: Final[Any] = vars(BaseException)["__traceback__"]
_cause: Final[Any] = vars(BaseException)["__cause__"]
_context: Final[Any] = vars(BaseException)["__context__"]
_members: Final[Any] = vars(BaseExceptionGroup)["exceptions"]


def keep(error: BaseException) -> BaseException:
    """Return `error` fit to be kept: without tracebacks, its own and those of what it links to.

    The frames of a traceback would keep every buffer of their variables alive.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        _traceback.__set__(link, None)
        rest += (_cause.__get__(link), _context.__get__(link))
        if isinstance(link, BaseExceptionGroup):
            rest += _members.__get__(link)
    return error


def told(error: BaseException) -> str:
    """Return an error's `repr`, or what stands for one that raises."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - whatever user code raises
        return object.__repr__(error)


def as_failure(error: Exception, what: str) -> HalError:
    """Return what an operation fails with after a native call raised `error`, fit to be kept.

    `what` says when that was. Raises the error itself if it is not the plugin's (O3).
    """
    if isinstance(error, HalError):
        failure = error
    elif is_users(error):
        raise error
    else:
        failure = OperationError(
            f"the backend raised {told(error)} while {what}; a plugin must raise a HalError"
        )
        failure.__cause__ = error
    keep(failure)
    return failure


def is_users(error: BaseException) -> bool:
    """Return whether an exception that came out of a native call is not the plugin's (O3).

    Ctrl-C and its like, a stack or a memory of Python's that is full, and whatever a signal
    handler of the user's raises, which Python calls between any two instructions of the
    main thread. A handler is known by the frame that it is called with, which is that of
    its caller, or as one that is installed now.
    """
    if isinstance(error, HalError):
        return False
    if not isinstance(error, Exception) or isinstance(error, (RecursionError, MemoryError)):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False  # signal handlers run on the main thread only
    step = _traceback.__get__(error)
    while step is not None:
        if _is_handler(step.tb_frame):
            return True
        step = step.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    """Return whether a frame is that of a signal handler."""
    caller = frame.f_back
    for value in list(frame.f_locals.values()):
        if value is caller or (type(value) is tuple and any(each is caller for each in value)):
            return caller is not None
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(getattr(handler, "__code__", None) is frame.f_code for handler in handlers)


def fresh(error: BaseException) -> HalError:
    """Return a new exception to raise for a kept one, which becomes its cause.

    It is of the kept one's class if that is a `HalError`, else a
    `SemaphoreFailedError`. One instance raised from many threads would grow
    its traceback and link unrelated contexts.
    """
    if isinstance(error, HalError):
        copy = _blank(error.__class__)
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
        copy.__dict__.pop("__notes__", None)
    else:
        copy = SemaphoreFailedError(f"the semaphore was failed with {told(error)}")
    copy.__cause__ = error
    return copy


def placed(place: str, error: HalError) -> HalError:
    """Return a new exception like `error` that says first where it came about."""
    told = fresh(error)
    told.args = (f"{place}: {error}", *error.args[1:])
    return told


def _blank(kind: type[HalError]) -> HalError:
    """Return an exception of a class without calling its initialiser, which may ask for more.

    A builtin among the bases (`MemoryError`, `OSError`) makes its own objects.
    """
    for base in kind.__mro__:
        if "__new__" in vars(base):
            try:
                made: HalError = vars(base)["__new__"](kind)
            except TypeError:
                continue  # another base has the say
            return made
    message = f"{kind.__name__} cannot be made"
    raise TypeError(message)
