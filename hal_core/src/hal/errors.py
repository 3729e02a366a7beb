"""The one tree of errors that hal raises.

::

    Exception
    └── HalError                    status, native_name, native_code
        ├── InvalidArgumentError    ValueError: out of range, or makes no sense
        ├── ArgumentTypeError       TypeError: an argument has the wrong type
        ├── UnimplementedError      NotImplementedError: the backend lacks the feature
        ├── ExchangeError           BufferError: memory and another library do not fit together
        ├── NotFoundError           LookupError: a kernel, global or device is unknown
        ├── FileError               OSError: a path that cannot be read or written
        ├── OutOfMemoryError        MemoryError: after everything unused was given back
        ├── DeadlineExceededError   TimeoutError: a wait ran out of time
        ├── CompilationError        the compiler refused a kernel's source
        ├── ClosedError             ValueError: closed, or a parent process's
        ├── CancelledError          the operation was cancelled before it was issued
        ├── ReentrantCallError      RuntimeError: a signal handler interrupted hal and calls it
        ├── OperationError          the device refused or failed one operation
        ├── DeviceLostError         the native context is gone; nothing on it can go on
        ├── ProcessLostError        another process has died that shared something with this one
        ├── SemaphoreFailedError    a semaphore was failed with an error that is no HalError
        ├── CollectiveError         a group of ranks is broken; records, ranks
        │   ├── CollectiveMismatchError  ValueError: the ranks submitted different operations
        │   ├── CollectiveTimeoutError   TimeoutError: a rank did not come in time
        │   └── RendezvousError          TimeoutError: the ranks of a group did not all come
        └── BackendError
            ├── BackendNotFoundError     LookupError: no plugin of that name is installed
            ├── BackendUnavailableError  installed, but no driver or device is here
            └── PluginError              installed and broken; the cause is chained

A message says what was asked, what is there, and what to do. ``native_name``
and ``native_code`` keep the vendor's own error where there was one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

__all__ = [
    "ArgumentTypeError",
    "BackendError",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "CancelledError",
    "ClosedError",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "CompilationError",
    "DeadlineExceededError",
    "DeviceLostError",
    "ExchangeError",
    "FileError",
    "HalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OperationError",
    "OutOfMemoryError",
    "PluginError",
    "ProcessLostError",
    "ReentrantCallError",
    "RendezvousError",
    "SemaphoreFailedError",
    "UnimplementedError",
    "WorkFailedError",
]

_LINES_SHOWN: Final = 5  # how many of a compiler's errors the message of a `CompilationError` has


class HalError(Exception):
    """The base of every error that hal raises on purpose.

    `status` is a stable, upper-case name of the class of error, as in
    ``"INVALID_ARGUMENT"``; the same for a subclass that adds none. `native_name` and
    `native_code` are the vendor's name and number of the error, or None where
    the error did not come from a vendor's library.
    """

    status: ClassVar[str] = "UNKNOWN"

    def __init__(
        self, message: str = "", *, native_name: str | None = None, native_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.native_name = native_name
        self.native_code = native_code


class InvalidArgumentError(HalError, ValueError):
    """An argument that is out of range or contradicts another."""

    status = "INVALID_ARGUMENT"


class ArgumentTypeError(HalError, TypeError):
    """An argument of the wrong type."""

    status = "INVALID_ARGUMENT"


class UnimplementedError(HalError, NotImplementedError):
    """A feature that this backend, device or driver version lacks."""

    status = "UNIMPLEMENTED"


class ExchangeError(HalError, BufferError):
    """Memory that cannot be handed to another library, or taken from it, as asked."""

    status = "FAILED_PRECONDITION"


class NotFoundError(HalError, LookupError):
    """A name (of a kernel, a global, a device) that does not exist."""

    status = "NOT_FOUND"


class FileError(HalError, OSError):
    """A file that cannot be read or written; also a `FileNotFoundError` where that fits.

    `errno` is the system's number of the error, and `filename` the path.
    """

    status = "FAILED_PRECONDITION"

    def __init__(self, message: str = "", *, errno: int | None = None, filename: str = "") -> None:
        super().__init__(message)
        self.errno = errno
        self.filename = filename or None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class OutOfMemoryError(HalError, MemoryError):
    """No memory, even after finished work and caches gave theirs back."""

    status = "RESOURCE_EXHAUSTED"


class DeadlineExceededError(HalError, TimeoutError):
    """A wait that ran out of time; the text lists what it still waits for."""

    status = "DEADLINE_EXCEEDED"


class CompilationError(HalError):
    """Kernel source that the compiler refused.

    `log` is the compiler's whole output, with the user's file names and lines. `found` is
    what `from_log` made it of: what was refused, and the lines that say why. Empty for others.
    """

    status = "INVALID_ARGUMENT"

    def __init__(self, message: str = "", *, log: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.found: tuple[str, tuple[str, ...]] = ("", ())

    @classmethod
    def from_log(cls, what: str, errors: Sequence[str], log: str) -> CompilationError:
        """Return the error whose message is `what`, and the first of the lines that say why.

        For backends. Without `errors` the last lines of the log are shown.
        """
        shown = [*errors[:_LINES_SHOWN]] or log.strip().splitlines()[-_LINES_SHOWN:]
        if len(errors) > _LINES_SHOWN:
            shown.append(f"... and {len(errors) - _LINES_SHOWN} more")
        error = cls("\n".join([f"{what}:", *shown]), log=log)
        error.found = (what, tuple(errors))
        return error


class ClosedError(HalError, ValueError):
    """The use of something closed, or of a parent process's object after a fork."""

    status = "FAILED_PRECONDITION"


