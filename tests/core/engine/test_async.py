"""Callbacks and asyncio: S8."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import sys
import threading
import weakref

import numpy as np
import pytest
from child_processes import run_python
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import OperationError, SemaphoreFailedError


def run(coroutine):
    """Run a coroutine in a loop of its own, with a limit."""

    async def limited():
        async with asyncio.timeout(LIMIT):
            return await coroutine

    return asyncio.run(limited())


class Recorder:
    """Take callbacks, remember them, and wait for a number of them."""

    def __init__(self):
        self.errors = []
        self.threads = []
        self._more = threading.Condition()

    def __call__(self, error):
        with self._more:
            self.errors.append(error)
            self.threads.append(threading.current_thread())
            self._more.notify_all()

    def wait(self, count=1):
        with self._more:
            assert self._more.wait_for(lambda: len(self.errors) >= count, LIMIT)


def settle():
    """Return once every callback sent off so far has been called."""
    last = Recorder()
    hal.create_semaphore().on_reached(0, last)
    last.wait()


# Callbacks


@pytest.mark.parametrize("when", ["before", "reached", "beyond"])
def test_callback_of_a_host_signal_s8(when):
    """S8: called once, with None, on a thread of ours, never inline."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    if when != "before":
        semaphore.signal(2 if when == "beyond" else 1)
    semaphore.on_reached(1, recorder)
    if when == "before":
        settle()
        assert recorder.errors == []
        semaphore.signal(1)
    recorder.wait()
    semaphore.signal(9)
    settle()
    assert recorder.errors == [None]
    assert recorder.threads[0] is not threading.current_thread()


def test_callback_is_not_called_under_a_lock_s8(device):
    """S8: it may call anything that does not block: submit, signal, query, register."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    results = []

    def callback(_):
        other = hal.create_semaphore()
        other.on_reached(1, recorder)
        results.append((semaphore.query(), device.queue.barrier(signal=other.at(1))))

    semaphore.on_reached(1, callback)
    semaphore.signal(1)
    recorder.wait()
    assert results[0][0] == 1
    results[0][1].wait(LIMIT)


def test_callback_is_not_inline_while_the_signaller_holds_a_lock_s8():
    """S8: a callback that needs a lock which the signalling thread holds is no dead-lock."""
    lock = threading.Lock()
    semaphore, recorder = hal.create_semaphore(), Recorder()

    def callback(error):
        with lock:
            recorder(error)

    with lock:
        semaphore.on_reached(1, callback)
        semaphore.on_reached(0, callback)
        semaphore.signal(1)
        semaphore.on_reached(1, callback)
    recorder.wait(3)


def test_callback_of_device_work_s8(open_probe, latch):
    """S8, I6: told by the device's end, with nobody waiting, and not on a driver's thread."""
    device, probe = open_probe()
    buffer = device.upload(np.zeros(4, np.uint8))
    semaphore, recorder = hal.create_semaphore(), Recorder()
    probe.hold(latch)
    device.queue.fill(buffer, 6, signal=semaphore.at(1))
    semaphore.on_reached(1, recorder)
    settle()
    assert recorder.errors == []
    latch.open()
    recorder.wait()
    assert recorder.errors == [None]
    assert semaphore.query() == 1
    assert buffer.numpy().tolist() == [6] * 4


def test_callback_registered_before_the_submission_s8(device):
    semaphore, recorder = hal.create_semaphore(), Recorder()
    semaphore.on_reached(1, recorder)
    device.queue.barrier(signal=semaphore.at(1))
    recorder.wait()


@pytest.mark.parametrize("when", ["before", "after"])
def test_callback_of_a_failure_s8(when):
    """S8: called with the failure, afresh, also for a value that was reached."""
    semaphore, recorder = hal.create_semaphore(5), Recorder()
    original = OperationError("broken")
    if when == "after":
        semaphore.fail(original)
        semaphore.on_reached(3, recorder)
    semaphore.on_reached(9, recorder)
    semaphore.on_reached(8, recorder)
    semaphore.fail(original)
    count = 2 if when == "before" else 3
    recorder.wait(count)
    settle()
    assert len(recorder.errors) == count
    for error in recorder.errors:
        assert type(error) is OperationError
        assert error is not original
        assert error.__cause__ is original


def test_callback_of_a_foreign_failure_gets_a_hal_error_s8():
    semaphore, recorder = hal.create_semaphore(), Recorder()
    semaphore.on_reached(1, recorder)
    semaphore.fail(KeyError("k"))
    recorder.wait()
    assert isinstance(recorder.errors[0], SemaphoreFailedError)


def test_callbacks_of_one_thread_come_in_order_s8():
    """S8: in the order of the values, whatever the order of registration, on one thread."""
    semaphore, order, last = hal.create_semaphore(), [], Recorder()
    for value in [5, 1, 4, 2, 3, 10, 7]:
        semaphore.on_reached(value, lambda _, value=value: order.append(value))
    semaphore.on_reached(10, last)
    for value in (2, 3, 6, 10):
        semaphore.signal(value)
    last.wait()
    assert order == [1, 2, 3, 4, 5, 7, 10]


def test_callbacks_come_in_the_order_in_which_values_were_reached_s8():
    """S8: also when two threads take turns at signalling."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            semaphore, order, last = hal.create_semaphore(), [], Recorder()
            count = 600
            for value in range(1, count + 1):
                semaphore.on_reached(value, lambda _, value=value, order=order: order.append(value))
            semaphore.on_reached(count, last)

            def signal(first, semaphore=semaphore, count=count):
                for value in range(first, count + 1, 2):
                    semaphore.wait(value - 1, LIMIT)
                    semaphore.signal(value)

            collect_in_threads([functools.partial(signal, 1), functools.partial(signal, 2)])
            last.wait()
            settle()
            assert order == sorted(order)
            assert len(order) == count
    finally:
        sys.setswitchinterval(interval)


