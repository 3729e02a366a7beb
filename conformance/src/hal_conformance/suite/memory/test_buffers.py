"""Buffers: sizes, types, ranges, views and what is allocated (M1, M2)."""

from __future__ import annotations

import functools
import gc
import itertools
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal_conformance.suite.support import LIMIT, in_threads, pattern

SIZES = (0, 1, 2, 3, 255, 256, 257, 4096, (1 << 20) + 1)
MEMORIES = ("device", "host", "managed")
DTYPES = ("u1", "i2", "<u4", "i8", "f2", "f4", "f8", "c16", "?")


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("size", SIZES)
def test_allocation_of_any_size_m1(device, queue, size, memory):
    """M1: each kind of memory comes in any size, zero and odd ones included, all of it usable."""
    buffer = device.allocate(size, memory=memory)
    assert (buffer.size, buffer.memory, buffer.device) == (size, memory, device)
    data = pattern(size, size)
    queue.update(buffer, data).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), data)


@pytest.mark.parametrize("memory", MEMORIES)
def test_allocations_are_aligned_and_apart_m1(device, memory):
    """M1: allocations are aligned to 256 bytes, and none overlaps another."""
    buffers = [device.allocate(size, memory=memory) for size in (1, 255, 256, 257, 1000)]
    assert all(buffer.address % 256 == 0 for buffer in buffers)
    ranges = sorted((buffer.address, buffer.address + buffer.size) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("dtype", DTYPES)
def test_upload_keeps_type_and_shape_m1(device, dtype):
    """M1: `numpy` gives back what was uploaded, with its dtype and shape."""
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    buffer = device.upload(array)
    assert (buffer.dtype, buffer.shape, buffer.size) == (array.dtype, (2, 3, 4), array.nbytes)
    back = buffer.numpy(timeout=LIMIT)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


@pytest.mark.parametrize(
    "array",
    [np.arange(24).reshape(4, 6)[:, ::2], np.arange(24).reshape(4, 6).T, [1.5, 2.5], 7, []],
    ids=["strided", "transposed", "list", "number", "empty"],
)
def test_upload_takes_what_numpy_takes_m1(device, array):
    """M1: scattered arrays, lists, numbers and nothing at all can be uploaded."""
    assert np.array_equal(device.upload(array).numpy(timeout=LIMIT), np.asarray(array))


def test_upload_copies_m1(device):
    """M1: the array may change as soon as `upload` has returned."""
    array = pattern(1 << 16)
    buffer = device.upload(array)
    array[:] = 0
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(1 << 16))


def test_upload_is_ready_on_every_queue_m1(device, queue):
    """M1: an uploaded buffer can be used on any queue without a wait."""
    for number in range(20):
        source, target = device.upload(pattern(1 << 16, number)), device.allocate(1 << 16)
        queue.copy(source, target).wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(1 << 16, number))


