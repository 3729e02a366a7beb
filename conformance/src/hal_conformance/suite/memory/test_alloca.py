"""Allocation in the order of a queue: alloca (M3)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    HalError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
)
from hal_conformance.suite.support import LIMIT, assert_fails, broken, pattern

pytestmark = pytest.mark.ordering

MEMORIES = ("device", "host", "managed")


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("size", [0, 1, 257, 1 << 20])
def test_alloca_and_dealloca_m3(device, queue, semaphore, size, memory):
    """M3: memory of each kind and size comes at s@1, holds what is put there, and goes at s@2."""
    buffer = queue.alloca(size, memory=memory, signal=semaphore.at(1))
    semaphore.wait(1, LIMIT)
    assert (buffer.size, buffer.memory, buffer.device) == (size, memory, device)
    assert buffer.allocation is not None
    assert buffer.allocation.done
    assert buffer.address % 256 == 0
    queue.update(buffer, pattern(size, 1)).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(size, 1))
    ended = queue.dealloca(buffer, wait=semaphore.at(1), signal=semaphore.at(2))
    semaphore.wait(2, LIMIT)
    assert (ended.kind, buffer.allocation.kind) == ("dealloca", "alloca")


def test_alloca_returns_at_once_m3(queue, make_semaphore):
    """M3: with its wait open, alloca has returned a buffer, which has no address yet."""
    wait, signal = make_semaphore(), make_semaphore()
    buffer = queue.alloca(64, dtype=np.float32, wait=wait.at(1), signal=signal.at(1))
    assert (buffer.size, buffer.shape, buffer.dtype) == (64, (16,), np.dtype(np.float32))
    assert not signal.poll(1)
    with pytest.raises(InvalidArgumentError):
        _ = buffer.address
    with pytest.raises(InvalidArgumentError):
        buffer.map(wait=())
    wait.signal(1)
    signal.wait(1, LIMIT)
    assert buffer.address > 0
    queue.dealloca(buffer).wait(LIMIT)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_chained_cycles_m3(device, make_queue, semaphore, *, ordered):
    """M3: 32 cycles in a chain of one semaphore, with no wait of the host but the last."""
    queue = make_queue(ordered=ordered)
    value = 0
    out = device.upload(np.zeros(32, np.uint8))
    for number in range(32):
        buffer = queue.alloca(4096, wait=semaphore.at(value), signal=semaphore.at(value + 1))
        queue.fill(buffer, number + 1, wait=semaphore.at(value + 1), signal=semaphore.at(value + 2))
        queue.copy(
            buffer,
            out,
            target_offset=number,
            size=1,
            wait=semaphore.at(value + 2),
            signal=semaphore.at(value + 3),
        )
        queue.dealloca(buffer, wait=semaphore.at(value + 3), signal=semaphore.at(value + 4))
        value += 4
    semaphore.wait(value, LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == list(range(1, 33))


def test_every_operation_may_stand_before_the_address_m3(device, queue, gate):
    """M3: in the order of the queue, all operations take a buffer that has no address yet."""
    buffer = queue.alloca(64, wait=gate.at(1))
    other, seen = device.upload(np.zeros(64, np.uint8)), np.zeros(64, np.uint8)
    queue.fill(buffer, 1)
    queue.update(buffer, b"abcd", offset=8)
    queue.write(buffer, pattern(8), offset=16)
    queue.copy(buffer, other)
    queue.copy(other, buffer, size=8, target_offset=32)
    queue.read(buffer.subspan(0, 64), seen)
    with device.record(slots=1) as recording:
        recording.fill(recording.slots[0], 9, offset=60, size=4)
    last = queue.execute(recording, bindings=[buffer])
    assert not last.done
    gate.signal(1)
    last.wait(LIMIT)
    expected = bytearray(b"\1" * 64)
    expected[8:12], expected[16:24] = b"abcd", pattern(8).tobytes()
    assert seen.tobytes() == bytes(expected)
    assert buffer.numpy(timeout=LIMIT).tobytes() == bytes(expected[:60]) + b"\t" * 4
    queue.dealloca(buffer).wait(LIMIT)


@pytest.mark.feature("kernels")
def test_kernels_take_it_before_its_address_m3(device, queue, program, gate):
    """M3: a dispatch that was submitted before the alloca was issued writes to the memory."""
    source = device.upload(np.array([1, 2, 3, 4], np.int32))
    buffer = queue.alloca(16, dtype=np.int32, wait=gate.at(1))
    arguments = (source, buffer, 3, 10, 4)
    ran = queue.dispatch(program["scale_and_offset"], grid=1, block=4, args=arguments)
    gate.signal(1)
    ran.wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]
    queue.dealloca(buffer).wait(LIMIT)


def test_another_queue_waits_for_the_allocation_m3(queue, second_queue, gate):
    """M3: with ``wait=buffer.allocation`` another queue uses the memory, and may give it back."""
    buffer = queue.alloca(64, wait=gate.at(1))
    assert buffer.allocation is not None
    filled = second_queue.fill(buffer, 5, wait=buffer.allocation)
    gate.signal(1)
    assert (buffer.numpy(wait=filled, timeout=LIMIT) == 5).all()
    second_queue.dealloca(buffer).wait(LIMIT)


def test_a_use_that_is_issued_before_fails_alone_m3(queue, second_queue, gate):
    """M3: an operation that does not wait for the alloca fails, and nothing else does."""
    buffer = queue.alloca(64, wait=gate.at(1))
    with pytest.raises(OperationError):
        second_queue.fill(buffer, 1).wait(LIMIT)
    gate.signal(1)
    queue.fill(buffer, 2).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 2).all()
    second_queue.barrier().wait(LIMIT)
    queue.dealloca(buffer).wait(LIMIT)


def test_a_recording_takes_it_by_slot_m3(device, queue, gate):
    """M3: recorded directly before it has an address it is refused, by slot it is bound."""
    buffer = queue.alloca(64, wait=gate.at(1))
    with device.record() as direct, pytest.raises(InvalidArgumentError, match="slot"):
        direct.fill(buffer, 1)
    with device.record(slots=1) as slotted:
        slotted.fill(slotted.slots[0], 3, size=64)
    ran = queue.execute(slotted, bindings=[buffer])
    gate.signal(1)
    ran.wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 3).all()
    with device.record() as late:
        late.fill(buffer, 4, size=32)  # it has an address now
    queue.execute(late).wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [4] * 32 + [3] * 32
    del late
    queue.dealloca(buffer).wait(LIMIT)


def test_a_bound_buffer_without_memory_fails_the_execution_m3(device, queue, second_queue, gate):
    """M3: an execution that is issued before the alloca fails with an `OperationError`."""
    buffer = queue.alloca(64, wait=gate.at(1))
    with device.record(slots=1) as recording:
        recording.fill(recording.slots[0], 3, size=64)
    with pytest.raises(OperationError):
        second_queue.execute(recording, bindings=[buffer]).wait(LIMIT)
    gate.signal(1)
    queue.execute(recording, bindings=[buffer]).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 3).all()
    queue.dealloca(buffer).wait(LIMIT)


def test_a_failed_alloca_fails_its_users_m3(queue, make_semaphore):
    """M3: what uses a buffer whose alloca failed fails with the same error; nothing else does."""
    wait, signal = make_semaphore(), make_semaphore()
    buffer = queue.alloca(64, wait=wait.at(1), signal=signal.at(1))
    used = queue.fill(buffer, 1)
    other = queue.barrier()
    error = broken("no memory for you")
    wait.fail(error)
    assert_fails(signal.at(1), error)
    with pytest.raises(OperationError, match="no memory for you"):
        used.wait(LIMIT)
    other.wait(LIMIT)
    with pytest.raises(OperationError, match="no memory for you"):
        _ = buffer.address
    queue.dealloca(buffer).wait(LIMIT)


def test_a_cancelled_alloca_m3(make_queue, gate):
    """M3, Q6: an alloca that is not issued is cancelled with its queue, and its memory is free."""
    queue = make_queue()
    buffer = queue.alloca(1 << 16, wait=gate.at(1))
    queue.close(LIMIT)
    assert buffer.allocation is not None
    with pytest.raises(CancelledError):
        buffer.allocation.wait(LIMIT)


def test_out_of_memory_in_order_m3(open_device):
    """M3, M1: an alloca that finds no memory fails with `OutOfMemoryError`, and then one does."""
    device = open_device(memory_limit="4M")
    held = device.allocate(3 << 20)
    buffer = device.queue.alloca(2 << 20)
    assert buffer.allocation is not None
    with pytest.raises(OutOfMemoryError):
        buffer.allocation.wait(LIMIT)
    held.close()
    again = device.queue.alloca(2 << 20)
    device.queue.fill(again, 1).wait(LIMIT)
    device.queue.dealloca(again).wait(LIMIT)


def test_the_memory_goes_round_m3(device, queue):
    """M3: two hundred cycles of 256 KiB hold a few blocks only, whatever is in flight."""
    device.wait_idle(LIMIT)
    before = device.statistics(reset_peak=True).bytes_now
    for number in range(200):
        buffer = queue.alloca(1 << 18)
        queue.fill(buffer, number, size=64)
        queue.dealloca(buffer)
        if number % 8 == 7:
            queue.wait_idle(LIMIT)
            device.trim(1 << 40)
    queue.wait_idle(LIMIT)
    assert device.statistics().bytes_peak - before <= 32 << 18


def test_what_is_dropped_is_given_back_m3(device, queue):
    """M3: a buffer of alloca that nobody names any more needs no dealloca."""
    before = device.statistics().allocations
    for _ in range(10):
        queue.fill(queue.alloca(4096), 1)
    queue.wait_idle(LIMIT)
    gc.collect()
    assert device.statistics().allocations == before


BAD: dict[str, tuple[type[HalError], tuple[Any, ...], dict[str, Any]]] = {
    "a negative size": (InvalidArgumentError, (-1,), {}),
    "a size that is no int": (ArgumentTypeError, (1.5,), {}),
    "no whole number of elements": (InvalidArgumentError, (6,), {"dtype": "f4"}),
    "an unknown memory": (InvalidArgumentError, (4,), {"memory": "flash"}),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_allocas_are_refused_m3(queue, what):
    """M3: what cannot be allocated raises during the call, and submits nothing."""
    kind, arguments, options = BAD[what]
    with pytest.raises(kind):
        queue.alloca(*arguments, **options)
    queue.wait_idle(LIMIT)


def test_stream_ordered_allocation_or_not_m3(open_device):
    """M3: with ``async_allocations=true`` alloca does the same, with the feature and without."""
    device = open_device(async_allocations="true")
    queue, gate = device.queue, hal.create_semaphore()
    out = device.upload(np.zeros(16, np.uint8))
    first = queue.alloca(4096, wait=gate.at(1))
    with pytest.raises(InvalidArgumentError):
        _ = first.address
    queue.fill(first, 0)
    for number in range(16):
        buffer = queue.alloca(4096)
        queue.fill(buffer, number + 1)
        queue.copy(buffer, out, target_offset=number, size=1)
        queue.dealloca(buffer)
    last = queue.dealloca(first)
    gate.signal(1)
    last.wait(LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == list(range(1, 17))
    del buffer, first
    gc.collect()
    out.close()
    queue.barrier().wait(LIMIT)
    assert device.statistics().allocations == 0
