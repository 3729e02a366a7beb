"""Giving memory back in the order of a queue: dealloca (M3, M2)."""

import gc

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, assert_fails, broken, pattern


def test_after_dealloca_it_is_unusable_m3(device, queue, gate):
    """M3: from the submission of dealloca on buffer and parts raise; what was before goes on."""
    buffer, seen = queue.alloca(64), np.zeros(64, np.uint8)
    part, other = buffer.subspan(16, 16), device.allocate(64)
    inner = part.subspan(8, 8)
    queue.fill(buffer, 7, wait=gate.at(1))
    read = queue.read(buffer, seen)
    ended = queue.dealloca(buffer)
    assert buffer.closed
    uses = [
        lambda: queue.fill(buffer, 1),
        lambda: queue.fill(part, 1),
        lambda: queue.copy(buffer, other),
        lambda: queue.dealloca(buffer),
        part.numpy,
        buffer.map,
        inner.numpy,
        lambda: buffer.address,
        lambda: buffer.subspan(0, 1),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
    with device.record() as recording, pytest.raises(ClosedError):
        recording.fill(part, 1)
    gate.signal(1)
    hal.wait_all([read, ended], LIMIT)
    assert (seen == 7).all()


def test_a_dealloca_keeps_the_memory_until_it_has_run_m3(device, queue, second_queue, gate):
    """M3: memory that is to be given back is unusable at once, and nobody else's before that."""
    buffer = queue.alloca(4096)
    assert buffer.allocation is not None
    buffer.allocation.wait(LIMIT)
    address = buffer.address
    freed = queue.dealloca(buffer, wait=gate.at(1))
    with pytest.raises(ClosedError):
        _ = buffer.address
    del buffer
    gc.collect()
    others = [device.allocate(4096) for _ in range(4)]
    others += [second_queue.alloca(4096) for _ in range(4)]
    second_queue.fill(others[-1], 1).wait(LIMIT)
    assert address not in [other.address for other in others]
    gate.signal(1)
    freed.wait(LIMIT)


def test_a_dealloca_whose_wait_fails_m3(device, queue, make_semaphore):
    """M3, S5: it fails its signal with that error; the memory is given back all the same."""
    gc.collect()
    before = device.statistics().allocations
    wait, signal = make_semaphore(), make_semaphore()
    buffer = queue.alloca(64)
    queue.fill(buffer, 1).wait(LIMIT)
    ended = queue.dealloca(buffer, wait=wait.at(1), signal=signal.at(1))
    error = broken()
    wait.fail(error)
    assert_fails(ended, error)
    assert_fails(signal.at(1), error)
    assert buffer.closed
    del ended, buffer
    gc.collect()
    queue.barrier().wait(LIMIT)
    assert device.statistics().allocations <= before  # what a test before left may end, too


def test_a_pending_use_holds_the_memory_m3(device, queue, second_queue, make_latch):
    """M3: memory that was given back is not used again while an operation still needs it."""
    buffer, target = queue.alloca(4096), device.upload(np.zeros(4096, np.uint8))
    queue.update(buffer, pattern(4096)).wait(LIMIT)
    latch = make_latch(second_queue)
    copied = second_queue.copy(buffer, target)
    queue.dealloca(buffer)
    for _ in range(8):
        other = queue.alloca(4096)
        queue.fill(other, 0xEE).wait(LIMIT)
        queue.dealloca(other)
    latch.open()
    copied.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096))


def test_what_dealloca_refuses_m3(device, second_device, queue):
    """M3: only whole buffers of alloca, of this device, are given back."""
    buffer = queue.alloca(64)
    for wrong in (device.allocate(64), buffer.subspan(0, 32)):
        with pytest.raises(InvalidArgumentError):
            queue.dealloca(wrong)
    with pytest.raises(InvalidArgumentError):
        second_device.queue.dealloca(buffer)
    with pytest.raises(ArgumentTypeError):
        queue.dealloca(None)
    queue.fill(buffer, 1).wait(LIMIT)
    queue.dealloca(buffer).wait(LIMIT)
