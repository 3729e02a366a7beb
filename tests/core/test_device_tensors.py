"""Device memory shared with other libraries, in the order of their streams (M2, Q5).

The device says of its memory that it is CUDA's; the other library is
`foreign_library`, whose tensors are numpy arrays that nobody reads on the host.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Latch, collect_in_threads
from foreign_library import Library
from interop_harness import READ_ONLY, Producer, assert_soon, look_into, memory_of

import hal
from hal.errors import (
    ArgumentTypeError,
    ExchangeError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)

SIZE = 64
CUDA, ROCM = (2, 0), (10, 0)


def pretend(probe, monkeypatch, where=CUDA):
    """Make a device's memory a GPU's, which the host does not see."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)
    monkeypatch.setattr(probe, "locate", lambda address: where)


@pytest.fixture
def gpu(open_probe, monkeypatch):
    """A device that passes for CUDA's, its probe, and another library on it."""
    device, probe = open_probe()
    pretend(probe, monkeypatch)
    library = Library(probe.inner)
    yield device, probe, library
    library.close()


class Tensor(Producer):
    """A tensor of the other library, whose last work is on a stream of its own."""

    def __init__(self, library, array, *, stream=None, device=CUDA, **options):
        super().__init__(array, device=device, **options)
        self.stream = stream or library.stream()

    def __dlpack__(self, *, stream=None, **asked):
        """Make the consumer's stream wait, as the standard says."""
        self.asked.append({**asked, "stream": stream})
        event = self.stream.record()
        self.stream.native.wait_event(stream, event.handle)
        if asked and not self.accepts_versions:
            message = "unexpected keyword arguments"
            raise TypeError(message)
        return super().__dlpack__()


class CudaArray:
    """An array with ``__cuda_array_interface__`` only."""

    def __init__(self, array, stream=None, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": None,
            "stream": stream,
            **changes,
        }


def foreign(probe, array):
    """Let work touch an array, which is no allocation of hal's."""
    probe.foreign.append((array.ctypes.data, array.nbytes))
    return array


def hold(probe, device, queue=None, value=5):
    """Put a fill behind a latch on a queue; return its buffer and the latch."""
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    latch = Latch()
    probe.hold(latch)
    (queue or device.queue).fill(buffer, value)
    return buffer, latch


def content(buffer):
    """Return the bytes at a buffer's address, whatever its device says of them."""
    return memory_of(buffer.address, buffer.size)


# DLPack, out


@pytest.mark.parametrize("which", ["compute", "upload", "download", "own"])
def test_the_consumers_stream_waits_for_what_was_issued_m2(gpu, which):
    """M2: on whatever queue of the device the work is."""
    device, probe, library = gpu
    queue = device.create_queue() if which == "own" else getattr(device.queues, which)
    buffer, latch = hold(probe, device, queue)
    theirs = library.stream()
    taken = np.zeros(SIZE, np.uint8)
    capsule = buffer.__dlpack__(stream=theirs.handle)
    assert int(look_into(capsule)[0]["data"]) == buffer.address
    theirs.copy(taken.ctypes.data, buffer.address, SIZE)
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()
    assert (taken == 5).all()
    assert "adopted stream" not in probe.live()


def test_minus_one_orders_nothing(gpu):
    device, probe, _ = gpu
    buffer, latch = hold(probe, device)
    waits = probe.calls["wait_event"]
    buffer.__dlpack__(stream=-1)
    assert probe.calls["wait_event"] == waits
    assert probe.calls["adopt_stream"] == 0
    latch.open()


@pytest.mark.parametrize(("where", "number"), [(CUDA, 1), (ROCM, 0)])
def test_none_is_the_default_stream_as_the_standard_says(gpu, monkeypatch, where, number):
    device, probe, library = gpu
    pretend(probe, monkeypatch, where)
    buffer, latch = hold(probe, device)
    theirs, adopted = library.stream(), []
    original = probe.adopt_stream

    def adopt(handle):
        adopted.append(handle)
        return original(theirs.handle)

    monkeypatch.setattr(probe, "adopt_stream", adopt)
    buffer.__dlpack__()
    assert adopted == [number]
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()


def test_what_nobody_has_promised_is_not_waited_for_q1(gpu):
    """Q1: handing out does not block for it; what was ready but queued up is waited for."""
    device, _, library = gpu
    gate = hal.create_semaphore()
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    pending = device.queue.fill(buffer, 1, wait=gate.at(1))
    device.queue.fill(buffer, 2)
    called = device.queues.upload.call(gate.wait, 1, LIMIT)
    behind = device.queues.upload.fill(buffer, 3)
    theirs = library.stream()
    buffer.__dlpack__(stream=theirs.handle)
    theirs.synchronize()
    assert (pending.state, called.done, behind.state) == ("pending", False, "pending")
    gate.signal(1)
    device.wait_idle(LIMIT)


