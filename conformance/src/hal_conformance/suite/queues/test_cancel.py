"""Cancelling: what was not issued ends by its user's call, and what was issued goes on (Q7)."""

from __future__ import annotations

import asyncio
import threading

import pytest

import hal
from hal.errors import CancelledError
from hal_conformance.suite.support import LIMIT, Operations, in_threads


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_what_is_not_issued_is_cancelled_q7(device, make_queue, make_semaphore, kind, ordered):
    """Q7: its handle and signals fail with `CancelledError`; it never runs, and work goes on."""
    queue, operations = make_queue(ordered=ordered), Operations(device)
    gate, promised = make_semaphore(), make_semaphore()
    device.wait_idle(LIMIT)
    pending = operations.submit(kind, queue, wait=gate.at(1), signal=promised.at(1))
    behind = queue.barrier()
    assert pending.cancel()
    assert pending.cancel()
    assert pending.state == "cancelled"
    assert isinstance(pending.error, CancelledError)
    for waitable in (pending, promised.at(1)):
        with pytest.raises(CancelledError):
            hal.wait_all([waitable], LIMIT)
    behind.wait(LIMIT)
    gate.signal(1)
    queue.barrier().wait(LIMIT)
    assert operations.nothing_has_run()


def test_what_has_ended_is_not_cancelled_q7(device, queue, semaphore, kind):
    """Q7: the answer is False; nothing changes, for what is done and for what has failed."""
    operations = Operations(device)
    done = operations.submit(kind, queue, signal=semaphore.at(1))
    done.wait(LIMIT)
    assert not done.cancel()
    assert done.state == "done"
    assert semaphore.query() == 1
    assert operations.has_run(kind)


def test_what_waits_for_a_cancelled_operation_fails_q7(device, make_queue, make_semaphore):
    """Q7, S5: on other queues, too; its error is a `CancelledError`. Other work goes on."""
    gate, promised = make_semaphore(), make_semaphore()
    operations, queues = Operations(device), [make_queue() for _ in range(3)]
    first = operations.submit("fill", queues[0], wait=gate.at(1), signal=promised.at(1))
    by_signal = operations.submit("call", queues[1], wait=promised.at(1))
    by_handle = operations.submit("copy", queues[2], wait=first)
    follower = queues[1].barrier(wait=by_handle)
    free = queues[2].barrier()
    assert first.cancel()
    for each in (by_signal, by_handle, follower):
        with pytest.raises(CancelledError):
            each.wait(LIMIT)
        assert each.state == "failed"
        assert not each.cancel()
    free.wait(LIMIT)
    assert operations.called == 0


def test_what_runs_is_not_recalled_q7(queue, make_latch):
    """Q7: a host call that runs goes on and is done; one behind it is cancelled."""
    latch = make_latch(queue)
    latch.wait_running()
    called: list[int] = []
    behind = queue.call(called.append, 1)
    assert not latch.submission.cancel()
    assert behind.cancel()
    latch.open()
    latch.submission.wait(LIMIT)
    queue.barrier().wait(LIMIT)
    assert latch.submission.state == "done"
    assert not called


@pytest.mark.parametrize("kind", ["fill", "call"])
def test_cancel_or_issue_q7(device, make_queue, make_semaphore, kind):
    """Q7: while another thread signals, an operation is cancelled, or runs; never both."""
    queue = make_queue()
    for _ in range(50):
        operations = Operations(device)
        gate, promised = make_semaphore(), make_semaphore()
        start = threading.Barrier(2)
        pending = operations.submit(kind, queue, wait=gate.at(1), signal=promised.at(1))

        def signal(start=start, gate=gate):
            start.wait(LIMIT)
            gate.signal(1)

        def cancel(start=start, pending=pending):
            start.wait(LIMIT)
            return pending.cancel()

        is_cancelled = in_threads([signal, cancel])[1]
        if is_cancelled:
            with pytest.raises(CancelledError):
                promised.wait(1, LIMIT)
        else:
            promised.wait(1, LIMIT)
        queue.barrier().wait(LIMIT)
        assert pending.state == ("cancelled" if is_cancelled else "done")
        assert operations.has_run(kind) is not is_cancelled


def test_a_cancelled_task_cancels_if_asked_q7(device, queue, make_semaphore):
    """Q7, S8: `or_cancel` cancels the submission with the task that awaits it; `await` does not."""
    gate = make_semaphore()
    operations = Operations(device)
    device.wait_idle(LIMIT)
    asked = operations.submit("copy", queue, wait=gate.at(1))
    plain = operations.submit("call", queue, wait=gate.at(1))

    async def main():
        for each in (asked.or_cancel(), plain):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(each, 0.01)

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert asked.state == "cancelled"
    assert plain.state == "pending"
    gate.signal(1)
    plain.wait(LIMIT)
    assert operations.called == 1
    assert not operations.has_run("copy")
