"""Submissions that their user cancels: what remains of them, and of awaits that cancel them."""

import asyncio
import gc
import sys
import threading
import weakref

import anyio
import pytest
import trio
from core_harness import LIMIT, collect_in_threads, semaphores, wait_until

from hal._engine import progress, timelines
from hal._engine.payload import CallSequence
from hal._engine.submitting import submit
from hal._memory.settings import MemorySettings
from hal.errors import CancelledError, OperationError, UnimplementedError

PATIENCE = 600
"""Clients that come and go."""


def waiters_of(semaphore):
    return [each for each in (semaphore._recorded, semaphore._reached) if each and len(each)]


def test_cancelled_operations_do_not_pile_up_behind_one_that_waits(open_probe):
    """Operations cancelled behind a waiting one leave the backlog."""
    device, _ = open_probe()
    queue, (gate, never) = device.queue, semaphores(2)
    buffer = device.allocate(64)
    head = queue.fill(buffer, 1, wait=gate.at(1))
    kept = []
    for index in range(PATIENCE):
        submission = queue.fill(buffer, 2, wait=never.at(1))
        if index % 200 == 0:
            kept.append(queue.fill(buffer, 3))
        assert submission.cancel()
        assert len(queue._backlog) < 2 * (len(kept) + 2)
    assert not waiters_of(never)
    gate.signal(1)
    head.wait(LIMIT)
    for each in kept:
        each.wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 3).all()


def test_a_cancelled_operation_lets_go_of_what_it_used(device):
    """Q5: it does so at once, although its handle and its waits live on."""

    class Bag:
        def put(self):
            raise AssertionError

    (gate,) = semaphores(1)
    bag = Bag()
    reference = weakref.ref(bag)
    submission = device.queue.call(bag.put, wait=gate.at(1))
    del bag
    assert reference() is not None
    assert submission.cancel()
    gc.collect()
    assert reference() is None


def test_a_host_call_that_no_thread_has_begun_is_cancelled(device, monkeypatch):
    """The call was sent to the pool, whose threads are all busy."""
    monkeypatch.setattr(progress._pool, "run", lambda function: None)
    called = []
    queue = device.create_queue(ordered=False)
    submission = queue.call(called.append, 1)
    assert submission.state == "issued"
    assert submission.cancel()
    assert submission.state == "cancelled"
    submission._run_on_host()  # as the pool's thread does, later
    assert not called
    queue.barrier().wait(LIMIT)


class Parts(CallSequence):
    """Two launches, after the first of which `between` is called on a thread of its own."""

    __slots__ = ("between",)

    def issue(self, operation, most):
        collect_in_threads([self.between])
        self.left -= 1
        return 1


def test_what_goes_back_into_line_while_it_is_cancelled_is_cancelled_then(device):
    """Q1: while a thread issues one part, cancel returns False; the others are cancelled."""
    (gate,) = semaphores(1)
    plan, answers = Parts(2), []
    queue = device.queue
    submission = submit(queue, "execute", (plan, (), None), gate.at(1), ())
    plan.between = lambda: answers.append(submission.cancel())
    gate.signal(1)
    with pytest.raises(CancelledError):
        submission.wait(LIMIT)
    assert (answers, plan.left) == ([False], 1)
    queue.barrier().wait(LIMIT)


def test_an_alloca_that_waits_for_memory_is_cancelled(open_probe, latch):
    """M3: work behind it goes on, and its buffer cannot be used."""
    device, probe = open_probe(settings=MemorySettings(memory_limit=1 << 20))
    probe.hold(latch)
    queue = device.queue
    taken = queue.alloca(1 << 20)
    queue.fill(taken, 0)  # while it runs the memory may come back
    wanted = queue.alloca(1 << 20)
    wait_until(lambda: queue in device._context.starved)
    behind = queue.barrier()
    assert wanted.allocation.cancel()
    assert wanted.allocation.state == "cancelled"
    assert not device._context.starved
    assert behind.state == "issued"
    with pytest.raises(CancelledError):
        queue.fill(wanted, 0).wait(LIMIT)
    latch.open()
    behind.wait(LIMIT)


