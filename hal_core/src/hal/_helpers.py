"""Run user code on threads of ours: callbacks in order, host calls side by side.

User code never runs on the progress thread, under a lock, or on a driver's
thread (S8, I5, I6). The threads are daemons, started on first need.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from hal import _sync

__all__ = ["Dispatcher", "Pool", "report"]

_IDLE_SECONDS: Final = 30.0
"""How long an idle thread of the pool stays; a guess at the gap between bursts of work."""


class Dispatcher:
    """Call functions one after another on one thread, in the order they came."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = _sync.Lock()
        self._bell: _sync.Doorbell | None = None

    def append(self, function: Callable[..., object], *arguments: object) -> None:
        """Put a call behind the others; takes no lock, so that one may be held. `wake` follows."""
        self._calls.append((function, arguments))

    def wake(self) -> None:
        """Have the calls made that were appended; never blocks. Any thread, no lock held."""
        bell = self._bell
        if bell is None:
            with self._lock:
                bell = self._bell
                if bell is None:
                    bell = _sync.Doorbell()
                    self._bell = bell
                    start = True
                else:
                    start = False
            if start:
                try:
                    _sync.start_thread(self._name, self._run)
                except BaseException:
                    self._bell = None  # the next one tries again
                    raise
        bell.ring()

    def _run(self) -> None:
        bell = self._bell
        assert bell is not None  # noqa: S101 - set before the thread starts
        calls = self._calls
        while True:
            while calls:
                function, arguments = calls.popleft()
                _call(function, arguments)
                del function, arguments
            bell.wait(3600.0)


class Pool:
    """Call functions side by side on as many threads as that takes.

    It grows without limit: a host call may block on what another one does.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = _sync.Lock()
        self._idle: list[_Worker] = []

    def run(self, function: Callable[..., object], *arguments: object) -> None:
        """Have `function` called on a thread of the pool. Any thread, no lock held."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self)
            worker.task = (function, arguments)
            _sync.start_thread(self._name, worker.run)
        else:
            worker.task = (function, arguments)
            worker.gate.release()


class _Worker:
    """Be one thread of a pool."""

    __slots__ = ("gate", "pool", "task")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.gate = _sync.Lock()
        self.gate.acquire()
        self.task: tuple[Callable[..., object], tuple[Any, ...]] | None = None

    def run(self) -> None:
        """Work until idle for too long."""
        pool = self.pool
        while True:
            task = self.task
            if task is not None:
                self.task = None
                _call(*task)
                task = None
            with pool._lock:
                pool._idle.append(self)
            if self.gate.acquire(timeout=_IDLE_SECONDS):
                continue
            with pool._lock:
                if self in pool._idle:
                    pool._idle.remove(self)
                    return
            # Taken in the last moment: the task and the gate are on their way.
            self.gate.acquire()


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Call user code; what it raises is reported and ends nothing of ours."""
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - whatever user code raises
        report(function, error)


def report(function: Callable[..., object], error: BaseException) -> None:
    """Tell `sys.unraisablehook` of an error that has nobody to go to; never raises."""
    unraisable = _Unraisable(function, error)
    hook: Callable[[Any], object] = sys.unraisablehook
    if hook is not sys.__unraisablehook__:  # that one takes what C code makes, and nothing else
        try:
            hook(unraisable)
        except BaseException as second:  # noqa: BLE001 - a hook is user code, too
            unraisable = _Unraisable(hook, second)
        else:
            return
    with contextlib.suppress(Exception):  # nobody may be there to read it
        sys.stderr.write(f"{unraisable.err_msg}: {unraisable.object!r}\n")
        traceback.print_exception(unraisable.exc_value, file=sys.stderr)


class _Unraisable:
    """Look like `sys.UnraisableHookArgs`, which Python code cannot make."""

    __slots__ = ("err_msg", "exc_traceback", "exc_type", "exc_value", "object")

    def __init__(self, function: Callable[..., object], error: BaseException) -> None:
        self.exc_type = type(error)
        self.exc_value = error
        self.exc_traceback = error.__traceback__
        self.err_msg = "Exception ignored on a thread of hal"
        self.object = function
