"""Tensors of other libraries taken as buffers, and those that are refused (M2)."""

import ctypes
import gc

import numpy as np
import pytest
from core_harness import LIMIT
from interop_harness import (
    DTYPES,
    IS_COPIED,
    NUMPY_HAS_VERSIONS,
    READ_ONLY,
    VERSIONED_DELETER,
    Producer,
    assert_soon,
    deleter_type,
    look_into,
    python_api,
    settle,
)

from hal._buffers import dlpack
from hal.errors import ArgumentTypeError, ExchangeError, InvalidArgumentError

needs_versions = pytest.mark.skipif(not NUMPY_HAS_VERSIONS, reason="numpy before 2.1")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("versioned", [True, False])
def test_tensors_are_shared_m2(device, dtype, versioned):
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    producer = Producer(array, versioned=versioned)
    buffer = device.from_dlpack(producer)
    assert (buffer.address, buffer.dtype, buffer.shape) == (
        array.ctypes.data,
        array.dtype,
        (2, 3, 4),
    )
    assert buffer.device is device
    assert (buffer.numpy() == array).all()
    asked = [{"max_version": (1, 0)}] + ([] if versioned else [{}])
    assert producer.asked == asked
    other = device.allocate(array.nbytes, dtype=array.dtype)
    device.queue.copy(buffer, other).wait(LIMIT)
    device.queue.fill(buffer.subspan(0, buffer.size, dtype="u1"), 1).wait(LIMIT)
    assert (array.view("u1") == 1).all()
    device.queue.copy(other, buffer).wait(LIMIT)
    assert array.tolist() == np.arange(24).astype(dtype).reshape(2, 3, 4).tolist()


@pytest.mark.parametrize("versioned", [True, False])
def test_the_deleter_is_called_once_after_the_last_use_m2(open_probe, latch, versioned):
    """M2: it is not called while work is unretired or a part or view lives, and then once."""
    device, probe = open_probe()
    producer = Producer(np.arange(8, dtype=np.int32), versioned=versioned)
    probe.foreign.append((producer.array.ctypes.data, 32))
    buffer = device.from_dlpack(producer)
    part = buffer.subspan(4, 8)
    probe.hold(latch)
    copied = device.allocate(32)
    work = device.queue.copy(buffer, copied)
    buffer.close()
    del buffer
    gc.collect()
    device.trim(1 << 40)
    assert producer.deleted == []
    view = part.map(wait=())
    del part
    latch.open()
    work.wait(LIMIT)
    del work
    settle(device)
    assert producer.deleted == []
    assert view.tolist() == [1, 2]
    assert copied.numpy(np.int32).tolist() == list(range(8))
    del view
    assert_soon(device, lambda: len(producer.deleted) == 1)
    device.close(LIMIT)
    gc.collect()
    assert len(producer.deleted) == 1


def test_the_deleter_is_called_by_close_m2(open_probe):
    """M2: a buffer that is still there does not keep it, a view does."""
    device, _ = open_probe()
    producers = [Producer(np.arange(8, dtype=np.int32)) for _ in range(2)]
    first, second = map(device.from_dlpack, producers)
    view = second.map()
    device.close(LIMIT)
    assert_soon(device, lambda: [len(each.deleted) for each in producers] == [1, 0])
    assert view.tolist() == list(range(8))
    del first, second, view
    assert_soon(device, lambda: [len(each.deleted) for each in producers] == [1, 1])


def test_a_deleter_may_use_hal_m2(device):
    """M2: the deleter is called while hal holds no lock."""
    seen = []
    producer = Producer(np.arange(8, dtype=np.int32))
    producer._deleter = deleter_type(
        lambda _: seen.append((device.statistics().bytes_now, device.allocate(64).size))
    )
    address = ctypes.cast(producer._deleter, ctypes.c_void_p).value
    producer._block[VERSIONED_DELETER : VERSIONED_DELETER + 8].view("u8")[0] = address
    buffer = device.from_dlpack(producer)
    del buffer
    assert_soon(device, lambda: seen)
    assert [size for _, size in seen] == [64]


def test_the_deleter_is_called_whoever_refers_to_the_tensor_still_m2(device, monkeypatch):
    """M2: where hal gives the memory back.

    Without the interpreter lock another thread's reference may be counted later, in the middle of
    a call of hal's, where a deleter could not use hal.
    """
    kept = []
    take = dlpack.take_capsule
    monkeypatch.setattr(dlpack, "take_capsule", lambda *of: kept.append(take(*of)) or kept[0])
    producer = Producer(np.arange(8, dtype=np.int32))
    buffer = device.from_dlpack(producer)
    del buffer
    assert_soon(device, lambda: len(producer.deleted) == 1)
    kept.clear()
    settle(device)
    assert len(producer.deleted) == 1