def test_a_cancelled_dealloca_gives_the_memory_back_without_its_order(open_probe):
    """M3: the buffer is unusable, as after any dealloca."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=1 << 20))
    (gate,) = semaphores(1)
    buffer = device.queue.alloca(1 << 20)
    giving = device.queue.dealloca(buffer, wait=gate.at(1))
    assert giving.cancel()
    assert buffer.closed
    device.queue.alloca(1 << 20).allocation.wait(LIMIT)


# Awaits


def in_asyncio(main):
    return asyncio.run(asyncio.wait_for(main(), LIMIT))


def in_trio(main):
    async def limited():
        with trio.fail_after(LIMIT):
            return await main()

    return trio.run(limited)


def in_anyio(main, backend):
    async def limited():
        with anyio.fail_after(LIMIT):
            return await main()

    return anyio.run(limited, backend=backend)


RUNNERS = {
    "asyncio": in_asyncio,
    "trio": in_trio,
    "anyio over asyncio": lambda main: in_anyio(main, "asyncio"),
    "anyio over trio": lambda main: in_anyio(main, "trio"),
}

runners = pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)


@runners
def test_submissions_and_values_are_awaited(device, run):
    """S8: done, running, pending, and failed ones, in each library."""
    buffer, (gate, frames) = device.allocate(64), semaphores(2)

    async def main():
        fill = device.queue.fill(buffer, 7, signal=frames.at(1))
        fill.wait(LIMIT)
        await fill
        await frames.reached(1)
        await device.queue.fill(buffer, 8)
        pending = device.queue.fill(buffer, 9, wait=gate.at(1), signal=frames.at(2))
        threading.Thread(target=gate.signal, args=(1,)).start()
        await frames.reached(2)
        await pending.or_cancel()
        frames.fail(OperationError("broken"))
        with pytest.raises(OperationError, match="broken"):
            await frames.reached(3)
        return (buffer.numpy(timeout=LIMIT) == 9).all()

    assert run(main)
    assert not waiters_of(gate)
    assert not waiters_of(frames)


@runners
def test_an_await_that_times_out_cancels_its_submission_if_asked(device, run):
    """S8: `or_cancel` does, a plain await does not; neither leaves a waiter behind."""
    (gate,) = semaphores(1)
    buffer = device.allocate(64)

    async def main():
        submissions = [device.queue.fill(buffer, 7, wait=gate.at(1)) for _ in range(2)]
        awaits = (submissions[0].or_cancel(), submissions[1])
        for each in awaits:
            with anyio.move_on_after(0.01) as scope:
                await each
            assert scope.cancelled_caught
        return submissions

    if run is in_trio:  # anyio has scopes there, too
        run = RUNNERS["anyio over trio"]
    asked, plain = run(main)
    assert (asked.state, plain.state) == ("cancelled", "pending")
    assert isinstance(asked.error, CancelledError)
    assert not waiters_of(plain._private._semaphore)
    gate.signal(1)
    plain.wait(LIMIT)


def test_the_task_of_an_issued_submission_is_told_that_it_goes_on(open_probe, latch):
    """Issued work is not recalled: the note says what runs and how to wait for it."""
    device, probe = open_probe()
    probe.hold(latch)
    buffer = device.allocate(64)

    async def main():
        fill = device.queue.fill(buffer, 7)
        task = asyncio.ensure_future(fill.or_cancel())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        (note,) = caught.value.__notes__
        assert "fill on cpu:0/compute had been issued" in note
        assert "submission.wait()" in note
        latch.open()
        await fill
        return fill.cancel(), fill.state

    assert in_asyncio(main) == (False, "done")


@pytest.mark.parametrize("run", [in_asyncio, in_trio], ids=["asyncio", "trio"])
def test_clients_who_disconnect_leave_nothing_pending(open_probe, run):
    """200 clients disconnect in the middle of a request, and 200 more stay."""
    device, _ = open_probe()
    queue, (gate,) = device.queue, semaphores(1)
    buffer, mark = device.allocate(64), device.allocate(4, dtype="i4")
    device.queue.barrier(wait=gate.at(1))  # what everybody waits for
    threads = threading.active_count()
    served = []

    async def serve(number):
        # An upload of its own for each request, and two steps that need it
        first = queue.fill(buffer, number % 100, wait=gate.at(1))
        second = queue.fill(mark, number, wait=first)
        await second.or_cancel()
        served.append(number)

    async def main():
        async with anyio.create_task_group() as everyone:
            async with anyio.create_task_group() as leaving:
                for number in range(200):
                    leaving.start_soon(serve, number)
                    everyone.start_soon(serve, 200 + number)
                while len(queue._unissued()) < 801:
                    await anyio.sleep(0)
                leaving.cancel_scope.cancel()
            assert threading.active_count() <= threads + 3  # ours, one of each kind
            # Of those who left, the first steps are not awaited, and stand in line.
            assert len(queue._unissued()) == 601
            gate.signal(1)

    run(main)
    assert sorted(served) == list(range(200, 400))
    assert mark.numpy(timeout=LIMIT)[0] in served
    queue.wait_idle(LIMIT)
    assert not queue._backlog
    assert not waiters_of(gate)
    assert threading.active_count() <= threads + 3


def test_an_abandoned_await_that_cancels_is_cancelled_later(device):
    """I10: the collector closes the await under the timeline lock, and takes no lock."""
    (gate,) = semaphores(1)
    submission = device.queue.barrier(wait=gate.at(1))
    loop = asyncio.new_event_loop()
    task = submission.or_cancel().__await__()
    asyncio._set_running_loop(loop)
    try:
        next(task)
    finally:
        asyncio._set_running_loop(None)
        loop.close()
    with timelines.lock:
        task.close()
    wait_until(lambda: submission.state == "cancelled")
    assert not waiters_of(gate)


def test_another_library_is_refused(device, monkeypatch):
    """The error names the libraries that work."""
    sniffio = sys.modules["sniffio"]
    monkeypatch.setattr(sniffio, "current_async_library", lambda: "curio")
    submission = device.queue.barrier(wait=semaphores(1)[0].at(1))
    with pytest.raises(UnimplementedError, match="asyncio and trio, not in curio"):
        next(iter(submission.__await__()))
    submission.cancel()
