"""Recordings over memory that is allocated in the order of their queue (M3, C3)."""

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT, pattern

pytestmark = pytest.mark.ordering


@pytest.mark.parametrize(("value", "dtype"), [(0xDEADCAFE, "<u4"), (0xAB, "u1")])
@pytest.mark.parametrize(("offset", "size"), [(0, 1024), (64, 128)])
def test_fills_of_a_transient_buffer_m3(queue, value, dtype, offset, size, lowering):
    """M3: alloca, a recorded fill of all or of a part, a read and dealloca, in a chain."""
    with queue.device.record(slots=[(dtype, 1024)], command_buffer=lowering) as recording:
        recording.fill(recording.slots[0], value, offset=offset, size=size)
    buffer, seen = queue.alloca(1024), np.zeros(1024, np.uint8)
    queue.fill(buffer, 0)
    queue.execute(recording, bindings=[buffer])
    queue.read(buffer, seen)
    queue.dealloca(buffer).wait(LIMIT)
    expected = np.zeros(1024, np.uint8)
    expected[offset : offset + size].view(dtype)[:] = value
    assert np.array_equal(seen, expected)


def test_copies_to_and_from_a_transient_buffer_m3(device, queue, lowering):
    """M3: one recorded copy, into a transient buffer and then out of it."""
    source, target = device.upload(pattern(256)), device.upload(np.zeros(256, np.uint8))
    with device.record(slots=2, command_buffer=lowering) as recording:
        recording.copy(*recording.slots, size=256)
    buffer = queue.alloca(256)
    queue.execute(recording, bindings=[source, buffer])
    queue.execute(recording, bindings=[buffer, target])
    queue.dealloca(buffer).wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(256))


@pytest.mark.feature("kernels")
def test_a_transient_input_m3(device, queue, program, lowering):
    """M3: [5, 10, 15, 20] in a transient buffer, times 4 plus 1 is [21, 41, 61, 81]."""
    target = device.upload(np.zeros(4, np.int32))
    with device.record(slots=2, command_buffer=lowering) as recording:
        source, out = recording.slots
        recording.dispatch(
            program["scale_and_offset"], grid=1, block=4, args=(source, out, 4, 1, 4)
        )
    buffer = queue.alloca(16, dtype=np.int32)
    queue.update(buffer, np.array([5, 10, 15, 20], np.int32))
    queue.execute(recording, bindings=[buffer, target])
    queue.dealloca(buffer).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [21, 41, 61, 81]


@pytest.mark.feature("kernels")
def test_alloca_execute_dealloca_cycles_m3(queue, second_queue, program, make_semaphore, lowering):
    """M3: three times alloca, execute, read and dealloca, ordered by semaphores on two queues."""
    with queue.device.record(slots=1, command_buffer=lowering) as recording:
        arguments = (recording.slots[0], 16, 1)
        recording.dispatch(program["write_block_ids"], grid=16, block=1, args=arguments)
    done = make_semaphore()
    for cycle in range(3):
        first, seen = 4 * cycle, np.zeros(16, np.uint32)
        buffer = queue.alloca(64, dtype=np.uint32, signal=done.at(first + 1))
        second_queue.execute(
            recording, bindings=[buffer], wait=done.at(first + 1), signal=done.at(first + 2)
        )
        queue.read(buffer, seen, wait=done.at(first + 2), signal=done.at(first + 3))
        queue.dealloca(buffer, wait=done.at(first + 3), signal=done.at(first + 4))
        done.wait(first + 4, LIMIT)
        assert seen.tolist() == list(range(1, 17))


def test_two_chains_side_by_side_m3(queue, second_queue, make_semaphore, lowering):
    """M3: two chains of alloca, execute and dealloca on two queues, with no host wait between."""
    with queue.device.record(slots=1, command_buffer=lowering) as recording:
        recording.update(recording.slots[0], pattern(4096))
        recording.barrier()
        recording.fill(recording.slots[0], 9, size=64)
    gate = make_semaphore()
    seen = [np.zeros(4096, np.uint8) for _ in range(8)]
    ended = []
    for number, array in enumerate(seen):
        on = second_queue if number % 2 else queue
        buffer = on.alloca(4096, wait=gate.at(1))
        on.execute(recording, bindings=[buffer])
        on.read(buffer, array)
        ended.append(on.dealloca(buffer))
    gate.signal(1)
    hal.wait_all(ended, LIMIT)
    for array in seen:
        assert (array[:64] == 9).all()
        assert np.array_equal(array[64:], pattern(4096)[64:])