def test_a_raising_callback_is_reported_and_ends_nothing_s8(monkeypatch):
    """S8: `sys.unraisablehook` hears of it; the next callback comes."""
    reports = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: reports.append((report.exc_type, report.object))
    )
    semaphore, recorder = hal.create_semaphore(), Recorder()

    def bad(_):
        raise ZeroDivisionError

    def worse(_):
        raise SystemExit

    semaphore.on_reached(1, bad)
    semaphore.on_reached(2, worse)
    semaphore.on_reached(3, recorder)
    semaphore.signal(5)
    recorder.wait()
    assert reports == [(ZeroDivisionError, bad), (SystemExit, worse)]


@pytest.mark.parametrize("hook", ["sys.__unraisablehook__", "lambda report: 1 // 0", "None"])
def test_a_raising_callback_is_told_to_stderr_without_a_hook_s8(tmp_path, hook):
    """S8: in a process as it is started, and with a hook that raises; the next callback comes."""
    result = run_python(
        tmp_path,
        f"""
        import sys, threading, hal
        sys.unraisablehook = {hook}
        def bad(_):
            raise KeyError("nobody catches this")
        ended, semaphore = threading.Event(), hal.create_semaphore()
        for value in range(1, 4):
            semaphore.on_reached(value, bad)
        semaphore.on_reached(4, lambda _: ended.set())
        semaphore.signal(4)
        assert ended.wait({LIMIT})
        """,
    )
    assert result.returncode == 0, result.stderr
    if hook == "sys.__unraisablehook__":
        assert result.stderr.count("Exception ignored on a thread of hal: <function bad") == 3
        assert result.stderr.count("KeyError: 'nobody catches this'") == 3
    else:
        assert result.stderr.count("Exception ignored on a thread of hal:") == 3


def test_cancel_takes_a_callback_back_s8():
    """S8: True once if it had not been sent off; it is never called, and nothing keeps it."""
    semaphore = hal.create_semaphore()

    class Callback(Recorder):
        pass

    recorder = Callback()
    handle = semaphore.on_reached(1, recorder)
    assert handle.cancel() is True
    assert handle.cancel() is False
    semaphore.signal(1)
    settle()
    assert recorder.errors == []
    reference = weakref.ref(recorder)
    del recorder, handle
    gc.collect()
    assert reference() is None


def test_cancel_after_the_call_s8():
    semaphore, recorder = hal.create_semaphore(), Recorder()
    handle = semaphore.on_reached(1, recorder)
    semaphore.signal(1)
    recorder.wait()
    assert handle.cancel() is False


def test_cancel_takes_back_one_of_several_s8():
    """The same function registered twice for one value is two registrations."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    handles = [semaphore.on_reached(1, recorder) for _ in range(3)]
    assert handles[1].cancel()
    semaphore.signal(1)
    settle()
    assert recorder.errors == [None, None]


def test_cancel_against_signal_s8():
    """S8: 300 races; a callback is called if and only if its cancel said False."""
    called, cancelled = [], []
    for index in range(300):
        semaphore = hal.create_semaphore()
        handle = semaphore.on_reached(1, lambda _, index=index: called.append(index))
        together = threading.Barrier(2, timeout=LIMIT)

        def cancel(index=index, handle=handle, together=together):
            together.wait()
            if handle.cancel():
                cancelled.append(index)

        thread = threading.Thread(target=cancel)
        thread.start()
        together.wait()
        semaphore.signal(1)
        thread.join(LIMIT)
    settle()
    assert sorted(called + cancelled) == list(range(300))


def test_callbacks_that_ran_are_not_kept_s8():
    """A callback and what it refers to are let go after the call, though the semaphore lives."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    semaphore.on_reached(1, recorder)
    reference = weakref.ref(recorder)
    semaphore.signal(1)
    recorder.wait()
    del recorder
    settle()
    gc.collect()
    assert reference() is None


