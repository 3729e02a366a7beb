"""Closing: it cancels what is not issued, waits for the rest, and always returns (Q6)."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import CancelledError, ClosedError, DeviceLostError
from hal_conformance.bench import Bench
from hal_conformance.suite.support import LIMIT, Operations, in_threads


@pytest.mark.parametrize("what", ["queue", "device"])
def test_close_cancels_what_is_not_issued_q6(open_device, make_semaphore, kind, what):
    """Q6: a pending operation is cancelled: `CancelledError` on its handle and its signals."""
    device = open_device()
    never, promised = make_semaphore(), make_semaphore()
    queue = device.create_queue()
    operations = Operations(device)
    pending = operations.submit(kind, queue, wait=never.at(1), signal=promised.at(1))
    closing = queue if what == "queue" else device
    assert closing.close(LIMIT) == ()
    assert pending.state == "cancelled"
    assert isinstance(pending.error, CancelledError)
    for waitable in (pending, promised.at(1)):
        with pytest.raises(CancelledError):
            hal.wait_all([waitable], LIMIT)
    never.signal(1)  # the operation no longer waits for it
    assert never.query() == 1
    assert operations.called == 0


@pytest.mark.parametrize("what", ["queue", "device"])
def test_close_waits_for_what_runs_q6(open_device, make_semaphore, what):
    """Q6: what is issued ends, and signals, before `close` returns; what is behind is cancelled."""
    device = open_device()
    queue = device.create_queue()
    done, began, leave = make_semaphore(), threading.Event(), threading.Event()
    cancelled_first = threading.Event()

    def call():
        began.set()
        assert leave.wait(LIMIT)

    running = queue.call(call, signal=done.at(1))
    assert began.wait(LIMIT)
    behind = queue.barrier()
    hal.Fence(behind).poll()
    next(iter(hal.Fence(behind))).semaphore.on_reached(1, lambda _: cancelled_first.set())

    def close():
        return (queue if what == "queue" else device).close(LIMIT)

    def let_go():
        assert cancelled_first.wait(LIMIT)
        assert not running.done
        leave.set()

    assert in_threads([close, let_go])[0] == ()
    assert running.state == "done"
    assert done.query() == 1
    assert behind.state == "cancelled"


def test_device_work_ends_before_close_returns_q6(open_device, make_semaphore):
    """Q6: 200 copies in flight have all ended, and say so, when `close` returns."""
    device = open_device()
    first, second = device.allocate(1 << 20), device.allocate(1 << 20)
    semaphore = make_semaphore()
    submissions = [
        device.queue.copy(first, second, signal=semaphore.at(number)) for number in range(1, 201)
    ]
    assert device.close(LIMIT) == ()
    ended = [each.state for each in submissions]
    assert set(ended) <= {"done", "cancelled"}
    assert ended == sorted(ended, key=("done", "cancelled").index)


@pytest.mark.parametrize("what", ["queue", "device"])
def test_close_may_be_called_twice_q6(open_device, what):
    """Q6: the second `close` does nothing and returns an empty tuple."""
    device = open_device()
    closing = device.create_queue() if what == "queue" else device
    assert not closing.closed
    assert closing.close(LIMIT) == ()
    assert closing.closed
    assert closing.close(LIMIT) == ()


@pytest.mark.parametrize("how", ["end", "error"])
def test_with_closes_q6(open_device, how):
    """Q6: leaving a `with` block closes a queue and a device, also with an error."""
    device = open_device()
    inside = device.create_queue()

    def use():
        with device, inside:
            inside.barrier()
            if how == "error":
                raise ZeroDivisionError

    if how == "error":
        with pytest.raises(ZeroDivisionError):
            use()
    else:
        use()
    assert inside.closed
    assert device.closed


def test_close_from_several_threads_q6(open_device):
    """Q6: four threads close one device; each call returns, and it is closed once."""
    device = open_device()
    buffer = device.allocate(4096)
    for number in range(50):
        device.queue.fill(buffer, number)
    together = threading.Barrier(4, timeout=LIMIT)

    def close():
        together.wait()
        return device.close(LIMIT)

    assert in_threads([close] * 4) == [()] * 4
    assert device.closed
    assert not device.lost


def test_close_while_others_submit_q6(open_device):
    """Q6: submitters see `ClosedError`, and each operation that was taken has ended."""
    device = open_device()
    buffer = device.allocate(4096)
    taken = []
    enough = threading.Event()

    def submit_for_ever():
        while True:
            taken.append(device.queue.fill(buffer, 1))
            if len(taken) > 50:
                enough.set()

    def submit():
        with pytest.raises(ClosedError):
            submit_for_ever()

    def close():
        assert enough.wait(LIMIT)
        return device.close(LIMIT)

    assert in_threads([submit, submit, close])[2] == ()
    assert {each.state for each in taken} <= {"done", "cancelled"}


def test_a_closed_queue_refuses_work_q6(device, queue, operations, kind):
    """Q6: a closed queue raises `ClosedError`; the device's other queues go on."""
    closed = device.create_queue(name="gone")
    closed.close(LIMIT)
    with pytest.raises(ClosedError, match=r"gone.*create"):
        operations.submit(kind, closed)
    operations.submit(kind, queue).wait(LIMIT)
    assert operations.has_run(kind)