def test_one_tensor_may_be_given_twice_m2(device):
    array = np.arange(8, dtype=np.int32)
    producers = [Producer(array), Producer(array)]
    first, second = map(device.from_dlpack, producers)
    assert first.address == second.address
    first.close()
    assert_soon(device, lambda: [len(each.deleted) for each in producers] == [1, 0])
    device.queue.fill(second, 3).wait(LIMIT)
    assert (array == 3).all()
    del first, second
    assert_soon(device, lambda: [len(each.deleted) for each in producers] == [1, 1])


@pytest.mark.parametrize("told", [None, 3, (1,), ("a", 0), (1, 0, 0), (float("inf"), 0)])
def test_a_producer_that_names_no_device_is_refused(device, told):
    producer = Producer(np.arange(4, dtype="f4"))
    producer.__class__ = type("Odd", (Producer,), {"__dlpack_device__": lambda self: told})
    with pytest.raises(ExchangeError, match=r"from_dlpack of Odd: its __dlpack_device__ returned"):
        device.from_dlpack(producer)
    assert producer.asked == []


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4, dtype="f4").reshape(1, 4, 1),
        np.arange(12, dtype="f4").reshape(3, 4)[1:2, :],
        np.arange(12, dtype="f4").reshape(3, 4)[2, 1:3],
        np.asfortranarray(np.arange(4, dtype="f4").reshape(4, 1)),
        np.lib.stride_tricks.as_strided(np.arange(4, dtype="f4"), (1, 4, 1), (400, 4, 12)),
        np.float32(7),
    ],
    ids=["ones", "row", "part of a row", "column", "far apart", "scalar"],
)
@pytest.mark.parametrize("strides", [True, False])
def test_strides_of_axes_of_one_do_not_matter(device, array, strides):
    producer = Producer(np.asarray(array), strides=strides)
    buffer = device.from_dlpack(producer, copy=False)
    assert buffer.shape == array.shape
    assert buffer.numpy().tolist() == array.tolist()


def test_byte_offsets_count(device):
    array = np.arange(8, dtype=np.int32)
    buffer = device.from_dlpack(Producer(array[4:], offset=16))
    assert buffer.address == array.ctypes.data + 16
    assert buffer.numpy().tolist() == [4, 5, 6, 7]


def test_misaligned_tensors_are_copied(device):
    raw = np.arange(64, dtype=np.uint8)
    at = next(i for i in range(8) if (raw.ctypes.data + i) % 8 == 2)
    for dtype in ("u1", "i4", "f8"):
        array = raw[at : at + 32].view(dtype)
        buffer = device.from_dlpack(array)
        assert buffer.address != array.ctypes.data
        assert buffer.numpy().tolist() == array.tolist()
        with pytest.raises(ExchangeError, match="multiple of"):
            device.from_dlpack(array, copy=False)


@needs_versions
def test_read_only_goes_through_m2(device):
    """M2: out of numpy, through a buffer, into numpy."""
    array = np.arange(4, dtype=np.int32)
    array.flags.writeable = False
    buffer = device.from_dlpack(array)
    assert buffer.access == "read"
    assert look_into(buffer.__dlpack__(max_version=(1, 0)))[3] == READ_ONLY
    taken = np.from_dlpack(buffer)
    assert taken.ctypes.data == array.ctypes.data
    assert not taken.flags.writeable
    with pytest.raises(ExchangeError, match=r"read-only.*max_version.*copy=True"):
        buffer.__dlpack__()
    _, _, _, flags = look_into(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    assert flags == IS_COPIED


# What is refused


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"code": 2, "bits": 8}, "8 bits"),
        ({"code": 10, "bits": 8}, "type code 10"),
        ({"code": 3, "bits": 64}, "opaque"),
        ({"lanes": 4}, "4 lanes"),
        ({"bits": 4}, "4 bits"),
        ({"major": 2}, "DLPack 2, and hal speaks 1"),
    ],
    ids=str,
)
def test_tensors_that_numpy_has_no_type_for(device, given, match):
    """They are left as they were: the capsule is not used up, and its deleter is not called."""
    producer = Producer(np.zeros(4, "f4"), **given)
    with pytest.raises(ExchangeError, match=f"from_dlpack of Producer.*{match}"):
        device.from_dlpack(producer)
    settle(device)
    assert producer.deleted == []


