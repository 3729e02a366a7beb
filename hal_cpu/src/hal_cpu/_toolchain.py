"""Find a C++ compiler and run it."""

from __future__ import annotations

import _thread
import contextlib
import errno
import fcntl
import functools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hal.errors import BackendUnavailableError
from hal.handlers import dropped, own
from hal.locks import Lock
from hal_cpu import _commands, _system

if TYPE_CHECKING:
    from pathlib import Path

_TIME_LIMIT: Final = 600.0
_ANSWER_LIMIT: Final = 60.0
_NO_COMMAND: Final = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_WORK: Final = "hal-cpu-work-"
_DEFAULTS: Final = {
    "PATH": os.defpath,
    # A compiler asks for memory piece by piece and gives none back: larger pieces in large pages
    # save it half of its page faults. Other C libraries than glibc do not read it.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432",
}
_TRIES: Final = 10


class Compiler(NamedTuple):
    """A compiler that was found.

    Attributes
    ----------
    cxx, cc
        The commands for C++ and for C, without options.
    family
        ``"gcc"``, ``"clang"`` or ``"zig"``.
    version
        The first line of its own description.
    identity
        What distinguishes it from another compiler or another version.
    """

    cxx: tuple[str, ...]
    cc: tuple[str, ...]
    family: str
    version: str
    identity: str


def find_compiler() -> Compiler:
    """Return the compiler to use; searched once for each setting of the environment.

    In this order: the command in ``HAL_CXX``, that in ``CXX``, ``g++`` and
    ``clang++`` on the path, the ``ziglang`` package. Raises
    `BackendUnavailableError` if there is none, if ``HAL_CXX`` names something
    that does not run, or if the system refuses to start any.
    """
    with _system.refusals("the compiler cannot be looked for", BackendUnavailableError):
        return _find_compiler(*_commands.setting())


@functools.lru_cache(maxsize=16)
def _find_compiler(hal_cxx: str, cxx: str, path: str) -> Compiler:
    """Find a compiler for one setting of the environment."""
    for command in _commands.candidates(hal_cxx, cxx):
        found = _examine(command, path)
        if found is not None:
            return found
    if hal_cxx.strip():
        message = f"HAL_CXX is {hal_cxx!r}, which does not run as a C++ compiler"
        raise BackendUnavailableError(message)
    message = (
        "the cpu backend needs a C++ compiler and found none (looked for HAL_CXX, CXX, g++, "
        "clang++ and the ziglang package): install one with 'pip install ziglang', or your "
        "system's g++ or clang package"
    )
    raise BackendUnavailableError(message)


def _examine(command: tuple[str, ...], path: str) -> Compiler | None:
    """Return a description of a compiler, or None if the command does not run."""
    program = _commands.find_program(command[0], path)
    if program is None:
        return None
    command = (program, *command[1:])
    try:
        status, text = _run([*command, "--version"], _ANSWER_LIMIT, subprocess.DEVNULL)
    except own(subprocess.TimeoutExpired):
        return None
    except own(OSError) as error:
        if error.errno in _NO_COMMAND:
            return None
        raise
    if status != 0 or not text.strip():
        return None
    cc = (*command, "-x", "c")
    if "zig" in os.path.basename(program) or "ziglang" in command:
        family = "zig"
        cc = (*command[:-1], "cc") if command[-1] == "c++" else cc
    elif "clang" in text.lower():
        family = "clang"
    else:
        family = "gcc"
    identity = "\n".join([*_commands.identity(command), text])
    return Compiler(
        cxx=command,
        cc=cc,
        family=family,
        version=text.strip().splitlines()[0],
        identity=identity,
    )


def run_compiler(command: Sequence[str], directory: Path | None = None) -> tuple[int, str]:
    """Run a command; return its exit status and its output.

    Its temporary files go to the directory. After ten minutes
    it is killed, with all processes that it started, and also when this is
    interrupted. Raises `OSError` if the system cannot start it or has no
    room for its output.
    """
    try:
        status, log = _run(command, _TIME_LIMIT, subprocess.STDOUT, directory)
    except own(subprocess.TimeoutExpired):
        return 1, f"error: the compiler did not finish in {_TIME_LIMIT:.0f} seconds, and was killed"
    for number in _FULL if status else ():
        if os.strerror(number) in log:
            import tempfile  # noqa: PLC0415 - of errors

            raise OSError(number, os.strerror(number), str(directory or tempfile.gettempdir()))
    return status, log


