"""Lifetimes: what a submission uses lives until it has ended, and no longer (Q5)."""

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT, broken, callbacks_done, pattern


class Tracked(np.ndarray[Any, Any]):
    """An array that can be watched."""


class Payload:
    """An argument that can be watched."""


@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("when", ["pending", "behind a running call"])
def test_buffers_of_unended_work_are_kept_q5(device, queue, gate, make_latch, how, when):
    """Q5: a buffer that is dropped or closed while an operation needs it is still there for it."""
    source, target = device.upload(pattern(1 << 16)), device.allocate(1 << 16)
    if when == "pending":
        copied = queue.copy(source, target, wait=gate.at(1))
    else:
        latch = make_latch(queue)
        copied = queue.copy(source, target)
    if how == "closed":
        source.close()
    del source
    gc.collect()
    # New allocations must not get the memory that the copy reads.
    others = [device.upload(np.zeros(1 << 16, np.uint8)) for _ in range(4)]
    if when == "pending":
        gate.signal(1)
    else:
        latch.open()
    copied.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(1 << 16))
    assert len(others) == 4


@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("kind", ["fill", "update", "copy", "write"])
def test_targets_of_unended_work_are_kept_q5(device, queue, gate, kind, how):
    """Q5: the memory of a target that is dropped or closed goes to nobody before it is written."""
    target, source = device.allocate(4096), device.upload(pattern(4096))
    arguments = {
        "fill": (target, 0xEE),
        "update": (target, pattern(4096)),
        "copy": (source, target),
        "write": (target, pattern(4096)),
    }
    written = getattr(queue, kind)(*arguments[kind], wait=gate.at(1))
    if how == "closed":
        target.close()
    del target, arguments
    gc.collect()
    others = [device.upload(np.zeros(4096, np.uint8)) for _ in range(4)]
    gate.signal(1)
    written.wait(LIMIT)
    assert not any(other.numpy(timeout=LIMIT).any() for other in others)


@pytest.mark.parametrize("operation", ["write", "read", "update"])
def test_host_arrays_of_unended_work_are_kept_q5(device, queue, gate, operation):
    """Q5: a host array may be dropped at once; what an operation reads or writes is kept for it."""
    buffer = device.upload(np.zeros(4096, np.uint8))
    array = pattern(4096).view(Tracked)
    reference = weakref.ref(array)
    submission = getattr(queue, operation)(buffer, array, wait=gate.at(1))
    del array
    gc.collect()
    # Whether a write keeps the array or takes its bytes during the call is its own business.
    if operation == "read":
        assert reference() is not None
    others = [np.zeros(4096, np.uint8) for _ in range(8)]
    gate.signal(1)
    submission.wait(LIMIT)
    assert len(others) == 8
    if operation != "read":
        assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(4096))


@pytest.mark.parametrize("end", ["done", "failed call", "failed wait", "cancelled"])
def test_what_a_call_used_is_let_go_q5(device, gate, end):
    """Q5: function and arguments live until the operation has ended, however it ends."""
    payload = Payload()
    freed, ended = threading.Event(), threading.Event()
    reference = weakref.ref(payload, lambda _: freed.set())
    queue = device.create_queue()

    def call(_):
        if end == "failed call":
            raise broken()

    submission = queue.call(call, payload, wait=gate.at(1))
    submission_done = hal.Fence(submission)
    next(iter(submission_done)).semaphore.on_reached(1, lambda _: ended.set())
    del payload
    gc.collect()
    assert reference() is not None
    if end == "failed wait":
        gate.fail(broken())
    elif end != "cancelled":
        gate.signal(1)
    else:
        queue.close(LIMIT)
    assert ended.wait(LIMIT)
    queue.close(LIMIT)
    gc.collect()
    assert freed.wait(LIMIT)  # on whatever thread, which may still be at it
    assert submission.done


def test_ended_work_keeps_nothing_q5(device, queue):
    """Q5: a submission that is kept does not keep what it used."""
    array = np.zeros(4096, np.uint8).view(Tracked)
    reference = weakref.ref(array)
    buffer = device.upload(pattern(4096))
    submission = queue.read(buffer, array)
    submission.wait(LIMIT)
    assert np.array_equal(array, pattern(4096))
    del array
    callbacks_done()
    queue.wait_idle(LIMIT)
    gc.collect()
    assert reference() is None
    assert submission.state == "done"


def test_a_thousand_buffers_come_and_go_q5(device, queue):
    """Q5: memory that was used once and dropped is given back in the long run."""
    before = device.statistics().allocations
    last = None
    for number in range(1000):
        last = queue.fill(device.allocate(4096), number % 251)
    assert last is not None
    last.wait(LIMIT)
    gc.collect()
    assert device.statistics().allocations <= before + 1


def test_a_recording_lives_until_it_has_run_q5(device, queue, gate):
    """Q5: a recording and its buffers may be dropped as soon as it was submitted."""
    source, target = device.upload(pattern(256)), device.allocate(256)
    with device.record() as commands:
        commands.copy(source, target)
    submission = queue.execute(commands, wait=gate.at(1))
    del commands, source
    gc.collect()
    gate.signal(1)
    submission.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(256))