@pytest.mark.parametrize("dtype", ["<u2", "<f4", "u1"])
def test_numpy_as_another_type_m1(device, dtype):
    """M1: with a dtype `numpy` gives the same bytes as that type, flat."""
    buffer = device.upload(pattern(64).reshape(8, 8))
    assert buffer.numpy(dtype, timeout=LIMIT).tobytes() == pattern(64).tobytes()
    assert buffer.numpy(dtype, timeout=LIMIT).shape == (64 // np.dtype(dtype).itemsize,)


def test_numpy_waits_m1(device, queue, gate):
    """M1: `numpy` copies after its waits, and keeps its time limit."""
    buffer = device.upload(pattern(64))
    filled = queue.fill(buffer, 9, wait=gate.at(1))
    with pytest.raises(TimeoutError):
        buffer.numpy(wait=filled, timeout=0.01)
    gate.signal(1)
    device.queues.download.wait_idle(LIMIT)
    assert (buffer.numpy(wait=filled, timeout=LIMIT) == 9).all()


def test_threads_upload_and_read_at_once_m1(device):
    """M1: each thread makes its own copies, small and large ones, while the others make theirs."""

    def back_and_forth(size, seed):
        data = np.resize(pattern(4099, seed), size)
        return all(np.array_equal(device.upload(data).numpy(timeout=LIMIT), data) for _ in range(3))

    sizes = (5, 4097, (1 << 20) + 3, (33 << 20) + 1)
    assert all(
        in_threads(
            [
                functools.partial(back_and_forth, size, 2 * size + seed)
                for size in sizes
                for seed in range(2)
            ]
        )
    )


BAD_ALLOCATIONS: dict[str, tuple[type[Exception], tuple[Any, ...], dict[str, Any]]] = {
    "a negative size": (InvalidArgumentError, (-1,), {}),
    "a size that is no int": (ArgumentTypeError, (1.5,), {}),
    "a size as a bool": (ArgumentTypeError, (True,), {}),
    "no whole number of elements": (InvalidArgumentError, (6,), {"dtype": "f4"}),
    "an unknown type": (ArgumentTypeError, (4,), {"dtype": "nonsense"}),
    "a type of Python objects": (ArgumentTypeError, (8,), {"dtype": object}),
    "an unknown memory": (InvalidArgumentError, (4,), {"memory": "flash"}),
    "no memory": (InvalidArgumentError, (4,), {"memory": None}),
}


@pytest.mark.parametrize("what", BAD_ALLOCATIONS)
def test_bad_allocations_are_refused_m1(device, what):
    """M1: what cannot be allocated raises, and nothing is."""
    kind, arguments, options = BAD_ALLOCATIONS[what]
    before = device.statistics().allocations
    with pytest.raises(kind):
        device.allocate(*arguments, **options)
    assert device.statistics().allocations == before


@pytest.mark.parametrize("size", [1 << 55, (1 << 62) + 1])
def test_more_than_there_is_is_out_of_memory_m1(device, size):
    """M1: an allocation that no device has room for raises `OutOfMemoryError`, a `MemoryError`."""
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(size)
    assert isinstance(caught.value, MemoryError)
    device.allocate(4096)  # and the device is fine


def test_statistics_count_allocations_m1(open_device):
    """M1: bytes and allocations rise, fall when buffers go, and the peak stays."""
    device = open_device()
    before = device.statistics()
    first, second = device.allocate(1 << 16), device.allocate(1 << 12)
    both = device.statistics()
    assert both.allocations == before.allocations + 2
    assert both.bytes_now >= before.bytes_now + (1 << 16) + (1 << 12)
    first.close()
    del second
    gc.collect()
    after = device.statistics()
    assert after.allocations == before.allocations
    assert after.bytes_now == before.bytes_now
    assert after.bytes_peak >= both.bytes_now


@pytest.mark.parametrize(("offset", "size"), [(0, 64), (0, 0), (64, 0), (1, 63), (17, 8)])
def test_a_subspan_shares_the_memory_m2(device, queue, offset, size):
    """M2: what is written through a subspan is in the buffer, and nothing else changes."""
    buffer = device.upload(pattern(64))
    part = buffer.subspan(offset, size)
    assert part.size == size
    assert part.address == buffer.address + offset
    assert np.array_equal(part.numpy(timeout=LIMIT), pattern(64)[offset : offset + size])
    queue.fill(part, 0xEE).wait(LIMIT)
    expected = pattern(64)
    expected[offset : offset + size] = 0xEE
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


def test_a_subspan_of_a_subspan_m2(device, queue):
    """M2: offsets of nested subspans add up."""
    buffer = device.upload(np.zeros(16, np.uint8))
    inner = buffer.subspan(4, 8).subspan(4, 4)
    queue.update(inner, b"abcd").wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tobytes() == bytes(8) + b"abcd" + bytes(4)


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (65, 0), (60, 8), (-1, 4), (0, -4)])
def test_a_subspan_outside_is_refused_m2(device, offset, size):
    """M2: a subspan lies in its buffer."""
    buffer = device.allocate(64)
    with pytest.raises(InvalidArgumentError):
        buffer.subspan(offset, size)