CALLS: dict[str, Any] = {
    "fill": lambda device, buffer: device.queue.fill(buffer, 1),
    "update": lambda device, buffer: device.queue.update(buffer, b"1"),
    "read": lambda device, buffer: device.queue.read(buffer, np.zeros(1, np.uint8)),
    "call": lambda device, buffer: device.queue.call(list),
    "barrier": lambda device, buffer: device.queue.barrier(),
    "allocate": lambda device, buffer: device.allocate(4),
    "upload": lambda device, buffer: device.upload(np.zeros(4)),
    "create_queue": lambda device, buffer: device.create_queue(),
    "record": lambda device, buffer: device.record(),
    "compile": lambda device, buffer: device.compile("__global__ void f(int *x) {}"),
    "load": lambda device, buffer: device.load(b"image"),
    "statistics": lambda device, buffer: device.statistics(),
    "trim": lambda device, buffer: device.trim(),
    "numpy": lambda device, buffer: buffer.numpy(),
    "with": lambda device, buffer: device.__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_device_refuses_everything_q6(open_device, call):
    """Q6: every call that needs the device raises `ClosedError`, which is a `ValueError`."""
    device = open_device()
    buffer = device.allocate(4)
    device.close(LIMIT)
    with pytest.raises(ClosedError) as caught:
        CALLS[call](device, buffer)
    assert isinstance(caught.value, ValueError)


def test_a_closed_device_still_says_what_it_was_q6(open_device):
    """Q6: names, descriptions and waits for nothing still answer."""
    device = open_device()
    name = device.name
    device.close(LIMIT)
    assert device.closed
    assert not device.lost
    assert device.name == name
    assert device.info.name
    assert "closed" in repr(device)
    device.wait_idle(LIMIT)
    device.queue.wait_idle(LIMIT)
    assert device.create_semaphore(3).query() == 3


def test_closing_one_queue_leaves_the_others_q6(device, make_queue, make_semaphore):
    """Q6, S5: who waits for what a closed queue cancelled fails; another queue's work goes on."""
    never, promised = make_semaphore(), make_semaphore()
    other, closing = make_queue(), device.create_queue()
    cancelled = closing.barrier(wait=never.at(1), signal=promised.at(1))
    dependents = [other.barrier(wait=waited) for waited in (promised.at(1), cancelled)]
    independent = other.barrier()
    closing.close(LIMIT)
    independent.wait(LIMIT)
    assert cancelled.state == "cancelled"
    for dependent in dependents:
        with pytest.raises(CancelledError):
            dependent.wait(LIMIT)
        assert dependent.state == "failed"


@pytest.mark.destructive
@pytest.mark.parametrize("what", ["queue", "device"])
def test_close_that_runs_out_of_time_q6(bench, make_semaphore, what):
    """Q6: at the time-out the device is lost, the rest fails, and each operation is told of."""
    device, promised = bench.open(), make_semaphore()
    began, leave = threading.Event(), threading.Event()

    def call():
        began.set()
        leave.wait(LIMIT)

    queue = device.create_queue()
    running = queue.call(call, signal=promised.at(1))
    other = device.queue.barrier(wait=hal.create_semaphore().at(1))
    assert began.wait(LIMIT)
    told = (queue if what == "queue" else device).close(0.05)
    assert len(told) == 1
    assert "call" in told[0]
    assert device.lost
    for waitable in (running, promised.at(1)):
        with pytest.raises(DeviceLostError):
            hal.wait_all([waitable], LIMIT)
    assert running.state == "failed"
    assert other.state == ("cancelled" if what == "device" else "failed")
    leave.set()
    device.close(1)
    with bench.open() as another:  # others go on
        buffer = another.allocate(64)
        another.queue.fill(buffer, 1).wait(LIMIT)


EXITS = {
    "idle": "",
    "running": "for _ in range(300): device.queue.fill(buffer, 1)",
    "pending": "held = [device.queue.fill(buffer, 1, wait=never.at(1)) for _ in range(300)]",
    "pending calls": "device.queue.call(print, 'never', wait=never.at(1))",
    "a call": "device.queue.call(time.sleep, 0.2)",
    "an error": "device.queue.fill(buffer, 1); raise SystemExit(5)",
}


def ran(program: str, bench: Bench) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with the device's name; return how it ended."""
    command = [sys.executable, "-c", program, bench.full_spec]
    return subprocess.run(command, capture_output=True, timeout=2 * LIMIT, check=False, text=True)


@pytest.mark.parametrize("what", EXITS)
def test_the_interpreter_exits_with_work_in_flight_q6(bench, what):
    """Q6: at exit one hook closes every device: the process ends, in time, and says nothing."""
    program = (
        "import sys, time, hal\n"
        "device = hal.create_device(sys.argv[1])\n"
        "buffer, never = device.allocate(1 << 16), hal.create_semaphore()\n"
        f"{EXITS[what]}\n"
    )
    done = ran(program, bench)
    assert (done.returncode, done.stderr) == (5 if what == "an error" else 0, "")


FORKED = """
import os, sys, warnings, hal
warnings.simplefilter("ignore")  # newer interpreters warn of forks beside threads
device = hal.create_device(sys.argv[1])
queue, buffer, semaphore = device.queue, device.allocate(64), hal.create_semaphore()
pid = os.fork()
if not pid:
    calls = [
        lambda: queue.fill(buffer, 1), lambda: semaphore.signal(1), lambda: semaphore.query(),
        lambda: device.allocate(4), lambda: hal.create_device(sys.argv[1]), device.close,
    ]
    for number, call in enumerate(calls, 1):
        try:
            call()
        except hal.errors.ClosedError:
            continue
        os._exit(number)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
queue.fill(buffer, 1, signal=semaphore.at(1)).wait(10)
assert semaphore.query() == 1 and (buffer.numpy() == 1).all()
sys.exit(status)
"""


def test_after_a_fork_every_call_raises_q6(bench):
    """Q6: in a forked child every call raises `ClosedError`; the parent goes on."""
    done = ran(FORKED, bench)
    assert done.returncode == 0, f"call {done.returncode} does not raise; {done.stderr}"
