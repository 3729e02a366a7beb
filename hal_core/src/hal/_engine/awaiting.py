"""Await a semaphore's value in asyncio (rule S8)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from hal._engine import progress

if TYPE_CHECKING:
    import asyncio

    from hal._engine.semaphore import Semaphore
    from hal.errors import HalError

__all__ = ["Reached"]


class Reached:
    """An awaitable for a semaphore's value."""

    __slots__ = ("_semaphore", "_value")

    def __init__(self, semaphore: Semaphore, value: int) -> None:
        self._semaphore = semaphore
        self._value = value

    def __await__(self) -> Generator[Any, None, None]:
        return _await_value(self._semaphore, self._value).__await__()


async def _await_value(semaphore: Semaphore, value: int) -> None:
    """Wait in asyncio without blocking its loop."""
    import asyncio  # noqa: PLC0415 - a tenth of the time to import hal, and here it is loaded

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: HalError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def arrive(error: HalError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    if semaphore.poll(value):
        return
    progress.start()  # the closing of a coroutine cannot start it
    callback = semaphore.on_reached(value, arrive)
    try:
        await future
    except GeneratorExit:
        # The collector closes abandoned coroutines, wherever it runs: also on a thread
        # that holds the timeline lock, which must not be taken here (I10).
        progress.cancel_later(callback)
        raise
    except BaseException:
        callback.cancel()
        raise
