"""Do what follows once the locks are let go, and what nobody waits for.

`drain` works off a `Work` list without recursion: what one step causes joins
the same list. The *progress thread*, started on first need and asleep without
need, takes over what exceeds a caller's budget (Q1) and serves awaits,
callbacks, waits across drivers, sleeping host waiters, backlogs and frees. It
runs no user code.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from hal import _sync, _timeline
from hal._helpers import Dispatcher, Pool, report
from hal._notifier import Notifier
from hal._timeline import CALLBACK, HOST, ISSUE, RELEASE, WAKE, WATCH, Work

if TYPE_CHECKING:
    from hal._memory import Heap
    from hal._operation import Operation
    from hal._semaphore import Callback
    from hal._stream import StreamQueue

__all__ = [
    "BUDGET",
    "broken",
    "cancel_later",
    "dispatcher",
    "drain",
    "hand_over",
    "mend",
    "reap_later",
    "start",
    "start_for",
    "watch",
    "workers",
]

BUDGET: Final = 64
"""Operations that one call issues for others before it hands over (rule Q1)."""

_NET_SECONDS: Final = 0.1
"""Longest sleep while something is watched: after a device error nobody is notified."""

_SHORT_SECONDS: Final = 0.001
"""Sleep while a notification for earlier work stands behind one for later work."""

_REAP: Final = 100
_CANCEL: Final = 101
"""The kinds of a heap to be reaped and a callback to be taken back, besides `hal._timeline`'s."""

broken: Final[deque[tuple[StreamQueue, Operation, Work]]] = deque()
"""Submissions that broke off where the stack had no room to put things right."""

dispatcher = Dispatcher("hal-dispatcher")
"""What runs callbacks, in the order in which they are appended."""
_pool = Pool("hal-host-call", 256)
"""What runs functions of the user's."""
workers = Pool("hal-worker", 64)
"""What runs host work of ours, which no function of the user's holds up."""


def drain(work: Work, budget: int = BUDGET) -> None:  # noqa: PLR0912 - a branch a kind
    """Do all of `work`; hand the rest to the progress thread once `budget` is spent.

    Only released and ready operations count, and only they are handed over.
    Call it with no lock held.
    """
    rest: Work = []
    position = 0
    try:
        # `work` grows while it is worked off, so its length is read each time.
        while position < len(work):
            kind, item = entry = work[position]
            if kind == WAKE:
                item.open()
            elif kind == RELEASE:
                if budget > 0:
                    released = list(itertools.islice(item, budget))
                    # Until they are done, they are still what this entry holds.
                    work[position] = (RELEASE, itertools.chain(released, item))
                    with _timeline.lock:
                        for operation, index in released:
                            operation._queue._release(operation, index, work)
                    budget -= len(released)
                    if released:
                        work.append(entry)  # what is left comes after what is ready now
                else:
                    rest.append(entry)
            elif kind == ISSUE:
                if budget > 0:
                    budget -= item._pump(work, budget)
                else:
                    rest.append(entry)
            elif kind == WATCH:
                watch(item)
            elif kind == CALLBACK:
                dispatcher.wake()
            elif kind == HOST:
                (_pool if item._kind == "call" else workers).run(item._run_on_host)
            # GARBAGE needs nothing: it is dropped with the list.
            position += 1
    finally:
        # After Ctrl-C the rest is still there, and must not end with this call. The
        # entry in hand is done again: each of them may be.
        rest += work[position:]
        work[:] = rest  # kept by the caller, should there be no room on the stack for the call
        if work:
            _progress.post(work)
            work.clear()


def hand_over(work: Work) -> None:
    """Let the progress thread do all of `work`; the caller is being interrupted."""
    if work:
        _progress.post(work)


class _Progress:
    """Be the progress thread's state; one per process."""

    __slots__ = ("_bell", "_inbox", "_lock", "_watched")

    def __init__(self) -> None:
        self._inbox: deque[tuple[int, Any]] = deque()
        self._watched: dict[StreamQueue, None] = {}
        self._lock = _sync.Lock()
        self._bell: _sync.Doorbell | None = None

    def post(self, work: Work) -> None:
        """Hand work to the thread; never blocks. No lock held."""
        self._inbox.extend(work)
        self.bell().ring()

    def note(self, kind: int, item: object) -> None:
        """Note what a finaliser leaves, with no lock taken: appends, and posts at the most."""
        self._inbox.append((kind, item))
        if self._bell is not None:
            self._bell.ring()

    def bell(self) -> _sync.Doorbell:
        """Return the doorbell that wakes the thread, which is started on first need."""
        bell = self._bell
        if bell is not None:
            return bell
        with self._lock:
            bell = self._bell
            start = bell is None
            if bell is None:
                bell = self._bell = _sync.Doorbell()
        if start:
            try:
                _sync.start_thread("hal-progress", self._run)
            except BaseException:
                self._bell = None  # the next one tries again
                raise
        return bell

    def _run(self) -> None:
        bell = self.bell()
        pause = _NET_SECONDS
        while True:
            bell.wait(pause if self._watched else 3600.0)
            try:
                pause = self._turn(bell)
            except Exception as error:  # noqa: BLE001 - it serves every device of the process
                report(self._run, error)
                pause = _NET_SECONDS

    def _turn(self, bell: _sync.Doorbell) -> float:
        """Do what there is to do; return how long to sleep at most."""
        inbox, watched = self._inbox, self._watched
        work: Work = []
        while broken:
            queue, operation, left = broken.popleft()
            queue._recover(operation, left)
        # Small steps, so that a flood does not hold up the watched.
        while inbox and len(work) < BUDGET:
            kind, item = inbox.popleft()
            if kind == WATCH:
                watched[item] = None
            elif kind == _CANCEL:
                item.cancel()
            elif kind == _REAP:
                workers.run(item.reap)  # a native free may block until its device is idle
            else:
                work.append((kind, item))
        drain(work)
        pause = _NET_SECONDS
        for queue in list(watched):
            state = queue._serve(bell.function, bell.argument)
            if state == Notifier.IDLE:
                del watched[queue]
            elif state == Notifier.BEHIND:
                pause = _SHORT_SECONDS
        if inbox:
            bell.ring()
        return pause


_progress = _Progress()


def watch(queue: StreamQueue) -> None:
    """Have the progress thread retire what is wanted of `queue`."""
    _progress.post([(WATCH, queue)])


def reap_later(heap: Heap) -> None:
    """Have the progress thread free what finalisers left; a finaliser may call this (I10).

    It takes no lock, so it cannot start the thread: the allocation did.
    """
    _progress.note(_REAP, heap)


def cancel_later(callback: Callback) -> None:
    """Have the progress thread take a callback back; a finaliser may call this, as `reap_later`."""
    _progress.note(_CANCEL, callback)


def mend() -> None:
    """Have the progress thread put right what broke off on a full stack, if there is anything."""
    if broken:
        with contextlib.suppress(Exception):  # who comes next tries again
            _progress.bell().ring()


def start() -> None:
    """Start the progress thread unless it runs; raises `OperationError`. No lock held."""
    _progress.bell()


def start_for(kind: str) -> None:
    """Have a thread that can run host operations of a kind; as `start`."""
    (_pool if kind == "call" else workers).start()
