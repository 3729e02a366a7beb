"""The thread that looks at what other processes have done with what is shared with them.

It sleeps at this process's *bell*, a word of shared memory. A process that changes something
shared rings the bells of the other members. The thread also looks some times a second by itself,
for members that have died, since those ring no bell. An error at one thing fails that alone and is
reported: whoever waits for it would wait for good, and the thread serves all of this process.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Final, Protocol

from hal._base import futex, sync
from hal._base.regions import BELL_WORD, Member, SharedRegion, started_at
from hal._base.workers import report
from hal.errors import HalError
from hal.handlers import dropped

_LOOK_SECONDS: Final = 0.25  # how long the thread sleeps at most: how late a death is noticed
# How long it goes on looking at what has changed: about what it costs all to sleep and to wake
_FOLLOW_SECONDS: Final = 200e-6


class SharedObject(Protocol):
    """An object that other processes share."""

    def look(self) -> bool:
        """Take over what others have changed; return whether there is more to look for."""

    def look_for_dead(self) -> None:
        """Notice the members that have died."""

    def leave(self) -> None:
        """Tell the others that this process uses it no more; when the process ends."""

    def fail(self, error: Exception) -> bool:
        """Fail: a look has failed. Return whether to look again."""


class FollowedObject(SharedObject, Protocol):
    """A shared object that changes again and again."""

    def look_closely(self) -> bool:
        """Look, and do what is to be done here for its next change; return whether it changed."""

    def unfollow(self) -> None:
        """Leave that to others again."""


class SharingWatch:
    """The objects that this process shares with others, and the thread that watches them."""

    def __init__(self) -> None:
        # Held while the bell is hung up; a signal handler of its holder may come in
        self._lock = sync.OwnedLock()
        self._bell: SharedRegion | None = None
        self._watched: dict[SharedObject, None] = {}
        self._followed: dict[FollowedObject, float] = {}  # until when; the thread's
        self._bells: dict[tuple[int, int, int], SharedRegion] = {}
        # From a random number on, so that the rings of two processes do not leave the same one.
        self._rings = itertools.count(int.from_bytes(os.urandom(4), "little"))

    def bell(self) -> int:
        """Return the number of the bell's file, which the region's slot names; starts the thread.

        Raises `OperationError` if the system starts none.
        """
        with self._lock:
            if self._bell is None:
                bell = SharedRegion.create("bell", 0)
                if self._bell is None:  # again: such a handler may have hung up one
                    self._bell = bell
                    try:
                        sync.start_thread("hal-sharing", self._run)
                    except BaseException:  # a thread that a Ctrl-C has let start ends by itself
                        self._bell = None
                        raise
            return self._bell.fd

    def add(self, watched: SharedObject) -> None:
        """Look at something from now on."""
        self._watched[watched] = None

    def follow(self, changed: FollowedObject) -> None:
        """Go on looking at something for a while; on the thread."""
        self._followed[changed] = sync.monotonic() + _FOLLOW_SECONDS

    def forget(self, changed: FollowedObject) -> None:
        """Follow something no more."""
        self._followed.pop(changed, None)

    def ring(self, region: SharedRegion) -> None:
        """Wake the other members of a region that sleep."""
        for member in region.members():
            if region.is_sleeping(member):
                bell = self._bell_of(member)
                if bell is not None:
                    self._ring(bell)

    def leave(self) -> None:
        """Tell all others that this process ends."""
        for watched in list(self._watched):
            with dropped(Exception):
                watched.leave()

    def _ring(self, bell: SharedRegion) -> None:
        bell.set_bell(next(self._rings) & 0xFFFFFFFF)
        futex.wake(bell.address + BELL_WORD)

    def _bell_of(self, member: Member) -> SharedRegion | None:
        """Return the bell of a member; None if it has taken it down, or there is no file for it."""
        key = (member.process, member.started, member.bell)
        with dropped(KeyError):  # the watching thread may just have removed it
            return self._bells[key]
        if member.is_alive():
            with dropped(HalError, OSError):
                found = SharedRegion.open_file(member.process, member.bell, "bell", 0, "a bell")
                return self._bells.setdefault(key, found)
        return None

    def _run(self) -> None:
        bell = self._bell
        assert bell is not None  # noqa: S101 - it is hung up before the thread starts
        due = 0.0
        while self._bell is bell:
            try:
                due = self._turn(bell, due)
            except Exception as error:  # noqa: BLE001 - as of a system that refuses to sleep
                report(self._run, error)
                sync.nap(_LOOK_SECONDS)

    def _turn(self, bell: SharedRegion, due: float) -> float:
        """Look once at everything, and sleep; return when to look for members that have died."""
        seen = bell.bell()  # first: a ring during the looks ends the sleep at once
        for watched in list(self._watched):
            if not self._ask(watched, watched.look):
                self._watched.pop(watched, None)
        now = sync.monotonic()
        if now >= due:
            for watched in list(self._watched):
                self._ask(watched, watched.look_for_dead)
            for key in list(self._bells):
                if started_at(key[0], key[1]) != key[1]:
                    self._bells.pop(key, None)
            due = now + _LOOK_SECONDS
        while self._followed and bell.bell() == seen and now < due:
            sync.yield_thread()
            now = sync.monotonic()
            for changed, until in list(self._followed.items()):
                if self._ask(changed, changed.look_closely):
                    self.follow(changed)
                elif now >= until:
                    self.forget(changed)
                    self._ask(changed, changed.unfollow)
        if not self._followed:
            futex.sleep(bell.address + BELL_WORD, seen, max(due - now, 0.001))
        return due

    def _ask(self, watched: SharedObject, function: Callable[[], bool | None]) -> bool:
        """Call a method of something shared, and return its result."""
        try:
            return bool(function())
        except Exception as error:  # noqa: BLE001 - whatever a plugin or the system raises there
            report(function, error)
            try:
                return watched.fail(error)
            except Exception as second:  # noqa: BLE001 - as above
                report(watched.fail, second)
                return True


watch: SharingWatch = SharingWatch()
"""That of this process."""


def _renew() -> None:
    """Start over in a forked child, which shares nothing: its parent's objects refuse."""
    global watch  # noqa: PLW0603 - one process, one watch
    watch = SharingWatch()


os.register_at_fork(after_in_child=_renew)
