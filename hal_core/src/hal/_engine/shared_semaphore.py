"""Semaphores that several processes share, with the same values and rules in each (S1 to S9).

Each process has a semaphore of its own, and a *link* that carries values and failures between it
and a region of shared memory (`hal._base.regions`): what is signalled here is published there, and
what others have published raises the semaphore here. So the engine and its queues know nothing of
other processes. Values in shared memory for every semaphore were rejected: they would make each
signal of a program that shares nothing dearer. So were streams that wait for values in shared
memory. A stream may wait only for what was promised, so each process would have to hear of every
promise first, which takes as long as to hear of the value; and work could end before a failure in
another process is known (S5).
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Final, SupportsFloat, SupportsIndex

from hal import errors
from hal._base import process, sync
from hal._base import sharing_watch as watching
from hal._base.failures import told
from hal._base.regions import SharedRegion
from hal._engine import progress, timelines, waiting
from hal._engine.semaphore import Semaphore, signal_again
from hal._engine.timelines import MAX_VALUE, TELL, Timepoint, Work, check_value
from hal.arguments import as_flag, as_name
from hal.errors import (
    ClosedError,
    HalError,
    OperationError,
    ProcessLostError,
    ReentrantCallError,
    SemaphoreFailedError,
)
from hal.handlers import own

if TYPE_CHECKING:
    from hal._engine.steps import CallStep
    from hal.tickets import SemaphoreTicket


_SPINS: Final = 40
"""How often a wait looks before it sleeps: for some 50 microseconds, about what a sleep costs."""
_ASK_SECONDS: Final = 20e-6
"""How long the watching thread asks for the end of work before it looks at other things."""


class SharedSemaphore(Semaphore):
    """A semaphore that other processes may open; all of them signal it and wait for it.

    A value is reached here once any process has signalled it. Values rise as in one process: a
    signal here must exceed all that this process knows of, and one that comes from
    another process, and is not above the value here by then, changes nothing.
    """

    __slots__ = ("_link",)

    def __init__(self, region: SharedRegion, initial: int, name: str | None) -> None:
        super().__init__(initial, name)
        self._link = Link(self, region)

    def share(self) -> SemaphoreTicket:
        """Return a ticket with which a process of the same user opens it; see `Semaphore.share`."""
        from hal.tickets import SemaphoreTicket  # noqa: PLC0415 - of processes that share

        self._link.check()
        return SemaphoreTicket(**self._link.region.names())

    def at(self, value: SupportsIndex) -> Timepoint:
        """Return the timepoint of `value`; see `Semaphore.at`."""
        self._link.expect()
        return super().at(value)

    def query(self) -> int:
        """Return the value; see `Semaphore.query`."""
        self._link.take()
        return super().query()

    def poll(self, value: SupportsIndex) -> bool:
        """Return whether `value` has been reached; see `Semaphore.poll`."""
        self._link.take()
        return super().poll(value)

    def wait(self, value: SupportsIndex, timeout: SupportsFloat | None = None) -> None:
        """Block until `value` is reached; see `Semaphore.wait`.

        Looks for some 50 microseconds before it sleeps.
        """
        self._link.spin(check_value(value))
        super().wait(value, timeout)

    def signal(self, value: SupportsIndex) -> None:
        """Raise the value to `value` in every process; see `Semaphore.signal`."""
        link = self._link
        link.take()  # first: a value that another process has signalled by now is refused (S1)
        try:
            super().signal(value)
        finally:  # also when an interrupt comes after it has risen
            link.publish()

    def fail(self, error: BaseException) -> None:
        """Fail for good, in every process; see `Semaphore.fail`.

        The others get an error of the same class if it is one of hal's, with the same message.
        """
        self._link.check()
        super().fail(error)
        self._link.publish()


class Link:
    """The connection of a semaphore of this process with its region."""

    __slots__ = (
        "_followed",
        "_is_expected",
        "_lock",
        "_name",
        "_semaphore",
        "_told",
        "_watch",
        "region",
    )

    def __init__(self, semaphore: SharedSemaphore, region: SharedRegion) -> None:
        progress.start()
        self.region = region
        self._name = semaphore.name
        self._semaphore = weakref.ref(semaphore)
        self._lock = sync.OwnedLock()  # held while this process's value is written
        self._is_expected = False  # a signal of an operation is to be published
        # The semaphore while the watching thread publishes it: its user may drop it before that
        self._followed: SharedSemaphore | None = None
        self._told = -1  # a value that the region has
        self._watch = watching.watch
        region.join(self._watch.bell())
        self._watch.add(self)

    def check(self) -> None:
        """Raise `ClosedError` in a forked child."""
        if self._watch is not watching.watch:
            process.refuse_after_fork()
            raise ClosedError(
                f"{self._name} is the parent's: a fork copies no shareable semaphore; open "
                "a ticket that share() gave before it, with device.open(ticket)"
            )

    # From the region to the semaphore

    def take(self) -> bool:
        """Take over what other processes have signalled; return whether the value has risen.

        Any thread, no lock held.
        """
        self.check()
        semaphore = self._semaphore()
        if semaphore is None or semaphore._failure is not None:
            return False
        failure = self.region.failure()
        value = 0 if failure else self.region.value()
        try:
            if failure is not None:
                Semaphore.fail(semaphore, _error(*failure))
            elif value > semaphore._value:
                self._told = value  # first: the rise is not told to where it comes from
                signal_again(semaphore, value)
                return True
        except own(ReentrantCallError):
            pass  # in a signal handler (O3): the watching thread takes it over
        return False

    def spin(self, value: int) -> None:
        """Look for `value` for a short time."""
        self.take()
        semaphore, region = self._semaphore(), self.region
        if semaphore is None or semaphore._value >= value or semaphore._failure is not None:
            return
        # Others need not ring while it looks. Another thread of this process may end that, which
        # costs them a ring and nothing else.
        region.set_awake(1)
        try:
            for _ in range(_SPINS):
                if region.value() >= value:
                    break
        finally:
            region.set_awake(0)
        with self._lock:
            # A memory barrier: a process that still saw the thread awake, and so rang no bell, has
            # published before the value is read here.
            pass
        self.take()

    # From the semaphore to the region

    def publish(self) -> bool:
        """Tell the other processes the value or the failure; return whether that is news.

        For any thread; no lock of the engine is held.
        """
        semaphore, region = self._semaphore(), self.region
        if semaphore is None or region.slot < 0:  # dropped, or this process has left
            return False
        is_news = False
        failure = semaphore._failure
        if failure is not None and (is_news := region.failure() is None):
            region.fail(*_words(failure))
        # Again: a signal handler that has interrupted the owner of the lock, and raised the value,
        # leaves that to it. A thread that raises it later publishes that itself.
        while failure is None and semaphore._value > self._told and not self._lock._is_owned():
            with self._lock:
                value = semaphore._value
                if value > region.value():
                    region.raise_to(value)
                    is_news = True
                self._told = value
        if is_news:
            self._watch.ring(region)
        return is_news

    def expect(self) -> None:
        """Publish what an operation signals, once that is reached: somebody makes a timepoint."""
        if not self._is_expected and self._followed is None:
            self.check()
            progress.act_or_put_off(_expect, self, None)

    def _expect(self, step: CallStep) -> None:
        semaphore = self._semaphore()
        with timelines.lock:
            if semaphore is None or self._is_expected or semaphore._failure is not None:
                return
            # Told of the next value, whichever: then one registration serves all timepoints.
            value = semaphore._value + 1
            if value <= MAX_VALUE:
                self._is_expected = True
                semaphore._until_told(value, step.work).watch(value, self, 0)

    def _notice(self, index: int, work: Work) -> None:  # noqa: ARG002 - one wait only
        """Note that the value has risen; a watcher's method, under the timeline lock."""
        self._is_expected = False
        # The semaphore is kept alive until then: its user may have dropped it.
        work.append((TELL, (self, self._semaphore())))

    def tell(self, step: CallStep) -> None:
        """Publish, and wait for the next value."""
        if self._followed is None:
            self._expect(step)
        self.publish()

    # Called by the watching thread

    def look(self) -> bool:
        """Take over what others have signalled; return False once the semaphore is gone."""
        semaphore = self._semaphore()
        if semaphore is None:
            self.region.leave()
            return False
        if self.take():
            self._followed = semaphore
            self._watch.follow(self)
        self.publish()
        return True

    def look_closely(self) -> bool:
        """Retire what will signal it, and look; return whether the value has risen."""
        semaphore = self._followed
        if semaphore is None or self.region.is_awake():
            return False  # a thread that waits for it looks by itself
        has_risen = self.take()
        if semaphore._points:
            waiting.spin_for(semaphore, semaphore._value + 1, _ASK_SECONDS)
        return self.publish() or has_risen

    def unfollow(self) -> None:
        """Have the progress thread retire what will signal it."""
        kept, self._followed = self._followed, None
        self.expect()
        self.publish()  # what has come before
        del kept

    def look_for_dead(self) -> None:
        """Fail the semaphore if a member has died."""
        semaphore = self._semaphore()
        if semaphore is None:
            return  # the others notice
        for member in self.region.expel_dead():
            self.look()  # it may have signalled something last
            message = (
                f"process {member.process} has ended without closing {self._name}, which it "
                "shared; its signals will never come: share a new semaphore with the processes "
                "that are left"
            )
            if semaphore._failure is None:
                semaphore.fail(ProcessLostError(message))

    def fail(self, error: Exception) -> bool:
        """Fail the semaphore in every process, and look no more."""
        self._watch.forget(self)
        semaphore, self._followed = self._semaphore(), None
        if semaphore is not None and semaphore._failure is None:
            made = OperationError(
                f"{self._name} is shared, and this process cannot see what others do with it: a "
                f"look has failed with {told(error)}"
            )
            made.__cause__ = error
            semaphore.fail(made)
        return False

    def leave(self) -> None:
        """Publish for the last time, and leave; an uncaught exception of the program fails it."""
        semaphore, error = self._semaphore(), getattr(sys, "last_value", None)
        if semaphore is not None and error is not None:
            message = f"process {os.getpid()}, which shared it, has ended with {told(error)}"
            Semaphore.fail(semaphore, ProcessLostError(message))
        self.publish()
        self.region.leave()


