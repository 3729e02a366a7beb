"""Device memory of other libraries taken as buffers, in the order of their streams (M2, Q5).

The device says of its memory that it is CUDA's; the other library is
`foreign_library`, whose tensors are numpy arrays that nobody reads on the host.
"""

import gc
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Latch
from device_tensor_harness import ROCM, SIZE, CudaArray, Tensor, content, foreign, hold, pretend
from interop_harness import READ_ONLY, assert_soon

from hal.errors import (
    ArgumentTypeError,
    ExchangeError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)


@pytest.mark.parametrize("kind", ["versioned", "unversioned", "CUDA array"])
def test_device_tensors_are_shared_in_order_m2(gpu, kind):
    """M2: no copy, no wait on the host, and every queue finds the tensor ready."""
    device, probe, library = gpu
    array = foreign(probe, np.zeros(SIZE, np.uint8))
    copies = [device.upload(np.zeros(SIZE, np.uint8)) for _ in range(4)]
    own = device.create_queue(ordered=False)
    theirs, latch = library.held_stream()
    theirs.fill(array.ctypes.data, 9, SIZE)
    tensor = Tensor(library, array, stream=theirs, versioned=kind == "versioned")
    is_tensor = kind != "CUDA array"
    buffer = device.from_dlpack(tensor if is_tensor else CudaArray(array, theirs.handle))
    assert (buffer.address, buffer.dtype, buffer.shape) == (array.ctypes.data, "u1", (SIZE,))
    assert buffer.memory == "device"
    queues = [device.queue, device.queues.upload, device.queues.download, own]
    works = [queue.copy(buffer, copy) for queue, copy in zip(queues, copies, strict=True)]
    assert not any(work.done for work in works)
    assert not theirs.is_done()
    latch.open()
    for work, copy in zip(works, copies, strict=True):
        work.wait(LIMIT)
        assert (content(copy) == 9).all()
    assert not is_tensor or sorted(tensor.asked[0]) == ["max_version", "stream"]
    assert "adopted stream" not in probe.live()
    assert (buffer.numpy() == 9).all()


@pytest.mark.parametrize("kind", ["tensor", "CUDA array"])
def test_a_shared_tensors_owner_lives_until_the_last_use_q5(gpu, kind):
    """Q5: its deleter is called once, or the array dropped, after the work that uses it."""
    device, probe, library = gpu
    array, gone = foreign(probe, np.zeros(SIZE, np.uint8)), []
    owner = Tensor(library, array) if kind == "tensor" else CudaArray(array)
    buffer = device.from_dlpack(owner)
    if kind == "tensor":
        gone = owner.deleted
    else:
        weakref.finalize(owner, gone.append, "the array")
    del owner
    latch = Latch()
    probe.hold(latch)
    work = device.queue.fill(buffer, 3)
    if kind == "tensor":
        buffer.close()
    del buffer
    gc.collect()
    device.trim(1 << 40)
    assert gone == []
    latch.open()
    work.wait(LIMIT)
    del work
    assert_soon(device, lambda: len(gone) == 1)
    assert (array == 3).all()


def test_a_buffer_comes_home_by_dlpack_m2(gpu, open_probe, monkeypatch):
    """M2: handed to another device object of the same memory, ordered on the way."""
    device, probe, _ = gpu
    other, second = open_probe()
    pretend(second, monkeypatch)
    buffer, latch = hold(probe, device)
    second.foreign.append((buffer.address, SIZE))
    copy = other.upload(np.zeros(SIZE, np.uint8))
    taken = other.from_dlpack(buffer)
    assert taken.address == buffer.address
    work = other.queue.copy(taken, copy)
    assert not work.done
    latch.open()
    work.wait(LIMIT)
    assert (content(copy) == 5).all()
    del taken, work


def test_copies_and_refusals_of_device_tensors(gpu):
    device, probe, library = gpu
    array = foreign(probe, np.arange(SIZE, dtype=np.uint8))
    copied = device.from_dlpack(Tensor(library, array), copy=True)
    assert copied.address != array.ctypes.data
    assert copied.numpy().tolist() == array.tolist()
    assert device.from_dlpack(Tensor(library, array), copy=False).address == array.ctypes.data
    strided = Tensor(library, array.reshape(8, 8).T)
    for copy, error in ((None, InvalidArgumentError), (False, ExchangeError), (True, HalError)):
        with pytest.raises(error, match=r"strides.*contiguous"):
            device.from_dlpack(strided, copy=copy)
    odd = Tensor(library, array[1:33])
    with pytest.raises(InvalidArgumentError, match="multiple of 4"):
        device.from_dlpack(odd)
    read_only = device.from_dlpack(Tensor(library, array, flags=READ_ONLY))
    assert read_only.access == "read"
    empty = device.from_dlpack(Tensor(library, np.zeros((0, 3), "f4")))
    assert (empty.shape, empty.size) == ((0, 3), 0)
    assert_soon(device, lambda: len(strided.deleted) == 3 and len(odd.deleted) == 1)


