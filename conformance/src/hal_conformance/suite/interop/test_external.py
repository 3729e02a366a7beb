"""Streams that others own (Q2, Q6, I1): the feature ``external_streams``.

The other library is another queue of the device, whose native stream passes for
one of which hal knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal_conformance.suite.support import LIMIT, SHORT, Hold, MakeQueue, assert_fails, broken


@pytest.fixture
def theirs(device: hal.Device, make_queue: MakeQueue) -> hal.Queue:
    """A queue whose stream passes for another library's."""
    return make_queue(device=device)


@pytest.fixture
def held(device: hal.Device, program: hal.Executable, theirs: hal.Queue) -> Iterator[Hold]:
    """A kernel that holds their stream, let go at the end whatever happened."""
    hold = Hold(device, program, theirs)
    yield hold
    hold.close()


def test_external_streams_are_there_or_refused_q2(device, queue):
    """Q2: without the feature all of it raises."""
    if "external_streams" in device.features:
        assert isinstance(queue.stream_handle, int)
        return
    for use in (
        lambda: queue.stream_handle,
        lambda: queue.wait_external(1),
        lambda: queue.notify_external(1),
        lambda: device.create_queue(stream=1),
    ):
        with pytest.raises(UnimplementedError, match="external_streams"):
            use()


@pytest.mark.feature("external_streams")
def test_handles_differ_and_end_q6(make_queue):
    """Q6: each queue has a stream of its own, until it is closed."""
    queues = [make_queue() for _ in range(4)]
    assert len({each.stream_handle for each in queues}) == 4
    assert queues[0].stream_handle == queues[0].stream_handle
    queues[0].close(LIMIT)
    with pytest.raises(ClosedError):
        _ = queues[0].stream_handle


@pytest.mark.feature("external_streams")
@pytest.mark.parametrize("ordered", [True, False])
def test_a_queue_over_their_stream_works_and_leaves_it_q6(device, theirs, ordered):
    """Q6: both use the stream, ours is closed, and theirs goes on."""
    ours = device.create_queue(stream=theirs.stream_handle, ordered=ordered)
    buffer, out = device.upload(np.zeros(64, np.uint8)), device.upload(np.zeros(64, np.uint8))
    for value in range(1, 9):
        theirs.fill(buffer, value)
        ours.copy(buffer, out)  # no wait: one stream, one order
        theirs.fill(buffer, 0xFF)
        assert (out.numpy(timeout=LIMIT, wait=ours.barrier()) == value).all()
    assert ours.close(LIMIT) == ()
    theirs.fill(out, 0xEE).wait(LIMIT)
    assert (out.numpy(timeout=LIMIT) == 0xEE).all()


@pytest.mark.feature("external_streams")
def test_closing_cancels_ours_on_their_stream_q6(device, theirs, gate):
    """Q6: what was not issued."""
    ours = device.create_queue(stream=theirs.stream_handle)
    pending = ours.fill(device.allocate(16), 1, wait=gate.at(1))
    ours.close(LIMIT)
    assert pending.state == "cancelled"


@pytest.mark.feature("external_streams")
@pytest.mark.feature("kernels")
def test_a_queue_waits_for_what_is_on_their_stream_i1(device, queue, theirs, held):
    """I1: for what was there, without a wait list; and other queues do not."""
    buffer, out = device.upload(np.zeros(64, np.uint8)), device.upload(np.zeros(64, np.uint8))
    theirs.fill(buffer, 5)
    waited = queue.wait_external(theirs.stream_handle)
    copied = queue.copy(buffer, out)
    device.queues.upload.fill(device.allocate(16), 1).wait(LIMIT)
    assert not waited.done
    with pytest.raises(DeadlineExceededError):
        copied.wait(SHORT)
    held.open()
    copied.wait(LIMIT)
    assert (out.numpy(timeout=LIMIT) == 5).all()


@pytest.mark.feature("external_streams")
@pytest.mark.feature("kernels")
def test_their_stream_waits_for_a_queue_i1(device, program, queue, theirs):
    """I1: for what was submitted before, and for the wait list."""
    buffer, out = device.upload(np.zeros(64, np.uint8)), device.upload(np.zeros(64, np.uint8))
    hold = Hold(device, program, queue)
    try:
        queue.fill(buffer, 5)
        queue.notify_external(theirs.stream_handle, timeout=LIMIT)
        copied = theirs.copy(buffer, out)
        with pytest.raises(DeadlineExceededError):
            copied.wait(SHORT)
    finally:
        hold.close()
    copied.wait(LIMIT)
    assert (out.numpy(timeout=LIMIT) == 5).all()


@pytest.mark.feature("external_streams")
def test_what_was_not_issued_cannot_be_waited_for_i1(device, queue, theirs, gate):
    """I1: it says so at the time-out, and establishes nothing."""
    queue.fill(device.allocate(16), 1, wait=gate.at(1))
    for timeout in (0, SHORT):
        with pytest.raises(DeadlineExceededError, match="not issued"):
            queue.notify_external(theirs.stream_handle, timeout=timeout)
    theirs.barrier().wait(LIMIT)
    gate.signal(1)
    queue.notify_external(theirs.stream_handle, timeout=LIMIT).wait(LIMIT)


@pytest.mark.feature("external_streams")
def test_external_waits_are_operations_s5(queue, second_queue, theirs, gate):
    """S5: they wait, signal and fail like all others."""
    done = hal.create_semaphore()
    waited = queue.wait_external(theirs.stream_handle, wait=gate.at(1), signal=done.at(1))
    assert (waited.state, waited.kind) == ("pending", "wait_external")
    gate.signal(1)
    done.wait(1, LIMIT)
    failed = hal.create_semaphore()
    failed.fail(broken())
    assert_fails(second_queue.wait_external(theirs.stream_handle, wait=failed.at(1)), broken())
    with pytest.raises(type(broken())):
        queue.notify_external(theirs.stream_handle, wait=failed.at(1))


@pytest.mark.feature("external_streams")
def test_bad_streams_are_refused_q2(device, queue, open_device):
    """Q2: what is no stream and no handle, and both or neither of stream and event."""
    for use in (queue.wait_external, queue.notify_external):
        for wrong in ("stream", 1.5, object()):
            with pytest.raises(ArgumentTypeError):
                use(wrong)
        with pytest.raises(InvalidArgumentError):
            use(-1)
        with pytest.raises(ArgumentTypeError):
            use()
        with pytest.raises(ArgumentTypeError):
            use(1, event=1)
        with pytest.raises(InvalidArgumentError):
            use(event=0)
    with pytest.raises(ArgumentTypeError):
        device.create_queue(stream="stream")
    closed = open_device()
    handle = closed.queue.stream_handle
    closed.close(LIMIT)
    with pytest.raises(ClosedError):
        closed.create_queue(stream=handle)
    with pytest.raises(ClosedError):
        closed.queue.wait_external(handle)
