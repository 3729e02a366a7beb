"""Callbacks and asyncio: S8."""

import functools
import gc
import sys
import threading
import weakref

import pytest
from child_processes import run_python
from core_harness import LIMIT, collect_in_threads

import hal


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


@pytest.mark.parametrize("hook", ["sys.__unraisablehook__", "lambda report: 1 // 0", "None"])
def test_a_raising_callback_is_told_to_stderr_without_a_hook_s8(tmp_path, hook):
    """S8: the error is shown, even if the hook raises, and the next callback runs."""
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


def test_cancel_takes_back_one_of_several_s8():
    """The same function registered twice for one value is two registrations."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    handles = [semaphore.on_reached(1, recorder) for _ in range(3)]
    assert handles[1].cancel()
    semaphore.signal(1)
    settle()
    assert recorder.errors == [None, None]


@pytest.mark.parametrize("end", ["called", "cancelled"])
def test_callbacks_that_ended_are_not_kept_s8(end):
    """A callback and what it refers to are let go, though the semaphore lives."""
    semaphore, recorder = hal.create_semaphore(), Recorder()
    handle = semaphore.on_reached(1, recorder)
    reference = weakref.ref(recorder)
    if end == "cancelled":
        assert handle.cancel()
    semaphore.signal(1)
    if end == "called":
        recorder.wait()
    del recorder, handle
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
