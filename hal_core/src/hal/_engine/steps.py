"""Follow every call of ours to its end, however it is left (O3; docs/architecture.md, Recovery).

A call that changes the engine runs inside a *step* of its thread, which names what the call has in
hand before that is touched. If an interrupt, a full stack or an error of ours breaks the call off,
each thing that the step names can be repeated from its beginning: the next call of the thread, or
the progress thread, does that (`hal._engine.progress`).

A step's *mark*, a lock of C's own that a ``with`` holds as long as the call runs, tells two things
without bookkeeping that could itself be interrupted. What is left in a step whose mark is free is
left for good. And a signal handler, a finaliser or a callback of a weak reference that finds its
own thread's mark taken has interrupted a call of ours (`begin`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from hal._base import sync
from hal._engine import timelines
from hal.errors import ReentrantCallError

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext
    from hal._engine.operation import Operation
    from hal._engine.stream import StreamQueue
    from hal._engine.timelines import Work


class Later:
    """A call by a signal handler or a finaliser, put off to the end of a step."""

    __slots__ = ("first", "function", "is_begun", "second")

    def __init__(self, function: Callable[..., object], first: object, second: object) -> None:
        self.function: Callable[..., object] = function
        self.first = first
        self.second = second
        self.is_begun = False


class Registered(Protocol):
    """What a step needs of the host wait in it, a `hal._engine.waiting.HostWaiter`."""

    def leave(self) -> None:
        """Remove the registrations of the wait; idempotent."""


class CallStep:
    """The state that one call of ours on one thread has in hand."""

    __slots__ = (
        "awaited",
        "calm",
        "contexts",
        "inner",
        "is_left",
        "later",
        "mark",
        "noted",
        "operation",
        "queue",
        "waiter",
        "work",
    )

    def __init__(self) -> None:
        self.mark = sync.Mark()  # held while the call runs
        # Whether something may be left in it: a call runs or was broken off, or another thread
        # takes over what is left, under the timeline lock
        self.is_left = False
        # The follow-ups of the changes made so far, see `hal._engine.progress.drain`
        self.work: Work = []
        # The operation that is being submitted, which only this step knows before it stands in
        # line; or all of those that are submitted together
        self.operation: Operation | tuple[Operation, ...] | None = None
        # The operations that memory of `Queue.alloca` is being told of: until they are `operation`,
        # too, they may still be refused
        self.noted: Operation | tuple[Operation, ...] | None = None
        # The queue whose baton it holds, if `StreamQueue._owner` is this step
        self.queue: StreamQueue | None = None
        self.waiter: Registered | None = None  # the host wait that is registered
        # The contexts of native calls that hold no baton, such as asking an event, and the queue
        # that such a call synchronises
        self.contexts: tuple[DeviceContext | StreamQueue, ...] = ()
        # Whether this thread has no engine state in its hands just now, as while it sleeps: a
        # signal handler may call anything
        self.calm = False
        self.inner: CallStep | None = None  # the step of such a call
        # Operations whose search for memory is repeated when its work is done and its baton let go,
        # which may give some back
        self.awaited: list[Operation] = []
        self.later: list[Later] = []  # calls that were put off to its end

    def is_open(self) -> bool:
        """Return whether something is left to do."""
        return (
            bool(self.work)
            or self.operation is not None
            or self.noted is not None
            or self.queue is not None
            or self.waiter is not None
            or bool(self.awaited)
            or bool(self.later)
        )

    def has_put_off(self, operation: object) -> bool:
        """Return whether a submission is one that was put off: it is repeated, not taken back."""
        return any(call.first is operation for call in self.later)


_steps: Final[dict[int, CallStep]] = {}
"""The outermost step of each thread; kept for the next thread of the same number."""


def renew() -> None:
    """Forget the steps of all threads, of which a forked child has none."""
    _steps.clear()


def begin() -> CallStep:
    """Return the step for a call that begins on this thread.

    Raises `ReentrantCallError` if the call interrupts another one of ours: the timeline
    lock, a baton or a half-done change may be in this thread's hands.
    """
    if timelines.lock._is_owned():
        raise reentrant()
    thread = sync.get_ident()
    step = _steps.get(thread)
    if step is None:
        step = _steps.setdefault(thread, CallStep())  # a signal handler may have made one
    while step.mark.locked():
        if not step.calm:
            raise reentrant()
        inner = step.inner
        if inner is None:
            inner = step.inner = CallStep()
        step = inner
    return step


def is_inside() -> bool:
    """Return whether this thread is in the middle of a call of ours: changes are put off."""
    return timelines.lock._is_owned() or interrupted() is not None


def interrupted() -> CallStep | None:
    """Return the step of this thread's interrupted call, if any."""
    step = _steps.get(sync.get_ident())
    while step is not None and step.mark.locked():
        if not step.calm:
            return step
        step = step.inner
    return None


def take_later(step: CallStep) -> None:
    """Move the calls that were put off to this thread's outer steps to its innermost one.

    The outer ones do not end before it does, and it is about to wait, maybe for what such a call
    signals.
    """
    outer = _steps.get(sync.get_ident())
    while outer is not None and outer is not step:
        # Added here before they are cleared there: an interrupt between repeats a call, harmlessly
        step.later += outer.later
        outer.later = []
        outer = outer.inner


class Closer:
    """A call that closes something, for as long as it holds the mark.

    Not its step, which the thread's next call takes again: that of an interrupted close would
    count as still closing while a later call waits.
    """

    __slots__ = ("mark", "thread")

    def __init__(self) -> None:
        self.mark = sync.Mark()
        self.thread = sync.get_ident()


def is_mine(closer: Closer | None) -> bool:
    """Return whether a call further up this thread's stack is closing something."""
    return closer is not None and closer.thread == sync.get_ident() and closer.mark.locked()


def is_another(closer: Closer | None, own: Closer) -> bool:
    """Return whether another call than one's own is closing something; under the lock."""
    return closer is not None and closer is not own and closer.mark.locked()


def all_steps() -> list[CallStep]:
    """Return every step of every thread."""
    found = []
    for outer in list(_steps.values()):
        step: CallStep | None = outer
        while step is not None:
            found.append(step)
            step = step.inner
    return found


def users(what: DeviceContext | StreamQueue) -> int:
    """Return how many threads are in a native call of a context or a queue without a baton."""
    return sum(1 for step in all_steps() if what in step.contexts and step.mark.locked())


def unheld(lock: Any) -> Any:  # noqa: ANN401 - a lock, given back as it is
    """Return an `OwnedLock` for ``with``; raise if this thread holds it, which would deadlock.

    Raises `ReentrantCallError`: a signal handler or a finaliser needs what its thread is changing.
    """
    if lock._is_owned():
        raise reentrant()
    return lock


def reentrant() -> ReentrantCallError:
    """Return the error of a call that has interrupted another one and cannot be put off."""
    return ReentrantCallError(
        "a signal handler or a finaliser called hal in the middle of a call of hal's on the same "
        "thread, for something that cannot be put off; signal a semaphore or submit there, and do "
        "the rest on another thread or after the handler has returned"
    )
