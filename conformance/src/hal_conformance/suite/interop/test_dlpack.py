"""DLPack and numpy: memory that is shared with other libraries (M2)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, ClosedError, ExchangeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, pattern

HOST = (1, 0)
"""The host's memory, as DLPack numbers devices."""

from_dlpack: Any = np.from_dlpack
"""Numpy's own, whose type hints know no newer protocol than that of its first version."""


def shares_host_memory(device: hal.Device) -> bool:
    """Return whether the device's own memory is the host's, and can be handed out."""
    try:
        return device.allocate(4).__dlpack_device__() == HOST
    except ExchangeError:
        return False


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_tensors_come_in_m2(device, dtype):
    """M2: `from_dlpack` gives a buffer of the tensor's elements, shape and content."""
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    buffer = device.from_dlpack(array)
    assert (buffer.dtype, buffer.shape) == (array.dtype, array.shape)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), array)


def test_a_tensor_is_shared_or_copied_m2(device, queue):
    """M2: where the host's memory is the device's own a tensor is shared, elsewhere copied."""
    array = np.zeros(256, np.float32)
    buffer = device.from_dlpack(array)
    queue.fill(buffer, 7.0).wait(LIMIT)
    assert (array == (7 if shares_host_memory(device) else 0)).all()
    if shares_host_memory(device):
        assert device.from_dlpack(array, copy=False).address == buffer.address
        return
    with pytest.raises(ExchangeError):
        device.from_dlpack(array, copy=False)


def test_a_copy_is_apart_m2(device, queue):
    """M2: with ``copy=True`` the tensor and the buffer are two memories."""
    array = np.ones(256, np.float32)
    buffer = device.from_dlpack(array, copy=True)
    queue.fill(buffer, 7.0).wait(LIMIT)
    assert (array == 1).all()
    array[:] = 3
    assert (buffer.numpy(timeout=LIMIT) == 7).all()


GAPS: dict[str, Any] = {
    "columns": lambda array: array[:, ::2],
    "transposed": lambda array: array.T,
    "part of the rows": lambda array: array[:, :2],
    "backwards": lambda array: array[::-1],
    "one element for all": lambda array: np.lib.stride_tricks.as_strided(array, (4, 6), (0, 4)),
}


@pytest.mark.parametrize("how", GAPS)
def test_gaps_are_refused_or_copied_m2(device, how):
    """M2: a tensor with gaps is an error, unless a copy is asked for."""
    array = GAPS[how](np.arange(24, dtype=np.float32).reshape(4, 6))
    with pytest.raises(InvalidArgumentError, match=r"strides.*ascontiguousarray.*copy=True"):
        device.from_dlpack(array)
    with pytest.raises(ExchangeError):
        device.from_dlpack(array, copy=False)
    assert np.array_equal(device.from_dlpack(array, copy=True).numpy(timeout=LIMIT), array)


def test_a_tensor_of_nothing_m2(device):
    """M2: no elements are a buffer of no bytes, with their shape."""
    buffer = device.from_dlpack(np.zeros((0, 3), np.float32))
    assert (buffer.size, buffer.shape) == (0, (0, 3))


def test_a_taken_tensor_is_let_go_m2(device, queue, gate):
    """M2: its owner lives until the last buffer and unended operation is gone, and no longer."""
    array = pattern(4096)
    gone = weakref.ref(array)
    buffer = device.from_dlpack(array)
    target = device.allocate(4096)
    del array
    ran = queue.copy(buffer, target, wait=gate.at(1))
    buffer.close()
    del buffer
    gc.collect()
    gate.signal(1)
    ran.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096))
    del ran
    for _ in range(1000):
        gc.collect()
        device.trim(1 << 40)
        if gone() is None:
            break
        queue.barrier().wait(LIMIT)
    assert gone() is None


@pytest.mark.parametrize("wrong", [None, 7, "tensor", [1, 2], b"12"], ids=str)
def test_what_is_no_tensor_is_refused_m2(device, wrong):
    """M2: what does not speak DLPack raises `ArgumentTypeError`."""
    with pytest.raises(ArgumentTypeError):
        device.from_dlpack(wrong)
    with pytest.raises(ArgumentTypeError):
        device.from_dlpack(np.zeros(4), copy=1)


# Out


def test_a_buffer_says_where_it_is_m2(device):
    """M2: each kind of memory names its DLPack device, or says that it has none."""
    for memory in ("device", "host", "managed"):
        buffer = device.allocate(64, memory=memory)
        try:
            kind, number = buffer.__dlpack_device__()
        except ExchangeError:
            continue
        assert kind > 0
        assert number >= 0


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "f8"])
def test_a_copy_for_the_host_m2(device, dtype):
    """M2: memory that is handed out can be copied to the host for whoever asks."""
    array = np.arange(12).reshape(3, 4).astype(dtype)
    buffer = device.upload(array)
    try:
        buffer.__dlpack_device__()
    except ExchangeError:
        with pytest.raises(ExchangeError):
            from_dlpack(buffer)
        return
    seen = from_dlpack(Copied(buffer))
    assert np.array_equal(seen, array)


