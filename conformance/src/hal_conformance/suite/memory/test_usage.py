"""What buffers may be used for, and what memory there is: usage, access, heaps, queries (M1)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hal
from hal import BufferUsage
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, pattern

MEMORIES = ("device", "host", "managed")

USES: dict[str, tuple[BufferUsage, str, Any]] = {
    # What an operation needs: a usage and an access; and the operation.
    "fill": (BufferUsage.TRANSFER_TARGET, "write", lambda q, b, _: q.fill(b, 1)),
    "update": (BufferUsage.TRANSFER_TARGET, "write", lambda q, b, _: q.update(b, b"1")),
    "write": (BufferUsage.TRANSFER_TARGET, "write", lambda q, b, _: q.write(b, b"1")),
    "copy to": (BufferUsage.TRANSFER_TARGET, "write", lambda q, b, o: q.copy(o, b)),
    "copy from": (BufferUsage.TRANSFER_SOURCE, "read", lambda q, b, o: q.copy(b, o)),
    "read": (
        BufferUsage.TRANSFER_SOURCE,
        "read",
        lambda q, b, _: q.read(b, np.zeros(64, np.uint8)),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_usage_is_kept_m1(device, queue, use):
    """M1: an operation takes a buffer with the usage that it needs, and refuses all others."""
    needed, _, operation = USES[use]
    other = device.allocate(64)
    right = device.allocate(64, usage=needed)
    assert right.usage == needed
    operation(queue, right, other).wait(LIMIT)
    wrong = device.allocate(64, usage=BufferUsage.ALL & ~needed)
    with pytest.raises(InvalidArgumentError, match=str(needed.name)):
        operation(queue, wrong, other)
    with pytest.raises(InvalidArgumentError):
        operation(queue, wrong.subspan(0, 64), other)


@pytest.mark.parametrize("use", USES)
def test_access_is_kept_m1(device, queue, use):
    """M1: nothing writes to a buffer of access "read", and nothing reads one of access "write"."""
    _, needed, operation = USES[use]
    other = device.allocate(64)
    right = device.allocate(64, access=needed)
    assert right.access == needed
    operation(queue, right, other).wait(LIMIT)
    wrong = device.allocate(64, access="write" if needed == "read" else "read")
    with pytest.raises(InvalidArgumentError, match="access"):
        operation(queue, wrong, other)


@pytest.mark.parametrize("use", ["fill", "update", "copy to", "copy from"])
def test_usage_is_kept_by_recordings_m1(device, queue, use):
    """M1: a recording refuses the same, directly while it is recorded, by slot when it is bound."""
    needed, _, operation = USES[use]
    other, wrong = device.allocate(64), device.allocate(64, usage=BufferUsage.ALL & ~needed)
    with device.record() as direct, pytest.raises(InvalidArgumentError):
        operation(direct, wrong, other)
    with device.record(slots=[("u1", 64)]) as slotted:
        operation(slotted, slotted.slots[0], other)
    with pytest.raises(InvalidArgumentError, match="slot 0"):
        queue.execute(slotted, bindings=[wrong])
    right = device.allocate(64, usage=needed)
    queue.execute(slotted, bindings=[right]).wait(LIMIT)


@pytest.mark.feature("kernels")
def test_usage_is_kept_by_dispatches_m1(device, queue, program):
    """M1: kernels take buffers for dispatch, and write to none of access "read"."""
    out = device.allocate(16)
    wrong = device.allocate(16, usage=BufferUsage.TRANSFER_SOURCE | BufferUsage.TRANSFER_TARGET)
    kernel = {"kernel": program["negate"], "grid": 1, "block": 4}
    for arguments in ((wrong, out), (out, wrong)):
        with pytest.raises(InvalidArgumentError, match="DISPATCH"):
            queue.dispatch(**kernel, args=arguments)
    read_only = device.allocate(16, access="read")
    with pytest.raises(InvalidArgumentError, match="access"):
        queue.dispatch(**kernel, args=(out, read_only))
    queue.dispatch(**kernel, args=(read_only, out)).wait(LIMIT)


def test_maps_keep_usage_and_access_m1(device):
    """M1: what was allocated without mapping, or without that access, is not mapped."""
    for hidden in ({"usage": BufferUsage.ALL & ~BufferUsage.TRANSFER_SOURCE}, {"access": "write"}):
        with pytest.raises(InvalidArgumentError):
            device.allocate(64, **hidden).numpy()
    without = device.allocate(64, memory="host", usage=BufferUsage.ALL & ~BufferUsage.MAPPING)
    with pytest.raises(InvalidArgumentError, match="MAPPING"):
        without.map()
    reading = device.allocate(64, memory="host", access="read")
    assert not reading.map("read").flags.writeable
    for access in ("all", "write", "discard"):
        with pytest.raises(InvalidArgumentError):
            reading.map(access)
    writing = device.allocate(64, memory="host", access="write")
    writing.map("write")[:] = 1
    writing.map("discard")[:] = 2
    with pytest.raises(InvalidArgumentError):
        writing.map("read")


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_maps_are_for_what_was_said_m2(device, memory):
    """M2: a view to read is read-only, and one to write is not."""
    buffer = device.allocate(64, memory=memory)
    buffer.map("discard")[:] = pattern(64)
    view = buffer.map("read")
    assert np.array_equal(view, pattern(64))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    buffer.map("write")[:8] = 0
    assert view[:8].tolist() == [0] * 8
    with pytest.raises(InvalidArgumentError):
        buffer.map("append")


BAD: dict[str, tuple[type[HalError], dict[str, Any]]] = {
    "a usage of nothing": (InvalidArgumentError, {"usage": BufferUsage(0)}),
    "a usage that is none": (InvalidArgumentError, {"usage": 1 << 20}),
    "a negative usage": (InvalidArgumentError, {"usage": -1}),
    "a usage as a bool": (ArgumentTypeError, {"usage": True}),
    "a usage as text": (ArgumentTypeError, {"usage": "all"}),
    "an access that is none": (InvalidArgumentError, {"access": "append"}),
    "no access": (InvalidArgumentError, {"access": None}),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_usages_are_refused_m1(device, what):
    """M1: a usage or an access that there is not raises, in `allocate` and in a query."""
    kind, options = BAD[what]
    with pytest.raises(kind):
        device.allocate(64, **options)
    with pytest.raises(kind):
        device.query_memory(**options)


def test_heaps_describe_all_memory_m1(device):
    """M1: each kind of memory has a heap, whose numbers make sense and whose promises hold."""
    heaps = {heap.memory: heap for heap in device.heaps}
    assert set(heaps) == set(MEMORIES)
    for name, heap in heaps.items():
        assert heap.alignment >= 256
        assert heap.largest_allocation > 0
        assert heap.total is None or heap.total >= heap.largest_allocation
        assert heap.free is None or heap.total is None or 0 <= heap.free <= heap.total
        buffer = device.allocate(100, memory=name)
        assert buffer.address % heap.alignment == 0
        if heap.host_visible:
            assert buffer.map().nbytes == 100
            assert heap.coherent
    assert heaps["host"].host_visible
    assert heaps["managed"].host_visible
    visible = "host_visible_device_memory" in device.features
    assert heaps["device"].host_visible == visible


@pytest.mark.parametrize("memory", MEMORIES)
def test_queries_are_right_m1(device, memory):
    """M1: what a query says can be done can be done; transfers and dispatches always can."""
    usage = BufferUsage.TRANSFER_SOURCE | BufferUsage.TRANSFER_TARGET | BufferUsage.DISPATCH
    answer = device.query_memory(memory=memory, usage=usage, size=1024)
    assert answer.allocatable
    assert not answer.reason
    assert set(answer.queues) == {"compute", "upload", "download"}
    assert answer.block_size >= 1024
    assert not answer.mappable
    buffer = device.allocate(1024, memory=memory, usage=usage)
    for name in answer.queues:
        getattr(device.queues, name).fill(buffer, 1).wait(LIMIT)
    mapped = device.query_memory(memory=memory)
    heap = next(heap for heap in device.heaps if heap.memory == memory)
    assert mapped.mappable == heap.host_visible


def test_a_query_says_why_not_m1(device):
    """M1: more than there can be is not allocatable, with a reason, and nothing is allocated."""
    before = device.statistics().allocations
    answer = device.query_memory(size=1 << 60)
    assert not answer.allocatable
    assert answer.reason
    assert answer.queues == ()
    assert device.statistics().allocations == before
    for size, kind in ((-1, InvalidArgumentError), ("1", ArgumentTypeError)):
        with pytest.raises(kind):
            device.query_memory(size=size)


def test_the_peak_starts_again_m1(open_device):
    """M1: `reset_peak` makes the peak what is allocated now."""
    device = open_device()
    held = device.allocate(1 << 12)
    device.allocate(1 << 20)
    gc.collect()
    assert device.statistics(reset_peak=True).bytes_peak >= (1 << 20) + (1 << 12)
    again = device.statistics()
    assert (1 << 12) <= again.bytes_peak < 1 << 20
    assert again.bytes_peak >= again.bytes_now
    assert again.bytes_held >= again.bytes_now + again.bytes_cached
    held.close()


def test_trim_gives_back_what_nobody_uses_m1(open_device):
    """M1: `trim` frees cached memory down to what is to be kept, and nothing that is in use."""
    device = open_device()
    held = device.upload(pattern(1 << 16))
    for size in (1 << 16, 1 << 18, 1 << 20):
        device.allocate(size)
    gc.collect()
    device.queue.barrier().wait(LIMIT)
    cached = device.statistics().bytes_cached
    freed = device.trim(cached // 2)
    assert device.statistics().bytes_cached <= cached // 2
    assert freed == cached - device.statistics().bytes_cached
    device.trim()
    after = device.statistics()
    assert (after.bytes_cached, after.allocations) == (0, 1)
    assert after.bytes_now >= 1 << 16
    assert np.array_equal(held.numpy(timeout=LIMIT), pattern(1 << 16))
    assert device.trim() == 0
    with pytest.raises(InvalidArgumentError):
        device.trim(-1)


def test_memory_of_unended_work_is_waited_for_m1(open_device):
    """M1: an allocation at the limit first retires finished work and frees what that used."""
    device = open_device(memory_limit="4M")
    for number in range(20):
        # Of two sizes, so that none is just what the one before has given back.
        buffer = device.allocate((3 << 20) + (number % 2 << 19))
        done = device.queue.fill(buffer, number)
        buffer.close()
        done.wait(LIMIT)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, (1 << 20) + 3, (5 << 20) + 7])
def test_large_host_copies_are_submitted_at_once_q1(device, queue, gate, size):
    """Q1, M1: writes and reads of ordinary host memory return with their wait open, at any size.

    And arrive, whether the device copies such memory itself or through a ring
    of its own (the feature ``pageable_copies``).
    """
    buffer, array, seen = device.allocate(size), pattern(size), np.zeros(size, np.uint8)
    written = queue.write(buffer, array, wait=gate.at(1))
    read = queue.read(buffer, seen)
    assert not written.done
    assert not read.done
    gate.signal(1)
    hal.wait_all([written, read], LIMIT)
    assert np.array_equal(seen, array)