class _Run:
    """One run of a command, in a thread of its own.

    In the main thread a signal handler that raises, as Ctrl-C's does, could come between the fork
    and the noting of the new process's number, and nobody could end that process. Python calls
    handlers in no other thread.
    """

    def __init__(self, limit: float, command: Sequence[str], options: dict[str, Any]) -> None:
        self._limit = limit
        self._command = command
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._lock = Lock()  # held over the start, so that the end meets all or nothing
        self.outcome: SimpleQueue[tuple[int, bytes] | BaseException] = SimpleQueue()

    def run(self) -> None:
        """Run it, and put its status and its output, or the error, into `outcome`."""
        try:
            with self._lock:
                if self._is_over:
                    return
                process = self._process = subprocess.Popen(  # noqa: S603 - no shell
                    self._command, **self._options
                )
            with process:
                try:
                    output, _ = process.communicate(timeout=self._limit)
                finally:
                    self.end()
            self.outcome.put((process.returncode, output))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.outcome.put(error)

    def end(self) -> None:
        """Kill all of its processes, because each holds the pipe open, and start no more."""
        with self._lock:
            self._is_over = True
            if self._process is not None and self._process.returncode is None:
                with dropped(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def _run(
    command: Sequence[str], limit: float, errors: int, directory: Path | None = None
) -> tuple[int, str]:
    """Run a command, with messages in English; raises `OSError` and `TimeoutExpired`."""
    environment = {**_DEFAULTS, **os.environ, "LC_ALL": "C"}
    if directory is not None:
        environment["TMPDIR"] = str(directory)
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": errors,
        "env": environment,
        "process_group": 0,
    }
    run = _Run(limit, list(command), options)  # user text only in files
    try:
        try:
            # Not by `Thread.start`, whose own waiting does not stand an interrupt.
            _thread.start_new_thread(run.run, ())
        except own(RuntimeError) as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        outcome = run.outcome.get()
    finally:
        run.end()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome[0], outcome[1].decode(errors="replace")


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Provide a new directory that only this user can enter; it is removed at the end.

    Directories that killed processes have left are removed first. Raises
    `OSError` with the path.
    """
    import shutil  # noqa: PLC0415 - only compiling needs them
    from pathlib import Path  # noqa: PLC0415

    name, lock = _make_directory()
    try:
        yield Path(name)
    except own(OSError) as error:
        if error.filename is None and error.errno in _FULL:  # errors of a write have no path
            raise OSError(error.errno, error.strerror, name) from error
        raise
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(lock)


def _make_directory() -> tuple[str, int]:
    """Return a new directory, and a descriptor whose lock says that it is in use."""
    import tempfile  # noqa: PLC0415 - as above

    _sweep(tempfile.gettempdir())
    for _ in range(_TRIES):
        name = tempfile.mkdtemp(prefix=_WORK)
        try:
            lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except own(OSError) as error:
            with dropped(OSError):
                os.rmdir(name)
            if error.errno == errno.ENOENT:
                continue
            raise
        # Until it is locked, another process may take it for abandoned.
        if _lock(lock, fcntl.LOCK_SH) and os.path.isdir(name):
            return name, lock
        os.close(lock)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), tempfile.gettempdir())


def _lock(handle: int, how: int) -> bool:
    """Return False if another process holds the lock; without file locks, sharing succeeds."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except own(BlockingIOError):
        return False
    except own(OSError):  # a file system without locks
        return how == fcntl.LOCK_SH
    return True


@functools.cache
def _sweep(folder: str) -> None:
    """Remove the directories of this user's killed processes; once for each folder."""
    import shutil  # noqa: PLC0415 - as above

    with dropped(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(_WORK):
                continue
            with dropped(OSError):
                handle = os.open(
                    entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                )
                try:
                    is_ours = os.fstat(handle).st_uid == os.geteuid()
                    if is_ours and _lock(handle, fcntl.LOCK_EX):
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(handle)
