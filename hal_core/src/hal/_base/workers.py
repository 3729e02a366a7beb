"""Run user code on threads of ours: callbacks in order, host calls side by side.

User code never runs on the progress thread, under a lock, or on a driver's
thread (S8, I5, I6). The threads are daemons and start lazily. A call that will
need one calls `start` first, which raises if none can be started.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from hal._base import sync
from hal.errors import HalError
from hal.handlers import dropped

_IDLE_SECONDS: Final = 30.0
"""How long an idle thread of the pool stays; a guess at the gap between bursts of work."""

_LONG_SECONDS: Final = 3600.0  # how long a thread that stays sleeps at a time


class Pool:
    """A pool that calls functions side by side, each on a thread of its own while there are any.

    There are at most `limit` threads, and fewer where the system starts no
    more; a function that finds no idle thread waits for one. So the caller never
    blocks, and a function that blocks on a later one blocks for good once all threads do.
    With a limit of 1 functions are called one after another, in the order they came.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self.renew()

    def renew(self) -> None:
        """Start over, without a thread."""
        self._tasks: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = sync.OwnedLock()
        self._idle: list[Any] = []  # one lock each, on which its thread sleeps
        self._count = 0  # of threads
        self._busy = 0  # threads that are in a function
        self._starting = sync.Mark()  # held while a thread is started
        self._is_wanted = False  # whether one more thread is wanted

    def start(self) -> None:
        """Ensure that at least one thread runs, for good. Raises `OperationError`; no lock held."""
        if not self._count:
            self._start_one()

    def run(self, function: Callable[..., object], *arguments: object) -> None:
        """Have `function` called on a thread of the pool. Any thread, no lock held."""
        self._tasks.append((function, arguments))
        self.wake()

    def append(self, function: Callable[..., object], *arguments: object) -> None:
        """Append a call; takes no lock, so the caller may hold one. `wake` follows."""
        self._tasks.append((function, arguments))

    def wake(self) -> None:
        """Wake a thread for pending calls, or start one; each woken thread wakes the next."""
        if self._lock._is_owned():
            return  # we interrupted the owner, which goes on with it
        with self._lock:
            while True:  # a condition here would be compiled without the exit of the `with`
                if not self._idle:
                    break
                gate = self._idle[-1]  # the last: in turns none would be idle for long
                if gate.locked():
                    gate.release()  # and removed after: a Ctrl-C between loses no thread
                    self._idle.pop()
                    return
                self._idle.pop()
            looking = self._count - self._busy  # those look before they sleep
            if looking >= len(self._tasks) or self._count >= self._limit:
                return
        with dropped(HalError):  # the running threads have to do
            self._start_one()

    def _start_one(self) -> None:
        """Start a thread, or leave it to the caller that is starting one.

        The thread that is being started cannot serve both: it may have taken its task, and
        looked for more, before its starter goes on. Each counts itself, so no Ctrl-C miscounts.
        """
        self._is_wanted = True
        while self._is_wanted and not self._starting.locked():
            with self._starting:
                self._is_wanted = False
                sync.start_thread(self._name, self._work)

    def _work(self) -> None:
        """Work until idle for too long; the last thread stays."""
        task: tuple[Callable[..., object], tuple[Any, ...]] | None
        with self._lock:
            if self._count == self._limit:
                return  # others were started before they had counted themselves
            self._count += 1
        while True:
            gate = sync.Lock()
            with self._lock:
                task = self._tasks.popleft() if self._tasks else None
                if task is not None:
                    self._busy += 1
                else:
                    gate.acquire()
                    self._idle.append(gate)
                    seconds = _IDLE_SECONDS if self._count > 1 else _LONG_SECONDS
            if task is not None:
                if self._tasks:
                    self.wake()
                _call(*task)
                task = None
                with self._lock:
                    self._busy -= 1
            elif self._may_end(gate, is_woken=gate.acquire(timeout=seconds)):
                return

    def _may_end(self, gate: Any, *, is_woken: bool) -> bool:  # noqa: ANN401 - a lock
        """Return whether a thread that was idle for long should end."""
        with self._lock:
            if gate in self._idle:
                self._idle.remove(gate)
            else:
                is_woken = True  # at the last moment
            if is_woken or self._count == 1:
                return False
            self._count -= 1
        return True


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Call user code; its exceptions are reported and never stop ours."""
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - whatever user code raises
        report(function, error)


def report(function: Callable[..., object], error: BaseException) -> None:
    """Report an error that has no other receiver to `sys.unraisablehook`; never raises."""
    unraisable = _Unraisable(function, error)
    hook: Callable[[Any], object] = sys.unraisablehook
    if hook is not sys.__unraisablehook__:  # it takes only what C code makes
        try:
            hook(unraisable)
        except BaseException as second:  # noqa: BLE001 - a hook is user code, too
            unraisable = _Unraisable(hook, second)
        else:
            return
    with dropped(Exception):  # stderr may be gone
        sys.stderr.write(f"{unraisable.err_msg}: {unraisable.object!r}\n")
        traceback.print_exception(unraisable.exc_value, file=sys.stderr)


class _Unraisable:
    """A stand-in for `sys.UnraisableHookArgs`, which Python code cannot make."""

    __slots__ = ("err_msg", "exc_traceback", "exc_type", "exc_value", "object")

    def __init__(self, function: Callable[..., object], error: BaseException) -> None:
        self.exc_type = type(error)
        self.exc_value = error
        self.exc_traceback = error.__traceback__
        self.err_msg = "Exception ignored on a thread of hal"
        self.object = function
