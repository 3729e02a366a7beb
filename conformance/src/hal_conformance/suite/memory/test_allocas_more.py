"""Memory that is allocated and given back in the order of a queue (M3)."""

from __future__ import annotations

import gc

import pytest

import hal
from hal.errors import ClosedError, InvalidArgumentError, OperationError
from hal_conformance.suite.support import LIMIT

SIZE = 1 << 14


def test_an_alloca_gives_its_memory_when_it_is_issued_m3(
    queue: hal.Queue, second_queue: hal.Queue, gate: hal.Semaphore
) -> None:
    """M3: before its issue a buffer has no address, and work that is issued before fails."""
    buffer = queue.alloca(SIZE, wait=gate.at(1))
    assert buffer.allocation is not None
    with pytest.raises(InvalidArgumentError):
        _ = buffer.address
    early = second_queue.fill(buffer, 1)
    with pytest.raises(OperationError):
        early.wait(LIMIT)
    late = second_queue.fill(buffer, 2, wait=buffer.allocation)
    gate.signal(1)
    late.wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 2).all()
    queue.dealloca(buffer).wait(LIMIT)


def test_a_dealloca_keeps_the_memory_until_it_has_run_m3(
    device: hal.Device, queue: hal.Queue, gate: hal.Semaphore
) -> None:
    """M3: memory that is to be given back is unusable at once, and nobody else's before that."""
    buffer = queue.alloca(SIZE)
    assert buffer.allocation is not None
    buffer.allocation.wait(LIMIT)
    address = buffer.address
    freed = queue.dealloca(buffer, wait=gate.at(1))
    with pytest.raises(ClosedError):
        _ = buffer.address
    del buffer
    gc.collect()
    others = [device.allocate(SIZE) for _ in range(4)]
    assert address not in [other.address for other in others]
    gate.signal(1)
    freed.wait(LIMIT)