def test_a_subspan_of_another_type_m2(device):
    """M2: a subspan may be of another dtype, which divides its size."""
    buffer = device.upload(np.arange(16, dtype=np.uint8))
    part = buffer.subspan(4, 8, dtype="<u4")
    assert part.shape == (2,)
    assert part.numpy(timeout=LIMIT).tolist() == [0x07060504, 0x0B0A0908]
    with pytest.raises(InvalidArgumentError):
        buffer.subspan(4, 6, dtype="<u4")


def test_a_subspan_outlives_its_buffer_m2(device, queue):
    """M2: closing or dropping the whole leaves its subspans usable."""
    whole = device.upload(pattern(256))
    part = whole.subspan(16, 16)
    whole.close()
    del whole
    gc.collect()
    assert np.array_equal(part.numpy(timeout=LIMIT), pattern(256)[16:32])
    queue.fill(part, 3).wait(LIMIT)
    assert (part.numpy(timeout=LIMIT) == 3).all()


def test_views_of_other_types_m2(device, queue):
    """M2: `view` shares the memory, and takes its bytes for elements of another type."""
    buffer = device.upload(pattern(64).view("<u4").reshape(2, 8))
    whole, half, wide = buffer.view("f4"), buffer.view("<u2"), buffer.view("<u8")
    assert [each.shape for each in (whole, half, wide)] == [(2, 8), (2, 16), (2, 4)]
    assert {each.address for each in (whole, half, wide)} == {buffer.address}
    assert wide.numpy(timeout=LIMIT).tobytes() == pattern(64).tobytes()
    queue.fill(half, 7).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 0x70007).all()
    buffer.close()
    assert (half.numpy(timeout=LIMIT) == 7).all()
    with pytest.raises(InvalidArgumentError, match="whole number"):
        wide.view("V12")


def test_arrays_of_other_elements_are_refused_m1(device, queue):
    """M1: a transfer converts nothing; bytes, and integers of the same size, are taken."""
    buffer = device.upload(np.ones(4, np.float32))
    for dtype in (np.float64, np.int32, ">f4", np.complex64):
        array = np.ones(1, dtype)
        for transfer in (queue.read, queue.write, queue.update):
            with pytest.raises(ArgumentTypeError, match=r"float32.*view"):
                transfer(buffer, array)
    with device.record() as commands, pytest.raises(ArgumentTypeError, match=r"float32.*view"):
        commands.update(buffer, np.ones(2))
    raw, same = np.empty(16, np.uint8), np.empty(4, np.uint32)
    queue.read(buffer, raw).wait(LIMIT)
    queue.read(buffer.view(np.int32), same).wait(LIMIT)
    assert raw.tobytes() == same.tobytes() == np.ones(4, np.float32).tobytes()
    queue.write(device.allocate(16), np.ones(2)).wait(LIMIT)
    queue.update(buffer, bytes(16)).wait(LIMIT)
    assert not buffer.numpy(timeout=LIMIT).any()


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_map_shows_the_memory_m2(device, queue, memory):
    """M2: a view shows what the device wrote, and the device sees what is put into it."""
    buffer = device.allocate(4096, memory=memory)
    queue.update(buffer, pattern(4096)).wait(LIMIT)
    view = buffer.map()
    assert np.array_equal(view, pattern(4096))
    view[:] = pattern(4096, 1)
    target = device.allocate(4096)
    queue.copy(buffer, target).wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096, 1))
    queue.fill(buffer, 7).wait(LIMIT)
    assert (view == 7).all()


@pytest.mark.parametrize("memory", MEMORIES)
def test_reading_waits_for_what_was_submitted_m2(device, queue, memory):
    """M2: `numpy` and `map` show what the operations before them write, on whatever queue."""
    buffer = device.upload(pattern(1 << 16)) if memory == "device" else None
    buffer = buffer or device.allocate(1 << 16, memory=memory)
    for number in range(1, 11):
        queue.call(lambda: None)
        queue.fill(buffer, number)
        assert (buffer.numpy(timeout=LIMIT) == number).all()
        if memory != "device":
            queue.fill(buffer, number + 100)
            assert (buffer.map(timeout=LIMIT) == number + 100).all()