def _expect(step: CallStep, link: Link, _: None) -> None:
    link._expect(step)


def _words(error: BaseException) -> tuple[str, str]:
    """Return the class and the message of an error that another process can make again."""
    if isinstance(error, HalError) and vars(errors).get(type(error).__name__) is type(error):
        return type(error).__name__, str(error)
    return SemaphoreFailedError.__name__, f"the semaphore was failed with {told(error)}"


def _error(kind: str, message: str) -> HalError:
    """Return the error that another process has described."""
    found = vars(errors).get(kind)
    if isinstance(found, type) and issubclass(found, HalError):
        return found(message)
    return SemaphoreFailedError(message)


def create_semaphore(
    initial: SupportsIndex = 0, *, name: str | None = None, shareable: bool = False
) -> Semaphore:
    """Create a timeline semaphore that belongs to no device (rule S3).

    `initial` is its value, 0 to 2**63 - 1; `name` is for error texts and
    pictures. With `shareable`, other processes can open it (`Semaphore.share`), and signals cost
    some microseconds more. Raises `ArgumentTypeError` or `InvalidArgumentError` for anything else,
    and for `shareable` `UnimplementedError` on a system that is not Linux.
    """
    title = None if name is None else as_name(name, "a semaphore")
    value = check_value(initial)
    if not as_flag(shareable, "create_semaphore: shareable"):
        return Semaphore(value, title)
    region = SharedRegion.create("semaphore", 0)
    semaphore = SharedSemaphore(region, value, title)
    region.raise_to(value)
    return semaphore


def open_semaphore(ticket: SemaphoreTicket) -> SharedSemaphore:
    """Return this process's semaphore for a ticket; see `hal.Device.open`."""
    region = SharedRegion.open(ticket, "semaphore", 0)
    semaphore = SharedSemaphore(region, region.value(), None)
    semaphore._link.take()
    return semaphore