class Copied:
    """A tensor whose consumer asks for a copy on the host."""

    def __init__(self, buffer: hal.Buffer) -> None:
        self._buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST

    def __dlpack__(self, **asked: Any) -> object:  # noqa: ANN401 - the standard's
        return self._buffer.__dlpack__(**{**asked, "dl_device": HOST, "copy": True})


@pytest.mark.parametrize("memory", ["device", "host", "managed"])
def test_numpy_shows_what_the_host_sees_m2(device, queue, memory):
    """M2: `np.asarray` is a view where memory is host-visible, and a TypeError elsewhere."""
    buffer = device.allocate(24, dtype=np.float32, memory=memory)
    heap = next(heap for heap in device.heaps if heap.memory == memory)
    if not heap.host_visible:
        with pytest.raises(TypeError, match="numpy"):
            np.asarray(buffer)
        return
    queue.fill(buffer, 2.5).wait(LIMIT)
    view = np.asarray(buffer)
    assert view.tolist() == [2.5] * 6
    queue.fill(buffer, 3.5).wait(LIMIT)
    assert view.tolist() == [3.5] * 6
    view[:] = 4.5
    assert buffer.numpy(timeout=LIMIT).tolist() == [4.5] * 6
    copied = np.array(buffer)
    view[:] = 0
    assert copied.tolist() == [4.5] * 6


def test_a_tensor_outlives_its_buffer_m2(device):
    """M2: memory that was handed out lives as long as the tensor, past `close` and other work."""
    if not shares_host_memory(device):
        return
    buffer = device.upload(pattern(4096).reshape(64, 64))
    tensor = from_dlpack(buffer)
    assert tensor.shape == (64, 64)
    buffer.close()
    del buffer
    gc.collect()
    others = [device.upload(np.full(4096, 0xEE, np.uint8)) for _ in range(4)]
    assert np.array_equal(tensor.reshape(-1), pattern(4096))
    del others


def test_a_tensor_outlives_its_device_m2(open_device):
    """M2: memory that was handed out stays after the device is closed, without a report."""
    device = open_device()
    if not shares_host_memory(device):
        return
    tensor = from_dlpack(device.upload(pattern(4096)))
    device.close(LIMIT)
    assert np.array_equal(tensor, pattern(4096))


def test_there_and_back_m2(device, queue):
    """M2: a tensor of a buffer of a tensor is the first memory, or a copy with its content."""
    array = np.arange(64, dtype=np.int32)
    buffer = device.from_dlpack(array)
    try:
        buffer.__dlpack_device__()
    except ExchangeError:  # DLPack has no name for its memory
        with pytest.raises(ExchangeError):
            device.from_dlpack(buffer)
        return
    again = device.from_dlpack(buffer)
    assert np.array_equal(again.numpy(timeout=LIMIT), array)
    if shares_host_memory(device):
        queue.fill(again, 9).wait(LIMIT)
        assert (array == 9).all()


def test_a_read_only_tensor_m2(device, queue):
    """M2: a read-only array gives a buffer that nothing writes to, or a copy of one's own."""
    array = np.arange(64, dtype=np.int32)
    array.flags.writeable = False
    buffer = device.from_dlpack(array)
    assert buffer.access == ("read" if shares_host_memory(device) else "all")
    if buffer.access == "read":
        other = device.allocate(buffer.size)
        for write in (
            lambda: queue.fill(buffer, 1),
            lambda: queue.copy(other, buffer),
            lambda: queue.update(buffer.subspan(0, 4), b"abcd"),
            buffer.map,
        ):
            with pytest.raises(InvalidArgumentError, match="must not be written"):
                write()
        assert not np.asarray(buffer).flags.writeable
    assert np.array_equal(buffer.numpy(timeout=LIMIT), array)
    assert array[1] == 1


def test_types_that_dlpack_does_not_have_m2(device):
    """M2: structures, dates and texts are an `ExchangeError`; their bytes can be handed out."""
    if not shares_host_memory(device):
        return
    for dtype in ("<M8[s]", [("x", "<i4"), ("y", "<i4")], "S8", "V8", ">i8"):
        buffer = device.upload(np.zeros(4, dtype))
        with pytest.raises(ExchangeError) as caught:
            from_dlpack(buffer)
        assert isinstance(caught.value, BufferError)
        assert from_dlpack(buffer.subspan(0, buffer.size, dtype="u1")).size == 32


def test_a_closed_buffer_is_not_handed_out_m2(device):
    """M2: after `close` every way out raises `ClosedError`, or a TypeError for numpy."""
    buffer = device.allocate(64)
    buffer.close()
    for way in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(ClosedError):
            way()
    with pytest.raises((ClosedError, TypeError)):
        np.asarray(buffer)


@pytest.mark.parametrize(
    "asked",
    [{"copy": 1}, {"stream": "1"}, {"max_version": 1}, {"dl_device": "host"}],
    ids=["copy", "stream", "version", "device"],
)
def test_bad_demands_are_refused_m2(device, asked):
    """M2: what a consumer asks for has the standard's types."""
    if not shares_host_memory(device):
        return
    with pytest.raises(ArgumentTypeError):
        device.allocate(64).__dlpack__(**asked)