def test_a_read_that_waits_for_nothing_m2(device, queue, gate):
    """M2: an empty wait list reads at once; without one a time-out says who is waited for."""
    buffer = device.upload(pattern(64))
    pending = queue.fill(buffer, 7, wait=gate.at(1))
    assert np.array_equal(buffer.numpy(wait=(), timeout=LIMIT), pattern(64))
    with pytest.raises(DeadlineExceededError, match=rf"fill on {queue.name}.* by nobody"):
        buffer.numpy(timeout=0.001)
    gate.fail(OperationError("on purpose"))
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))
    with pytest.raises(OperationError, match="on purpose"):
        buffer.numpy(wait=pending, timeout=LIMIT)


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_map_of_a_subspan_m2(device, memory):
    """M2: a subspan's view shows its part, as its type."""
    buffer = device.allocate(64, memory=memory)
    buffer.map()[:] = pattern(64)
    view = buffer.subspan(8, 8, dtype="<u2").map()
    assert view.dtype == np.dtype("<u2")
    assert view.tobytes() == pattern(64)[8:16].tobytes()
    view[:] = 0
    assert buffer.map()[8:16].tolist() == [0] * 8


@pytest.mark.parametrize("part", ["whole", "subspan", "slice"])
@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("memory", ["host", "managed"])
def test_a_view_keeps_its_memory_m2(device, memory, how, part):
    """M2: what a view shows is given to nobody else, whatever becomes of the buffer."""
    buffer = device.allocate(4096, memory=memory)
    shown = buffer.subspan(64, 4096 - 64) if part == "subspan" else buffer
    view = shown.map()[64:128] if part == "slice" else shown.map()
    view[:] = pattern(view.size)
    if how == "closed":
        buffer.close()
    del buffer, shown
    gc.collect()
    others = [device.allocate(4096, memory=memory) for _ in range(4)]
    for other in others:
        other.map()[:] = 0
    assert np.array_equal(view, pattern(view.size))
    view[:] = 1
    assert (view == 1).all()


def test_device_memory_is_mapped_or_refused_m2(device):
    """M2: where device memory is not host-visible `map` raises, and says what to do."""
    buffer = device.upload(pattern(64))
    if "host_visible_device_memory" in device.features:
        assert np.array_equal(buffer.map(), pattern(64))
        return
    with pytest.raises(UnimplementedError, match="numpy"):
        buffer.map()


def test_a_closed_buffer_refuses_use_m2(device, queue):
    """M2: after `close`, which may be called twice, every use raises `ClosedError`."""
    buffer, other = device.allocate(64), device.allocate(64)
    buffer.close()
    buffer.close()
    assert buffer.closed
    uses = [
        buffer.numpy,
        buffer.map,
        lambda: buffer.subspan(0, 1),
        lambda: buffer.address,
        lambda: buffer.memory,
        lambda: queue.write(buffer, b"1"),
        lambda: queue.fill(buffer, 1),
        lambda: queue.update(buffer, b"1"),
        lambda: queue.copy(other, buffer),
        lambda: queue.copy(buffer, other),
        lambda: queue.read(buffer, np.zeros(1, np.uint8)),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
    assert buffer.size == 64


def test_buffers_say_what_they_are_m2(device):
    """M2: the repr tells type, shape and size, and that a buffer is closed."""
    buffer = device.upload(np.zeros((2, 3), np.float32))
    assert "float32" in repr(buffer)
    assert "24" in repr(buffer)
    assert "BufferUsage" not in repr(buffer)
    assert "DISPATCH" in repr(device.allocate(1, usage=hal.BufferUsage.DISPATCH))
    assert "read" in repr(device.allocate(1, access="read"))
    buffer.close()
    assert "closed" in repr(buffer)
