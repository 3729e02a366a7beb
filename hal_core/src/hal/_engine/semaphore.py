"""Timeline semaphores, the public face of a timeline (rules S1 to S9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from hal._base import speedups
from hal._base.failures import fresh, told, twin
from hal._base.workers import report
from hal._engine import progress, steps, timelines, waiting
from hal._engine.awaiting import Awaiting, Registration, parked, polled
from hal._engine.retiring import harvest
from hal._engine.steps import CallStep
from hal._engine.timelines import MAX_VALUE, Timeline, Timepoint, Work, check_value
from hal.arguments import as_function, as_seconds
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError

if TYPE_CHECKING:
    from hal.tickets import SemaphoreTicket


_new = object.__new__


class Semaphore(Timeline):
    """A 64-bit value that only rises; hosts and queues wait for it and signal it.

    Made by `hal.create_semaphore`. Belongs to no device and outlives them all
    (S3). Every method may be called from any thread, and only `wait`
    blocks. Models: ``VkSemaphore`` of type timeline, IREE's HAL semaphore.
    """

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        failure = self._failure
        state = f"value={self._value}" if failure is None else f"failed={told(failure)}"
        return f"<Semaphore {self.name!r} {state}>"

    def at(self, value: SupportsIndex) -> Timepoint:
        """Return the timepoint of `value`, 0 to 2**63 - 1.

        Raises `ArgumentTypeError` or `InvalidArgumentError` for anything else.
        """
        timepoint = _new(Timepoint)  # without the frame of its `__init__`: this is a hot path
        timepoint._semaphore = self
        if type(value) is not int or not 0 <= value <= MAX_VALUE:
            value = check_value(value)
        timepoint._value = value
        return timepoint

    def query(self) -> int:
        """Return the value; all work that it depends on has retired and is visible (S7).

        Asks the events of the work in flight first. Raises the failure of a
        failed semaphore, as a fresh exception.
        """
        # A signal handler in the middle of a call of ours gets what is known by then (O3).
        if self._points and not steps.is_inside():
            progress.act(_harvest, self, None)
        failure = self._failure
        if failure is not None:
            raise fresh(failure)
        return self._value

    def poll(self, value: SupportsIndex) -> bool:
        """Return whether `value` has been reached; raises the failure as `query` does."""
        if type(value) is not int or not 0 <= value <= MAX_VALUE:
            value = check_value(value)
        is_open = self._value < value and self._points and self._failure is None
        if is_open and not steps.is_inside():
            progress.act(_harvest, self, None)
        failure = self._failure
        if failure is not None:
            raise fresh(failure)
        return self._value >= value

    def wait(self, value: SupportsIndex, timeout: SupportsFloat | None = None) -> None:
        """Block until `value` is reached, for at most `timeout` seconds; None means forever.

        Raises the failure of a failed semaphore, also for a value that it had
        reached (S4), and `DeadlineExceededError` at the time-out, whose text
        says who has promised the value (S9). Ctrl-C ends the wait. Must not
        be called from a callback of `on_reached`, which would delay other callbacks.
        """
        if type(value) is not int or not 0 <= value <= MAX_VALUE:
            value = check_value(value)
        if timeout is not None:
            timeout = as_seconds(timeout)
        has_asked = False
        if self._points and self._failure is None and self._value < value:
            has_asked = waiting.spin_for(self, value, timeout)
        if self._failure is None and self._value >= value:
            return
        waiting.wait_all((Timepoint(self, value),), timeout, asked=waiting.POLL_SECONDS * has_asked)

    def signal(self, value: SupportsIndex) -> None:
        """Raise the value to `value` at once and release its waiters.

        Issues at most 64 released operations itself and leaves the rest to
        the progress thread (Q1). Raises `InvalidArgumentError`, and changes
        nothing, unless `value` exceeds every value signalled or reserved
        before (S1); on a failed semaphore raises the failure.
        """
        if type(value) is not int or not 0 <= value <= MAX_VALUE:
            value = check_value(value)
        progress.act_or_put_off(_signal, self, value)

    def fail(self, error: BaseException) -> None:
        """Fail for good: every wait, also for a reached value, raises a fresh copy of `error`.

        The first failure wins; a later one is dropped. `error` is kept
        without its traceback; if it has one, a copy is kept. Raises `ArgumentTypeError`
        if it is not an exception.
        """
        if not isinstance(error, BaseException):
            raise ArgumentTypeError(f"fail() takes an exception, not {type(error).__name__}")
        progress.act_or_put_off(progress.change, Timeline._fail, (self, twin(error)))

    def share(self) -> SemaphoreTicket:
        """Return a ticket with which another process of the same user opens it (`Device.open`).

        Only for a semaphore that was created with ``shareable=True``; raises
        `InvalidArgumentError` for another. Its values, failures and rules are the same in all
        processes. A process that is killed, or ends with an exception, fails it in the others
        within a second, with `ProcessLostError`; one that ends well, or drops it, only leaves.
        """
        raise InvalidArgumentError(
            f"{self.name} is of this process alone; a semaphore that others open is made with "
            "hal.create_semaphore(shareable=True)"
        )

    def on_reached(
        self, value: SupportsIndex, function: Callable[[HalError | None], object]
    ) -> Callback:
        """Call ``function(None)`` once `value` is reached, or ``function(error)`` on failure.

        Always on a dispatcher thread of ours, in the order in which values
        were reached; never inline (S8). Returns a handle whose ``cancel()``
        cancels the callback. Exceptions of the function go to
        `sys.unraisablehook`. Raises `OperationError` if the system starts no
        thread for it.
        """
        value = check_value(value)
        function = as_function(function, "on_reached()")
        if not steps.is_inside():
            progress.dispatcher.start()  # raises if no thread can be started
        callback = Callback(self, value, function)
        progress.act_or_put_off(callback._register, None, None)
        return callback

    def reached(self, value: SupportsIndex) -> Awaitable[None]:
        """Return an awaitable for asyncio and trio that ends when `value` is reached (S8).

        Awaiting raises the failure of a failed semaphore. Cancelling the task
        leaves nothing behind.
        """
        return Reached(self, check_value(value))


class Reached:
    """An awaitable for a semaphore's value."""

    __slots__ = ("_semaphore", "_value")

    def __init__(self, semaphore: Semaphore, value: int) -> None:
        self._semaphore = semaphore
        self._value = value

    def __await__(self) -> Awaiting:
        semaphore, value = self._semaphore, self._value

        def look(seconds: float) -> bool:
            waiting.spin_for(semaphore, value, seconds)
            return semaphore._value >= value or semaphore._failure is not None

        if semaphore._points:  # else there is nothing to ask
            yield from polled(look)
        if semaphore.poll(value):
            return
        yield from parked(semaphore, value)
        if semaphore._failure is not None:
            raise fresh(semaphore._failure)