def test_last_reference_of_a_device_goes_in_a_callback(open_probe):
    """A device closed and dropped inside a callback joins no thread of its own."""
    device, probe = open_probe()
    told = threading.Event()
    semaphore = hal.create_semaphore()

    def close(_, holder=[device]):  # noqa: B006 - the reference is the point
        holder.pop().close(LIMIT)
        told.set()

    semaphore.on_reached(1, close)
    device.queue.barrier(signal=semaphore.at(1))
    del device
    assert told.wait(LIMIT)
    assert probe.live() == {}


# asyncio


def test_await_a_reached_value_s8():
    """S8: also with no other thread: what is reached does not wait for a dispatcher."""

    async def main():
        semaphore = hal.create_semaphore(3)
        await semaphore.reached(0)
        await semaphore.reached(3)

    run(main())


def test_await_a_host_signal_s8():
    async def main():
        semaphore = hal.create_semaphore()
        waiting = asyncio.ensure_future(semaphore.reached(2))
        await asyncio.sleep(0)
        semaphore.signal(1)
        await asyncio.sleep(0)
        assert not waiting.done()
        threading.Thread(target=semaphore.signal, args=(2,)).start()
        await waiting
        assert semaphore.query() == 2

    run(main())


def test_await_submissions_s8(device):
    """S8: ``await queue.copy(x, y)``; and the loop is not blocked meanwhile."""

    async def main():
        x = device.upload(np.arange(64, dtype=np.uint8))
        y = device.allocate(64)
        await device.queue.copy(x, y)
        assert y.numpy().tolist() == list(range(64))
        gate = hal.create_semaphore()
        submission = device.queue.fill(y, 1, wait=gate.at(1))
        waiting = asyncio.ensure_future(_await(submission))
        turns = 0
        for turns in range(10):  # noqa: B007 - counted
            await asyncio.sleep(0)
        assert turns == 9
        assert not waiting.done()
        gate.signal(1)
        await waiting
        await submission
        await submission

    run(main())


async def _await(awaitable):
    return await awaitable


def test_await_many_s8(device):
    """S8: 200 tasks wait for 200 operations over three queues."""

    async def main():
        gate = hal.create_semaphore()
        queues = itertools.cycle(
            (device.queues.compute, device.queues.upload, device.queues.download)
        )
        submissions = [next(queues).barrier(wait=gate.at(1)) for _ in range(200)]
        tasks = [asyncio.ensure_future(_await(each)) for each in submissions]
        await asyncio.sleep(0)
        gate.signal(1)
        await asyncio.gather(*tasks)
        assert all(each.state == "done" for each in submissions)

    run(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_await_a_failure_s8(when):
    """S8, S4: awaiting raises it, afresh."""

    async def main():
        semaphore = hal.create_semaphore(1)
        original = OperationError("broken")
        waiting = asyncio.ensure_future(semaphore.reached(2))
        if when == "before":
            await asyncio.sleep(0)
        semaphore.fail(original)
        for awaitable in (waiting, semaphore.reached(1), semaphore.reached(2)):
            with pytest.raises(OperationError, match="broken") as caught:
                await awaitable
            assert caught.value is not original
            assert caught.value.__cause__ is original

    run(main())


def test_await_a_failed_submission_s8(device):
    async def main():
        with pytest.raises(SemaphoreFailedError, match="division"):
            await device.queue.call(lambda: 1 / 0)

    run(main())


def test_awaits_that_were_cancelled_leave_nothing_behind_s8():
    """S8: 1000 cancelled and timed-out awaits leave no waiter on the semaphore."""
    semaphore = hal.create_semaphore()

    async def give_up(count):
        for _ in range(count):
            task = asyncio.ensure_future(semaphore.reached(1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(semaphore.reached(1), 0)

    run(give_up(10))
    gc.collect()
    before = len(gc.get_objects())
    run(give_up(500))
    gc.collect()
    assert len(gc.get_objects()) - before < 200
    semaphore.signal(1)
    settle()


def test_a_loop_that_is_closed_meanwhile_s8():
    """S8: a value that comes after its loop has gone disturbs nobody."""
    semaphore = hal.create_semaphore()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_await(semaphore.reached(1)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon(loop.stop)
    loop.run_forever()
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    semaphore.signal(1)
    settle()


def test_two_loops_wait_for_one_semaphore_s8():
    """S8: each loop is told on its own thread."""
    semaphore = hal.create_semaphore()
    ready = threading.Barrier(3, timeout=LIMIT)

    def wait():
        async def main():
            waiting = asyncio.ensure_future(semaphore.reached(1))
            await asyncio.sleep(0)
            ready.wait()
            await waiting

        run(main())

    def signal():
        ready.wait()
        semaphore.signal(1)

    collect_in_threads([wait, wait, signal])


def test_reached_checks_its_value_at_once_s8():
    with pytest.raises(hal.errors.InvalidArgumentError):
        hal.create_semaphore().reached(-1)
    with pytest.raises(hal.errors.ArgumentTypeError):
        hal.create_semaphore().reached("1")
