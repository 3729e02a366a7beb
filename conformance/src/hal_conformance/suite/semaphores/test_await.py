"""Awaiting: values and submissions in asyncio, without blocking the loop (S8)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from hal.errors import InvalidArgumentError, OperationError, SemaphoreFailedError
from hal_conformance.suite.support import LIMIT, broken, in_threads


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what it returns
    """Run a coroutine to its end, within the limit."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT))


@pytest.mark.parametrize("value", [0, 2, 3])
def test_awaiting_a_reached_value_s8(make_semaphore, value):
    """S8: awaiting a value at or below what was reached goes on at once."""
    semaphore = make_semaphore(3)

    async def wait():
        await semaphore.reached(value)
        return semaphore.query()

    assert run(wait()) == 3


def test_awaiting_a_value_that_comes_later_s8(producers, semaphore, producer):
    """S8: while one task awaits the loop runs others, one of which has the value produced."""

    async def main():
        seen = []

        async def wait():
            seen.append("waiting")
            await semaphore.reached(5)
            seen.append("reached")

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)  # lets the task run up to its await
        seen.append("signalling")
        producers.signal(producer, semaphore.at(7))
        await task
        return seen

    assert run(main()) == ["waiting", "signalling", "reached"]
    assert semaphore.query() == 7


@pytest.mark.parametrize("state", ["pending", "done"])
def test_awaiting_a_submission_s8(device, queue, gate, state):
    """S8: a submission is awaitable, pending or done, more than once."""
    buffer = device.allocate(64)
    submission = queue.fill(buffer, 3, wait=gate.at(1))
    if state == "done":
        gate.signal(1)
        submission.wait(LIMIT)

    async def main():
        if state == "pending":
            asyncio.get_running_loop().call_soon(gate.signal, 1)
        await submission
        await submission

    run(main())
    assert submission.state == "done"
    assert (buffer.numpy(timeout=LIMIT) == 3).all()


def test_awaiting_many_s8(queue, semaphore):
    """S8: a hundred tasks await a hundred values, which a chain on a queue brings about."""

    async def main():
        order = []

        async def wait(value):
            await semaphore.reached(value)
            order.append(value)

        tasks = [asyncio.ensure_future(wait(value)) for value in range(1, 101)]
        for value in range(1, 101):
            queue.barrier(signal=semaphore.at(value))
        await asyncio.gather(*tasks)
        return order

    assert sorted(run(main())) == list(range(1, 101))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [broken(), OSError("gone")], ids=["hal", "foreign"])
def test_awaiting_a_failure_s8(make_semaphore, error, when):
    """S8: an await raises the failure, of before or of while it waits, as every wait does."""
    semaphore = make_semaphore()
    kind = OperationError if isinstance(error, OperationError) else SemaphoreFailedError

    async def main():
        if when == "before":
            semaphore.fail(error)
        else:
            asyncio.get_running_loop().call_soon(semaphore.fail, error)
        with pytest.raises(kind) as caught:
            await semaphore.reached(1)
        assert caught.value is not error
        assert caught.value.__cause__ is error

    run(main())


def test_awaiting_a_failed_submission_s8(queue, gate):
    """S8: awaiting a submission raises its error."""
    submission = queue.barrier(wait=gate.at(1))

    async def main():
        asyncio.get_running_loop().call_soon(gate.fail, broken())
        with pytest.raises(OperationError, match="broken"):
            await submission

    run(main())


def test_a_cancelled_await_leaves_nothing_behind_s8(semaphore):
    """S8: a task that is cancelled or times out keeps nothing alive, and the semaphore is fine."""

    class Payload:
        pass

    references: list[weakref.ref[Any]] = []

    async def wait(payload):
        await semaphore.reached(1)
        assert isinstance(payload, Payload)

    async def main():
        # A waiter that is left behind would keep the loop that it was to wake.
        references.append(weakref.ref(asyncio.get_running_loop()))
        for _ in range(20):
            payload = Payload()
            references.append(weakref.ref(payload))
            task = asyncio.ensure_future(wait(payload))
            del payload
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task

    run(main())
    gc.collect()
    assert [each() for each in references] == [None] * 21
    semaphore.signal(1)
    assert semaphore.query() == 1


def test_a_loop_that_ended_is_left_alone_s8(semaphore):
    """S8: a value may be reached after the loop that awaited it was closed."""

    async def main():
        asyncio.ensure_future(semaphore.reached(1))  # noqa: RUF006
        await asyncio.sleep(0)

    run(main())
    semaphore.signal(1)
    assert semaphore.query() == 1


def test_two_loops_await_one_semaphore_s8(semaphore):
    """S8: loops on two threads may await the same value."""

    async def wait():
        await semaphore.reached(1)

    in_threads([lambda: run(wait()), lambda: run(wait()), lambda: semaphore.signal(1)])


@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_bad_value_is_refused_before_the_await_s8(semaphore, value):
    """S8: `reached` checks its value at the call, outside of any loop."""
    with pytest.raises(InvalidArgumentError):
        semaphore.reached(value)
