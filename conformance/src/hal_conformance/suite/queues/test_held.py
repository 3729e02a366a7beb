"""Transfers behind a kernel that runs: the call returns, whatever memory they are between (Q1).

The kernel waits for a flag that this thread sets once the calls have returned. If one
of them waits for the stream, the kernel gives up, and says so.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import hal
from hal_conformance.suite.support import LIMIT, Hold, pattern

pytestmark = [pytest.mark.feature("kernels"), pytest.mark.ordering]

MEMORIES = ("device", "host", "managed")
SIZE = 256
TURNS = 1 << 28
"""How often the kernel looks at its flag: for seconds on a processor, for minutes on a GPU."""


def made(device: hal.Device, memory: str, content: NDArray[np.uint8]) -> hal.Buffer:
    """Return a buffer that holds something."""
    buffer = device.allocate(SIZE, memory=memory)
    device.queue.write(buffer, content).wait(LIMIT)
    return buffer


@pytest.mark.parametrize("target", MEMORIES)
@pytest.mark.parametrize("source", MEMORIES)
def test_a_copy_returns_while_its_stream_is_held_q1(device, queue, program, source, target):
    """Q1: also from pinned to pinned memory, which drivers block for."""
    of, into = made(device, source, pattern(SIZE)), made(device, target, pattern(SIZE, 1))
    with Hold(device, program, queue, TURNS) as hold:
        copied = queue.copy(of, into)
        assert not copied.done
        hold.open()
        assert hold.has_seen(), "the copy waited for the stream"
    assert np.array_equal(into.numpy(wait=copied, timeout=LIMIT), pattern(SIZE))


@pytest.mark.parametrize("memory", MEMORIES)
def test_host_arrays_are_copied_while_their_stream_is_held_q1(device, queue, program, memory):
    """Q1: to and from each memory, arrays of ordinary memory and of pinned."""
    buffer, pinned = made(device, memory, pattern(SIZE)), made(device, "host", pattern(SIZE, 1))
    ordinary, seen = pattern(SIZE, 2), np.zeros(SIZE, np.uint8)
    view = pinned.map()
    with Hold(device, program, queue, TURNS) as hold:
        submitted = [
            queue.write(buffer, view[:64]),
            queue.write(buffer, ordinary[:64], offset=64),
            queue.update(buffer, b"update", offset=128),
            queue.read(buffer, view[64:]),
            queue.read(buffer, seen),
        ]
        assert not any(each.done for each in submitted)
        hold.open()
        assert hold.has_seen(), "a transfer waited for the stream"
    hal.wait_all(submitted, LIMIT)
    expected = pattern(SIZE)
    expected[:64], expected[64:128] = pattern(SIZE, 1)[:64], ordinary[:64]
    expected[128:134] = list(b"update")
    assert np.array_equal(seen, expected)
    assert np.array_equal(view[64:], expected[: SIZE - 64])


@pytest.mark.parametrize("target", MEMORIES)
@pytest.mark.parametrize("source", MEMORIES)
def test_recorded_copies_return_while_their_stream_is_held_q1(
    device, queue, program, lowering, source, target
):
    """Q1: given directly and by slot, as a node of a graph too, the first time and the second."""
    of, into = made(device, source, pattern(SIZE)), made(device, target, pattern(SIZE, 1))
    last = made(device, target, pattern(SIZE, 1))
    with device.record(command_buffer=lowering) as direct:
        direct.copy(of, into, size=128)
        direct.update(into, b"update", offset=128)
    with device.record(slots=2, command_buffer=lowering) as bound:
        bound.copy(bound.slots[0], bound.slots[1], size=SIZE)
        bound.barrier()
        bound.update(bound.slots[1], b"over", offset=2)
    for _ in range(2):
        with Hold(device, program, queue, TURNS) as hold:
            executed = [queue.execute(direct), queue.execute(bound, bindings=[into, last])]
            assert not any(each.done for each in executed)
            hold.open()
            assert hold.has_seen(), "an execution waited for the stream"
        hal.wait_all(executed, LIMIT)
    expected = pattern(SIZE, 1)
    expected[:128], expected[128:134] = pattern(SIZE)[:128], list(b"update")
    assert np.array_equal(into.numpy(timeout=LIMIT), expected)
    expected[2:6] = list(b"over")
    assert np.array_equal(last.numpy(timeout=LIMIT), expected)
