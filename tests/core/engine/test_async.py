"""Callbacks and asyncio: S8."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from child_processes import run_python
from core_harness import LIMIT, collect_in_threads

import hal


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


def test_cancel_takes_back_one_of_several_s8():
    """The same function registered twice for one value is two registrations."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    handles = [semaphore.on_reached(1, recorder) for _ in range(3)]
    assert handles[1].cancel()
    semaphore.signal(1)
    settle()
    assert recorder.errors == [None, None]


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


async def _await(awaitable):
    return await awaitable