class Wrong:
    """A tensor whose ``__dlpack__`` returns something else."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return self.capsule


def test_what_is_no_tensor(device):
    for wrong in (5, "text", None, b"bytes", [1, 2], memoryview(b"abcd")):
        with pytest.raises(ArgumentTypeError, match=r"__dlpack__.*device\.upload"):
            device.from_dlpack(wrong)
    other = python_api["PyCapsule_New"](1, None, None)
    for capsule, match in ((5, "int"), (None, "NoneType"), (other, "PyCapsule")):
        with pytest.raises(ArgumentTypeError, match=f"__dlpack__ returned {match}"):
            device.from_dlpack(Wrong(capsule))
    used = np.arange(4).__dlpack__()
    buffer = device.from_dlpack(Wrong(used))
    with pytest.raises(ArgumentTypeError, match="used already"):
        device.from_dlpack(Wrong(used))
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
    for copy in (1, 0, "no"):
        with pytest.raises(ArgumentTypeError, match="copy is True, False or None"):
            device.from_dlpack(np.arange(4), copy=copy)


def test_a_producers_own_error_comes_through(device):
    class Refusing(Producer):
        def __dlpack__(self, **_):
            message = "cannot export a tensor that requires grad"
            raise BufferError(message)

    with pytest.raises(BufferError, match="requires grad"):
        device.from_dlpack(Refusing(np.zeros(4)))


def test_tensors_on_other_devices_come_through_the_host(device):
    class Elsewhere(Producer):
        def __dlpack__(self, **asked):
            self.asked.append(asked)
            if asked.get("dl_device") != (1, 0):
                raise AssertionError(asked)
            return Producer.__dlpack__(self.at_home)

    producer = Elsewhere(np.arange(4, dtype="f4"), device=(2, 1))
    producer.at_home = Producer(np.arange(4, dtype="f4"))
    buffer = device.from_dlpack(producer)
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
    assert producer.asked == [{"max_version": (1, 0), "dl_device": (1, 0)}]
    with pytest.raises(ExchangeError, match=r"CUDA \(2, 1\).*copy=None"):
        device.from_dlpack(producer, copy=False)
    old = Producer(np.arange(4, dtype="f4"), versioned=False, device=(2, 1))
    with pytest.raises(ExchangeError, match=r"CUDA \(2, 1\).*tensor\.cpu\(\)"):
        device.from_dlpack(old)


def test_a_device_of_its_own_memory_copies(open_probe, monkeypatch):
    """A device that cannot use host memory as its own takes a copy, or says that it would."""
    device, probe = open_probe()
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: (2, 0))
    producer = Producer(np.arange(4, dtype=np.int32))
    buffer = device.from_dlpack(producer)
    assert buffer.address != producer.array.ctypes.data
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
    assert_soon(device, lambda: len(producer.deleted) == 1)
    with pytest.raises(ExchangeError, match="cannot use host memory as its own"):
        device.from_dlpack(producer, copy=False)


# Other libraries


def test_torch_both_ways_m2(device):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    buffer = device.from_dlpack(tensor)
    assert buffer.address == tensor.data_ptr()
    device.queue.fill(buffer, 0.25).wait(LIMIT)
    assert (tensor == 0.25).all()
    back = torch.from_dlpack(buffer)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.shape == tensor.shape
    del tensor, buffer
    settle(device)
    assert (back == 0.25).all()
    mine = device.upload(np.arange(6, dtype=np.int64).reshape(2, 3))
    theirs = torch.from_dlpack(mine)
    theirs += 1
    assert mine.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    mine.close()
    settle(device)
    assert theirs.tolist() == [[1, 2, 3], [4, 5, 6]]
    for dtype in (torch.bool, torch.uint8, torch.float16, torch.complex64, torch.float64):
        values = torch.ones(4, dtype=dtype)
        assert (device.from_dlpack(values).numpy() == np.ones(4)).all()
    brain = device.from_dlpack(torch.ones(4, dtype=torch.bfloat16))
    assert brain.view(np.uint16).numpy().tolist() == [0x3F80] * 4
    assert torch.from_dlpack(brain).dtype is torch.bfloat16
    with pytest.raises(InvalidArgumentError, match=r"tensor\.contiguous\(\)"):
        device.from_dlpack(torch.ones(3, 4).T)
    with pytest.raises(BufferError):
        device.from_dlpack(torch.ones(3, requires_grad=True))