class CancelledError(HalError):
    """An operation that was cancelled before it was issued."""

    status = "CANCELLED"


class ReentrantCallError(HalError, RuntimeError):
    """A call that cannot be put off, by a signal handler or a finaliser that interrupted hal (O3).

    Signals, failures and submissions are put off until hal has let go; what has to
    answer at once, such as a wait or an allocation, raises this and changes nothing.
    """

    status = "REENTRANT_CALL"


class OperationError(HalError):
    """An operation that the device refused or failed; others go on."""

    status = "INTERNAL"


class WorkFailedError(OperationError):
    """A kernel that broke a rule which the device checks: what it wrote is undefined."""


class DeviceLostError(HalError):
    """A native context that is gone: every unretired operation on it failed.

    `given_up` is whether it is gone because a close gave it up, whose time-out came
    before the work's end; of the hardware that says nothing.
    """

    status = "UNAVAILABLE"
    given_up: bool = False


class ProcessLostError(HalError):
    """Another process that ended without closing what it shared with this one."""

    status = "UNAVAILABLE"


class SemaphoreFailedError(HalError):
    """A semaphore that was failed with an error that is no HalError; that is the cause."""

    status = "ABORTED"


class CollectiveError(HalError):
    """A group of ranks that is broken: its unended work failed, and it does no more.

    `ranks` are the ranks at fault, and `records` the last operations of each rank, oldest
    first, as far as they are known.
    """

    status = "ABORTED"

    def __init__(
        self,
        message: str = "",
        *,
        ranks: Sequence[int] = (),
        records: Mapping[int, Sequence[str]] | None = None,
        native_name: str | None = None,
        native_code: int | None = None,
    ) -> None:
        super().__init__(message, native_name=native_name, native_code=native_code)
        self.ranks = tuple(ranks)
        self.records = {rank: tuple(lines) for rank, lines in (records or {}).items()}


class CollectiveMismatchError(CollectiveError, ValueError):
    """Different operations, sizes or types that ranks submitted in the same place."""

    status = "INVALID_ARGUMENT"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """An operation that did not end within the time-out of its group."""

    status = "DEADLINE_EXCEEDED"


class RendezvousError(CollectiveError, TimeoutError):
    """Ranks of a group that did not all come to make it, or that do not fit together."""

    status = "DEADLINE_EXCEEDED"


class BackendError(HalError):
    """The base of the errors of finding and opening a backend."""

    status = "UNAVAILABLE"


class BackendNotFoundError(BackendError, LookupError):
    """A name of which no backend's plugin is installed."""

    status = "NOT_FOUND"


class BackendUnavailableError(BackendError):
    """A plugin that is installed, but whose driver or device is not here."""


class PluginError(BackendError):
    """A plugin that is installed and broken; the cause is chained."""

    status = "INTERNAL"
