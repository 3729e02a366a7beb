"""Await a semaphore's value or an operation's end in asyncio or trio (rule S8).

An event loop serves others meanwhile, so an await holds it for no longer than a turn of it costs.
Most awaits are for work that ends within microseconds, though, and to be woken from another
thread costs fifty. So an await of work that is on a stream first asks its event, and has the
loop make a turn in between, for about as long as a waking costs (`polled`). Then it
registers like a waiting thread, and the thread that retires the work tells the loop.

`sniffio` says which library runs the task, if anything has imported it, as trio and anyio do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hal._base import sync
from hal._base.failures import is_users
from hal._base.workers import report
from hal._engine import progress, timelines
from hal._engine.timelines import WAKE, Timeline, Work
from hal.errors import UnimplementedError
from hal.handlers import dropped

if TYPE_CHECKING:
    from hal._engine.steps import CallStep


Awaiting: TypeAlias = Generator[Any, None, None]

_POLL_SECONDS: Final = 100e-6
"""How long an await asks, turns of the loop included: about the cost of being woken."""

_HOLD_SECONDS: Final = 10e-6
"""How long it asks without a turn of the loop: about the cost of one."""


def polled(look: Callable[[float], bool]) -> Generator[Any, None, bool]:
    """Call ``look(seconds)``, turns of the loop in between, until it is True or time is up."""
    if look(_HOLD_SECONDS):
        return True
    library = _library()
    deadline = sync.monotonic() + _POLL_SECONDS
    while sync.monotonic() < deadline:
        if library is None:
            yield  # asyncio has the task run again in its next turn
        else:
            yield from library.lowlevel.checkpoint().__await__()
        if look(_HOLD_SECONDS):
            return True
    return False


def _library() -> Any:  # noqa: ANN401 - a library that hal does not depend on
    """Return trio if it runs this task, and None for asyncio."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is None:
        return None
    name = "asyncio"  # whose own error says that no loop runs
    with dropped(sniffio.AsyncLibraryNotFoundError):
        name = sniffio.current_async_library()
    if name == "trio":
        return sys.modules["trio"]
    if name != "asyncio":
        message = f"hal's objects can be awaited in asyncio and trio, not in {name}; use wait()"
        raise UnimplementedError(message)
    return None


def parked(timeline: Timeline, value: int) -> Awaiting:
    """Sleep until a value is reached, or its timeline fails."""
    progress.start()  # now: a coroutine that the collector closes cannot start a thread
    waiter = _Waiter(timeline, value)
    try:
        yield from waiter.park(_library())
    except GeneratorExit:
        # The collector closes abandoned coroutines, wherever it runs: also on a thread
        # that holds the timeline lock, which must not be taken here (I10).
        progress.put_last(waiter._cancel, None, None)
        raise
    except BaseException:
        progress.act(waiter._cancel, None, None)
        raise


class Registration:
    """An entry of a semaphore that is notified once, when its value is reached or it fails."""

    __slots__ = ("_semaphore", "_value")

    def __init__(self, semaphore: Timeline, value: int) -> None:
        self._semaphore = semaphore
        self._value = value

    def _register(self, step: CallStep, *_: None) -> None:
        """Register, or notify at once; inside a step."""
        semaphore, value, work = self._semaphore, self._value, step.work
        with timelines.lock:
            if semaphore._failure is not None or semaphore._value >= value:
                self._notice(0, work)
            else:
                semaphore._until_told(value, work).watch(value, self, 0)

    def _cancel(self, _: CallStep, *__: None) -> bool:
        """Leave no registration behind, inside a step; return whether there was one."""
        with timelines.lock:
            return self._semaphore._forget(self._value, self)

    def _notice(self, index: int, work: Work) -> None:
        """Handle the notification, as a `hal._engine.timelines.Watcher` does."""
        raise NotImplementedError


class _Waiter(Registration):
    """A task that sleeps until its value is reached, or its timeline fails."""

    __slots__ = ("_is_awake", "_tell")

    def __init__(self, semaphore: Timeline, value: int) -> None:
        super().__init__(semaphore, value)
        self._tell: Callable[[], object]
        self._is_awake = False  # changed by the loop's thread only

    def park(self, trio: Any) -> Awaiting:  # noqa: ANN401
        """Sleep until woken, in asyncio unless trio is given."""
        if trio is None:
            import asyncio  # noqa: PLC0415 - a tenth of the time to import hal

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def settle() -> None:
                if not future.done():  # else the task was cancelled meanwhile
                    future.set_result(None)

            self._tell = lambda: loop.call_soon_threadsafe(settle)
            progress.act(self._register, None, None)
            yield from future
            return
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def resume() -> None:
            # trio lets a task be rescheduled once, and not after an abort.
            if not self._is_awake:
                self._is_awake = True
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> Any:  # noqa: ANN401
            self._is_awake = True
            return trio.lowlevel.Abort.SUCCEEDED

        self._tell = lambda: token.run_sync_soon(resume)
        progress.act(self._register, None, None)
        yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()

    def ring(self) -> None:
        """Have the loop resume the task, on any thread; no lock held."""
        try:
            self._tell()
        except Exception as error:  # whatever a loop of the user's raises
            if is_users(error):
                raise  # the repair of the step tells the loop again (O3)
            if not isinstance(error, RuntimeError):  # else the loop is closed
                report(self._tell, error)

    def _notice(self, index: int, work: Work) -> None:  # noqa: ARG002 - one wait only
        work.append((WAKE, self))
