"""What alloca and dealloca refuse, each with an error of its own (M3)."""

import pytest

from hal.errors import ClosedError, InvalidArgumentError, OperationError, OutOfMemoryError
from hal_conformance.suite.memory.scarcity import BIG, BLOCK, ROOM, allocation
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.ordering


@pytest.mark.parametrize("size", [ROOM + 1, 1 << 45, 1 << 62, 1 << 80])
@pytest.mark.parametrize("memory", ["device", "host", "managed"])
def test_more_than_there_can_be_is_refused_at_once_m3(scarce, size, memory):
    """M3: a size beyond the limit, or the device, raises in the call, and submits nothing."""
    queue = scarce.queue
    before = scarce.statistics().allocations
    with pytest.raises(OutOfMemoryError, match=f"{size:,}|{size}|2\\*\\*"):
        queue.alloca(size, memory=memory)
    queue.wait_idle(LIMIT)
    assert scarce.statistics().allocations == before


def test_more_than_the_device_has_is_refused_at_once_m3(device, queue):
    """M3: without a limit it is the device's memory that counts."""
    total = next(heap.total for heap in device.heaps if heap.memory == "device")
    assert total is not None
    with pytest.raises(OutOfMemoryError):
        queue.alloca(2 * total)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same queue", "another queue"])
def test_an_alloca_that_waits_for_its_own_dealloca_m3(queue, second_queue, semaphore, *, elsewhere):
    """M3: the dealloca that would signal it is refused, and the buffer stays as it was."""
    buffer = queue.alloca(64, wait=semaphore.at(2))
    giver = second_queue if elsewhere else queue
    with pytest.raises(InvalidArgumentError, match="alloca"):
        giver.dealloca(buffer, wait=allocation(buffer), signal=semaphore.at(2))
    assert not buffer.closed
    semaphore.signal(2)
    queue.fill(buffer, 1).wait(LIMIT)
    giver.dealloca(buffer, signal=semaphore.at(3)).wait(LIMIT)
    assert semaphore.query() == 3


def test_a_dealloca_may_signal_what_its_alloca_has_waited_for_m3(queue, semaphore):
    """M3: a lower value that has come, and a higher one that is to come, are no circle."""
    buffer = queue.alloca(64, wait=semaphore.at(1))
    semaphore.signal(1)
    queue.fill(buffer, 1)
    queue.dealloca(buffer, signal=semaphore.at(2)).wait(LIMIT)
    assert semaphore.query() == 2


def test_an_alloca_in_a_chain_of_one_semaphore_m3(queue, second_queue, semaphore, gate):
    """M3: the alloca waits for what another one signals, and its dealloca signals the next."""
    second_queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
    buffer = queue.alloca(64, wait=semaphore.at(1))
    queue.fill(buffer, 1)
    ended = queue.dealloca(buffer, signal=semaphore.at(2))
    gate.signal(1)
    ended.wait(LIMIT)
    assert semaphore.query() == 2


def test_a_second_dealloca_is_refused_m3(queue, second_queue, gate):
    """M3: also while the first is pending, and on another queue."""
    buffer = queue.alloca(64)
    part = buffer.subspan(0, 0)
    ended = queue.dealloca(buffer, wait=gate.at(1))
    for giver in (queue, second_queue):
        for each in (buffer, part):
            with pytest.raises((ClosedError, InvalidArgumentError)):
                giver.dealloca(each)
        with pytest.raises(ClosedError):
            giver.dealloca(buffer)
    gate.signal(1)
    ended.wait(LIMIT)
    with pytest.raises(ClosedError):
        queue.dealloca(buffer)


def test_a_dealloca_that_comes_before_the_alloca_fails_m3(queue, second_queue, gate):
    """M3: issued on another queue before the alloca was, it fails, and gives nothing back."""
    buffer = queue.alloca(64, wait=gate.at(1))
    filled = queue.fill(buffer, 1)
    with pytest.raises(OperationError):
        second_queue.dealloca(buffer).wait(LIMIT)
    gate.signal(1)
    filled.wait(LIMIT)
    assert allocation(buffer).done


@pytest.mark.parametrize("size", [BIG, BLOCK])
def test_a_use_after_the_dealloca_is_refused_m3(scarce, size):
    """M3: whether or not its memory is somebody else's by then."""
    queue = scarce.queue
    buffer = queue.alloca(size)
    queue.fill(buffer, 1)
    queue.dealloca(buffer)
    other = queue.alloca(size)
    with pytest.raises(ClosedError):
        queue.fill(buffer, 2)
    queue.fill(other, 3).wait(LIMIT)
    with pytest.raises(ClosedError):
        queue.copy(buffer, other)
    assert (other.numpy(timeout=LIMIT) == 3).all()