class Callback(Registration):
    """The handle of a callback that `Semaphore.on_reached` registered."""

    __slots__ = ("_function",)

    def __init__(
        self, semaphore: Semaphore, value: int, function: Callable[[HalError | None], object]
    ) -> None:
        super().__init__(semaphore, value)
        self._function: Callable[[HalError | None], object] | None = function

    def cancel(self) -> bool:
        """Cancel the callback; return True if it had not been dispatched and now never will be."""
        return progress.act(self._cancel, None, None)

    def _cancel(self, step: CallStep, *_: None) -> bool:
        """Cancel the callback, inside a step."""
        with timelines.lock:
            found = self._semaphore._forget(self._value, self)
            if found:
                # Dropped under no lock: it is the user's.
                step.work.append((timelines.DROP, self._function))
                self._function = None
        return found

    def _notice(self, index: int, work: Work) -> None:  # noqa: ARG002 - one wait only
        # Appended under the lock, so that the order is that of the values.
        progress.dispatcher.append(self._run, self._semaphore._failure)
        work.append((timelines.CALLBACK, None))

    def _run(self, failure: BaseException | None) -> None:
        """Run the callback at most once, even if dispatched twice; on the dispatcher."""
        function = progress.act(self._take_function, None, None)
        if function is not None:
            try:
                function(None if failure is None else fresh(failure))
            except BaseException as error:  # noqa: BLE001 - whatever user code raises
                report(function, error)

    def _take_function(self, _: CallStep, *__: None) -> Callable[[HalError | None], object] | None:
        with timelines.lock:
            function, self._function = self._function, None
            return function


def _harvest(step: CallStep, semaphore: Semaphore, _: None) -> None:
    """Retire what has finished on the queues that will signal `semaphore`."""
    with timelines.lock:
        queues = {operation._queue for _, operation in semaphore._points}
    for queue in queues:
        harvest(step, queue)


def _signal(step: CallStep, semaphore: Semaphore, value: int) -> None:
    if semaphore._points:
        _harvest(step, semaphore, None)
        progress.drain(step)
    with timelines.lock:
        if semaphore._failure is not None:
            raise fresh(semaphore._failure)
        if value <= semaphore._reserved:
            raise InvalidArgumentError(semaphore._not_above(value))
        # Reserved and noted before it rises: the next call completes what an interrupt leaves, and
        # no lower value is signalled until then.
        semaphore._reserved = value
        step.work.append((timelines.CHANGE, (Timeline._advance, semaphore, value)))
        semaphore._advance(value, step.work)


def signal_again(semaphore: Semaphore, value: int) -> None:
    """Raise a semaphore to a value that another process has signalled."""
    progress.act(progress.change, Timeline._advance, (semaphore, value))


def release_some(step: CallStep, semaphore: Semaphore, value: int) -> None:
    """Have C issue some more; on the progress thread, so other work comes in between (Q1)."""
    step.calm = True  # C may call the engine
    speedups.module.release(semaphore, value)
    step.calm = False


def release_again(step: CallStep, semaphore: Semaphore, value: int) -> None:
    """Release the operations that wait for a value which C has raised or recorded."""
    step.work.append((timelines.CHANGE, (_release, semaphore, value)))


def _release(semaphore: Semaphore, value: int, work: Work) -> None:
    if semaphore._recorded:
        semaphore._recorded.take(value, work)