def test_work_that_stands_in_the_backlog_is_waited_for_m2(open_probe, monkeypatch):
    """M2: it goes by itself, and was submitted before."""
    device, probe = open_probe(max_in_flight=1)
    pretend(probe, monkeypatch)
    library = Library(probe.inner)
    buffer, latch = hold(probe, device, value=1)
    last = device.queue.fill(buffer, 7)
    assert last.state == "pending"
    theirs = library.stream()
    handed = threading.Event()

    def hand_out():
        buffer.__dlpack__(stream=theirs.handle)
        handed.set()

    thread = threading.Thread(target=hand_out, daemon=True)
    thread.start()
    assert not handed.wait(0.05)
    latch.open()
    assert handed.wait(LIMIT)
    theirs.synchronize()
    assert (content(buffer) == 7).all()
    library.close()


def test_staged_writes_are_waited_for_m2(open_probe, monkeypatch):
    """M2: the host's part of a transfer, too."""
    device, probe = open_probe(without={"pageable_copies"})
    where = CUDA
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)
    library = Library(probe.inner)
    size = 1 << 18
    buffer = device.allocate(size)
    for value in range(8):
        device.queue.write(buffer, np.full(size, value, np.uint8))
        theirs = library.stream()
        taken = np.zeros(size, np.uint8)
        buffer.__dlpack__(stream=theirs.handle)
        theirs.copy(taken.ctypes.data, buffer.address, size)
        theirs.synchronize()
        assert (taken == value).all()
    library.close()


def test_without_streams_the_host_waits_m2(open_probe, monkeypatch):
    device, probe = open_probe(without={"external_streams"})
    pretend(probe, monkeypatch)
    buffer, latch = hold(probe, device)
    opener = threading.Timer(0.05, latch.open)
    opener.start()
    buffer.__dlpack__(stream=4096)
    assert (content(buffer) == 5).all()
    assert device.queue._ring == type(device.queue._ring)()
    opener.join()
    buffer, latch = hold(probe, device, value=6)
    opener = threading.Timer(0.05, latch.open)
    opener.start()
    assert buffer.__cuda_array_interface__["stream"] is None
    assert (content(buffer) == 6).all()
    opener.join()


@pytest.mark.parametrize("asked", [{"dl_device": (1, 0)}, {"copy": True}])
def test_copies_are_made_of_what_was_issued_m2(gpu, asked):
    device, probe, _ = gpu
    buffer, latch = hold(probe, device, device.queues.upload)
    opener = threading.Timer(0.05, latch.open)
    opener.start()
    capsule = buffer.__dlpack__(max_version=(1, 0), **asked)
    assert (memory_of(int(look_into(capsule)[0]["data"]), SIZE) == 5).all()
    opener.join()


def test_a_failed_operation_hands_out_all_the_same(gpu):
    device, _, library = gpu
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    failed = hal.create_semaphore()
    failed.fail(HalError("broken"))
    device.queue.fill(buffer, 1, wait=failed.at(1))
    buffer.__dlpack__(stream=library.stream().handle)
    buffer.__dlpack__(copy=True)


# The CUDA Array Interface, out


def test_the_interface_names_a_stream_to_wait_for_m2(gpu):
    """M2: one that ends with what was issued; none where all has ended."""
    device, probe, library = gpu
    idle = device.upload(np.zeros(SIZE, np.uint8))
    assert idle.__cuda_array_interface__["stream"] is None
    buffer, latch = hold(probe, device, device.queues.upload)
    number = buffer.__cuda_array_interface__["stream"]
    theirs, taken = library.stream(), np.zeros(SIZE, np.uint8)
    event = library.native.create_event()
    library.native.record_event(event, number)  # what a consumer does with it
    library.native.wait_event(theirs.handle, event)
    theirs.copy(taken.ctypes.data, buffer.address, SIZE)
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()
    assert (taken == 5).all()
    device.wait_idle(LIMIT)
    device.statistics()
    assert buffer.__cuda_array_interface__["stream"] is None
    _, latch = hold(probe, device)
    assert buffer.__cuda_array_interface__["stream"] == number
    latch.open()