def test_other_devices_tensors_are_not_shared(gpu):
    device, _, library = gpu
    elsewhere = Tensor(library, np.zeros(8, np.uint8), device=(2, 1))
    with pytest.raises(ExchangeError, match=r"CUDA \(2, 1\).*not memory of cpu:0"):
        device.from_dlpack(elsewhere, copy=False)
    assert elsewhere.asked == []


@pytest.mark.parametrize("kind", [BufferError, RuntimeError, TypeError])
def test_a_tensor_that_fails_leaves_nothing_i7(gpu, kind):
    """I7: the stream that it was given is used again."""
    device, probe, library = gpu

    class Refusing(Tensor):
        def __dlpack__(self, **_):
            message = "requires grad"
            raise kind(message)

    for _ in range(8):
        with pytest.raises(ExchangeError, match="does not hand itself out: requires grad"):
            device.from_dlpack(Refusing(library, np.zeros(8, np.uint8)))
        gc.collect()
    device.from_dlpack(Tensor(library, np.zeros(8, np.uint8)))
    assert probe.live()["stream"] == 4


def test_streams_for_producers_are_used_again_once_they_are_idle_i4(gpu):
    device, _, library = gpu
    held, latches = [], []
    for _ in range(3):
        theirs, latch = library.held_stream()
        latches.append(latch)
        held.append(device.from_dlpack(Tensor(library, np.zeros(8, np.uint8), stream=theirs)))
    assert len(device._external._all) == 3
    for latch in latches:
        latch.open()
    assert_soon(device, lambda: len(device._external._free) == 3)
    held.append(device.from_dlpack(Tensor(library, np.zeros(8, np.uint8))))
    assert len(device._external._all) == 3


# The CUDA Array Interface, in


def test_a_cuda_array_without_a_stream_is_ready(gpu):
    device, probe, _ = gpu
    array = foreign(probe, np.arange(12, dtype="f4").reshape(3, 4))
    records = probe.calls["record_event"]
    buffer = device.from_dlpack(CudaArray(array, strides=(16, 4)))
    assert probe.calls["record_event"] == records
    assert (buffer.shape, buffer.numpy().tolist()) == ((3, 4), array.tolist())
    copied = device.from_dlpack(CudaArray(array), copy=True)
    assert (copied.address != array.ctypes.data, copied.numpy().tolist()) == (True, array.tolist())
    records = np.array([(1, 0.5)], dtype=[("i", "i4"), ("x", "f4")])
    foreign(probe, records)
    taken = device.from_dlpack(CudaArray(records, descr=records.dtype.descr))
    assert taken.dtype == records.dtype
    empty = device.from_dlpack(CudaArray(np.zeros((0, 2)), data=(0, False)))
    assert (empty.shape, empty.size) == ((0, 2), 0)
    assert device.from_dlpack(CudaArray(array, data=(array.ctypes.data, True))).access == "read"


def test_bad_cuda_arrays_are_refused(gpu, monkeypatch):
    device, probe, _ = gpu
    array = np.zeros((4, 4), np.uint8)
    for changes, error, match in (
        ({"mask": CudaArray(array)}, ExchangeError, "mask"),
        ({"strides": (1, 4)}, InvalidArgumentError, "strides"),
        ({"stream": 0}, InvalidArgumentError, "stream is 0"),
        ({"stream": -1}, InvalidArgumentError, "stream is -1"),
        ({"shape": None}, ExchangeError, "not as the protocol says"),
        ({"data": 5}, ExchangeError, "not as the protocol says"),
        ({"typestr": "<q9"}, ExchangeError, "not as the protocol says"),
        ({"data": (array.ctypes.data | 1, False)}, InvalidArgumentError, "multiple of"),
    ):
        with pytest.raises(error, match=match):
            device.from_dlpack(CudaArray(array, **changes))
    wrong = CudaArray(array)
    wrong.__cuda_array_interface__ = None
    with pytest.raises(ArgumentTypeError, match="no mapping"):
        device.from_dlpack(wrong)
    monkeypatch.setattr(probe, "locate", lambda address: (2, 1))
    with pytest.raises(ExchangeError, match=r"CUDA \(2, 1\).*cpu:0 is CUDA \(2, 0\)"):
        device.from_dlpack(CudaArray(array))
    monkeypatch.setattr(probe, "locate", lambda address: None)
    assert device.from_dlpack(CudaArray(array)).address == array.ctypes.data


def test_rocm_takes_no_cuda_array(gpu, monkeypatch):
    device, probe, _ = gpu
    pretend(probe, monkeypatch, ROCM)
    with pytest.raises(UnimplementedError, match="__cuda_array_interface__"):
        device.from_dlpack(CudaArray(np.zeros(4)))
