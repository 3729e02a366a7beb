"""The one thread that watches over groups with work in flight: time-outs and failures."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import Final, Protocol

from hal.errors import OperationError
from hal.handlers import dropped, own

SLICE: Final = 0.02
"""Seconds between two looks at groups that have work in flight."""


class WatchedGroup(Protocol):
    """A group."""

    def look(self) -> bool:
        """Look for failures; return whether work is in flight."""


class _GroupWatch:
    """The thread, which looks at the `watched` groups."""

    def __init__(self) -> None:
        # No lock and no event: a signal handler that submits would wait for its own thread.
        self._added: SimpleQueue[None] = SimpleQueue()
        self._is_running = False

    def start(self) -> None:
        """Start the thread, so that no submission fails because there is none."""
        if self._is_running:
            return
        try:
            threading.Thread(target=self._run, name="hal-collectives", daemon=True).start()
        except own(RuntimeError) as error:
            message = f"the thread that watches over groups cannot be started: {error}"
            raise OperationError(message) from error
        self._is_running = True  # a Ctrl-C before this makes a second thread, which does no harm

    def add(self, group: WatchedGroup) -> None:
        """Look at a group until it has no work in flight; any thread, also again and again."""
        if group in watched:
            return
        try:
            watched.add(group)
        finally:  # nobody would wake the thread for a group that is there already
            self._added.put(None)

    def _run(self) -> None:
        while True:
            self._added.get()
            while watched:
                for group in list(watched):
                    with dropped(Exception):  # as for want of memory: it is looked at again
                        self._look(group)
                group = None  # type: ignore[assignment] # dropped groups are free
                _pause.wait(SLICE)

    def _look(self, group: WatchedGroup) -> None:
        """Look at a group, and leave it alone once it has no work in flight."""
        if not group.look():
            # Removed first: one that is submitted meanwhile adds it again.
            watched.discard(group)
            if group.look():
                self.add(group)


watched: Final[set[WatchedGroup]] = set()
"""The groups that have work in flight."""

_pause: Final = threading.Event()
watch: _GroupWatch = _GroupWatch()


def _renew() -> None:
    global watch  # noqa: PLW0603 - the parent's thread is not in the child
    watched.clear()
    watch = _GroupWatch()


os.register_at_fork(after_in_child=_renew)