def test_the_stream_of_the_interface_is_one_threads_at_a_time(gpu):
    """The probe sees two calls on it at once."""
    device, probe, _ = gpu
    buffer, latch = hold(probe, device)

    def look():
        return {buffer.__cuda_array_interface__["stream"] for _ in range(50)}

    streams = set().union(*collect_in_threads([look] * 4))
    assert len(streams) == 1
    latch.open()


# DLPack, in


@pytest.mark.parametrize("versioned", [True, False])
def test_device_tensors_are_shared_in_order_m2(gpu, versioned):
    """M2: no copy, no wait on the host, and every queue finds the tensor ready."""
    device, probe, library = gpu
    array = foreign(probe, np.zeros(SIZE, np.uint8))
    copies = [device.upload(np.zeros(SIZE, np.uint8)) for _ in range(4)]
    own = device.create_queue(ordered=False)
    theirs, latch = library.held_stream()
    theirs.fill(array.ctypes.data, 9, SIZE)
    tensor = Tensor(library, array, stream=theirs, versioned=versioned)
    buffer = device.from_dlpack(tensor)
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
    assert sorted(tensor.asked[0]) == ["max_version", "stream"]
    assert (buffer.numpy() == 9).all()


def test_a_shared_tensors_owner_lives_until_the_last_use_q5(gpu):
    """Q5: its deleter is called once, after the work of ours that uses it."""
    device, probe, library = gpu
    array = foreign(probe, np.zeros(SIZE, np.uint8))
    tensor = Tensor(library, array)
    buffer = device.from_dlpack(tensor)
    latch = Latch()
    probe.hold(latch)
    work = device.queue.fill(buffer, 3)
    buffer.close()
    del buffer
    gc.collect()
    device.statistics()
    assert tensor.deleted == []
    latch.open()
    work.wait(LIMIT)
    del work
    assert_soon(device, lambda: len(tensor.deleted) == 1)
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


def test_a_tensor_that_fails_leaves_nothing_i7(gpu):
    """I7: the stream that it was given is used again."""
    device, probe, library = gpu

    class Refusing(Tensor):
        def __dlpack__(self, **_):
            message = "requires grad"
            raise BufferError(message)

    for _ in range(8):
        with pytest.raises(BufferError, match="requires grad"):
            device.from_dlpack(Refusing(library, np.zeros(8, np.uint8)))
        gc.collect()
    device.from_dlpack(Tensor(library, np.zeros(8, np.uint8)))
    assert probe.live()["stream"] == 4


def test_streams_for_producers_are_used_again_once_they_are_idle_i4(gpu):
    device, probe, library = gpu
    held, latches = [], []
    for _ in range(3):
        theirs, latch = library.held_stream()
        latches.append(latch)
        held.append(device.from_dlpack(Tensor(library, np.zeros(8, np.uint8), stream=theirs)))
    assert probe.live()["stream"] == 3 + 3
    for latch in latches:
        latch.open()
    assert_soon(device, lambda: len(device._external._free) == 3)
    held.append(device.from_dlpack(Tensor(library, np.zeros(8, np.uint8))))
    assert probe.live()["stream"] == 3 + 3


# The CUDA Array Interface, in


def test_a_cuda_array_is_shared_and_its_stream_waited_for_m2(gpu):
    device, probe, library = gpu
    array = foreign(probe, np.zeros(SIZE, np.uint8))
    copies = [device.upload(np.zeros(SIZE, np.uint8)) for _ in range(3)]
    theirs, latch = library.held_stream()
    theirs.fill(array.ctypes.data, 9, SIZE)
    buffer = device.from_dlpack(CudaArray(array, theirs.handle))
    assert (buffer.address, buffer.dtype, buffer.shape) == (array.ctypes.data, "u1", (SIZE,))
    queues = (device.queue, device.queues.upload, device.queues.download)
    works = [queue.copy(buffer, copy) for queue, copy in zip(queues, copies, strict=True)]
    assert not any(work.done for work in works)
    latch.open()
    for work, copy in zip(works, copies, strict=True):
        work.wait(LIMIT)
        assert (content(copy) == 9).all()
    assert "adopted stream" not in probe.live()


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


def test_a_cuda_arrays_owner_lives_until_the_last_use_q5(gpu):
    device, probe, _ = gpu
    array = foreign(probe, np.zeros(SIZE, np.uint8))
    owner = CudaArray(array)
    reference = weakref.ref(owner)
    buffer = device.from_dlpack(owner)
    del owner
    latch = Latch()
    probe.hold(latch)
    work = device.queue.fill(buffer, 3)
    del buffer
    gc.collect()
    device.statistics()
    assert reference() is not None
    latch.open()
    work.wait(LIMIT)
    del work
    assert_soon(device, lambda: reference() is None)


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
