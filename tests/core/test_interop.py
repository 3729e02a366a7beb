"""Memory shared with other libraries: DLPack both ways, numpy, the buffer protocol (M2)."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    ExchangeError,
    InvalidArgumentError,
    UnimplementedError,
)

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
NUMPY_HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_versions = pytest.mark.skipif(not NUMPY_HAS_VERSIONS, reason="numpy before 2.1")
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"

# What the DLPack standard prints of its structures, written down again as plain offsets: of
# "dltensor" the tensor stands at 0 and the deleter behind it; of the other it stands at 32.
TENSOR = np.dtype(
    {
        "names": ["data", "type", "id", "ndim", "code", "bits", "lanes", "shape", "strides", "off"],
        "formats": ["u8", "i4", "i4", "i4", "u1", "u1", "u2", "u8", "u8", "u8"],
        "offsets": [0, 8, 12, 16, 20, 21, 22, 24, 32, 40],
        "itemsize": 48,
    }
)
PLAIN_DELETER, VERSIONED_DELETER, FLAGS, VERSIONED_TENSOR = 56, 16, 24, 32
READ_ONLY, IS_COPIED = 1, 2

_api = {
    name: ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
    for name, result, *arguments in (
        ("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object),
        ("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
        (
            "PyCapsule_New",
            ctypes.py_object,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
        ),
    )
}
_deleter_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def name_of(capsule):
    return _api["PyCapsule_GetName"](capsule)


def memory_of(address, size):
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


def look_into(capsule):
    """Return a capsule's tensor as a record, its shape, strides and flags."""
    name = name_of(capsule)
    pointer = _api["PyCapsule_GetPointer"](capsule, name)
    start = VERSIONED_TENSOR if name == VERSIONED else 0
    tensor = memory_of(pointer + start, 48).view(TENSOR)[0].copy()
    count = int(tensor["ndim"])
    shape = [memory_of(int(tensor["shape"]), 8 * count).view("i8").tolist() if count else []][0]
    strides = None
    if count and tensor["strides"]:
        strides = memory_of(int(tensor["strides"]), 8 * count).view("i8").tolist()
    flags = int(memory_of(pointer + FLAGS, 8).view("u8")[0]) if name == VERSIONED else None
    return tensor, shape, strides, flags


_kept = []


class Producer:
    """Be a tensor of another library: its structures are laid out here, its deleter counts."""

    def __init__(
        self,
        array,
        *,
        versioned=True,
        flags=0,
        code=None,
        bits=None,
        lanes=1,
        device=(1, 0),
        strides=True,
        major=1,
        offset=0,
    ):
        self.array = array
        self.name = VERSIONED if versioned else PLAIN
        self.device = device
        self.deleted = []
        self.asked = []
        self.accepts_versions = versioned
        self._block = np.zeros(96, np.uint8)
        self._shape = np.array(array.shape, np.int64)
        self._strides = np.array([s // array.itemsize for s in array.strides], np.int64)
        self._deleter = _deleter_type(lambda _: self.deleted.append(threading.get_ident()))
        codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
        start = VERSIONED_TENSOR if versioned else 0
        tensor = self._block[start : start + 48].view(TENSOR)[0]
        tensor["data"] = array.ctypes.data - offset
        tensor["type"], tensor["id"] = device
        tensor["ndim"] = array.ndim
        tensor["code"] = codes[array.dtype.kind] if code is None else code
        tensor["bits"] = 8 * array.itemsize if bits is None else bits
        tensor["lanes"] = lanes
        tensor["shape"] = self._shape.ctypes.data
        tensor["strides"] = self._strides.ctypes.data if strides else 0
        tensor["off"] = offset
        if versioned:
            self._block[:4].view("u4")[0] = major
            self._block[FLAGS : FLAGS + 8].view("u8")[0] = flags
        at = VERSIONED_DELETER if versioned else PLAIN_DELETER
        address = ctypes.cast(self._deleter, ctypes.c_void_p).value
        self._block[at : at + 8].view("u8")[0] = address
        self._name = ctypes.c_char_p(self.name)
        _kept.append(self)  # hal may call the deleter after the test

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        if asked and not self.accepts_versions:
            message = f"unexpected keyword arguments {sorted(asked)}"
            raise TypeError(message)
        return _api["PyCapsule_New"](self._block.ctypes.data, self._name, None)


def settle(device):
    """Let everything that was dropped be given back."""
    gc.collect()
    device.wait_idle(LIMIT)
    device.statistics()


def assert_soon(device, condition):
    """Give back what was dropped until `condition` holds: other threads of hal's help with it."""
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if not device.closed:
            settle(device)
        if condition():
            return
        pause.wait(0.01)
    assert condition()


# Numpy and the buffer protocol


def test_asarray_shares_host_visible_memory_m2(device):
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    array = np.asarray(buffer)
    assert (array.dtype, array.shape, array.ctypes.data) == (np.float32, (2, 3), buffer.address)
    device.queue.fill(buffer, 2.5).wait(LIMIT)
    assert (array == 2.5).all()
    array[1, 2] = 7
    assert buffer.numpy()[1, 2] == 7
    copy = np.array(buffer)
    assert copy.ctypes.data != buffer.address
    assert copy.tolist() == array.tolist()
    as_doubles = np.asarray(buffer, dtype=np.float64)
    assert as_doubles.dtype == np.float64
    assert as_doubles.tolist() == array.tolist()
    assert float(np.sum(buffer)) == array.sum()


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy before 2")
def test_asarray_obeys_copy(device):
    buffer = device.upload(np.arange(6, dtype=np.float32))
    assert np.asarray(buffer, copy=False).ctypes.data == buffer.address
    assert np.asarray(buffer, copy=True).ctypes.data != buffer.address
    with pytest.raises(ValueError, match="copy"):
        np.asarray(buffer, dtype=np.float64, copy=False)


def test_asarray_of_structures_and_scalars(device):
    records = np.array([(1, 0.5), (2, 1.5)], dtype=[("i", "i4"), ("x", "f8")])
    view = np.asarray(device.upload(records))
    assert view.dtype == records.dtype
    assert view.tolist() == records.tolist()
    scalar = np.asarray(device.upload(np.float32(3)))
    assert (scalar.shape, float(scalar)) == ((), 3)
    assert np.asarray(device.upload(np.zeros((0, 4), "f4"))).shape == (0, 4)


def test_a_memoryview_of_a_mapping(device):
    buffer = device.upload(np.arange(6, dtype=np.int16).reshape(2, 3))
    view = memoryview(buffer.map())
    assert (view.format, view.shape, view.tolist()) == ("h", (2, 3), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ is of Python 3.12")
def test_the_buffer_protocol_m2(device):
    buffer = device.upload(np.arange(6, dtype=np.int16).reshape(2, 3))
    with memoryview(buffer) as view:
        assert (view.format, view.shape, view.tolist()) == ("h", (2, 3), [[0, 1, 2], [3, 4, 5]])
        view[1, 2] = 99
    assert buffer.numpy()[1, 2] == 99
    assert bytes(buffer) == buffer.numpy().tobytes()
    buffer.close()
    with pytest.raises(ClosedError):
        memoryview(buffer)


def test_views_keep_the_memory_m2(device):
    buffer = device.upload(np.arange(4, dtype=np.int32))
    array = np.asarray(buffer)
    buffer.close()
    del buffer
    settle(device)
    assert device.statistics().allocations == 1
    assert array.tolist() == [0, 1, 2, 3]
    del array
    assert_soon(device, lambda: device.statistics().allocations == 0)
    with pytest.raises(ClosedError):
        np.asarray(closed_buffer(device))


def closed_buffer(device):
    buffer = device.allocate(16)
    buffer.close()
    return buffer


def hide(probe, monkeypatch):
    """Make a device's memory one that the host does not see, and of no device of DLPack's."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: None)


def test_memory_that_the_host_does_not_see_m2(open_probe, monkeypatch):
    device, probe = open_probe()
    hide(probe, monkeypatch)
    buffer = device.upload(np.arange(4, dtype=np.int32))
    with pytest.raises(TypeError, match=r"not visible to the host.*buffer\.numpy\(\)"):
        np.asarray(buffer)
    with pytest.raises(TypeError):
        memoryview(buffer)
    with pytest.raises(UnimplementedError):
        buffer.map()
    for use in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(ExchangeError, match=r"device memory of cpu:0.*buffer\.numpy\(\)"):
            use()
    assert buffer.numpy().tolist() == [0, 1, 2, 3]


# DLPack, out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 99), (2, 0)], ids=str)
def test_a_capsule_says_what_the_buffer_is_m2(device, dtype, max_version):
    array = np.zeros((2, 3, 4), dtype)
    buffer = device.upload(array)
    capsule = buffer.__dlpack__(max_version=max_version)
    versioned = NUMPY_HAS_VERSIONS and max_version is not None and max_version >= (1, 0)
    assert name_of(capsule) == (VERSIONED if versioned else PLAIN)
    tensor, shape, strides, flags = look_into(capsule)
    assert buffer.__dlpack_device__() == (1, 0)
    assert (tensor["type"], tensor["id"]) == (1, 0)
    assert int(tensor["data"]) + int(tensor["off"]) == buffer.address
    assert shape == [2, 3, 4]
    assert strides in ([12, 4, 1], None)  # none, from a numpy before 2.1, stands for the same
    code = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}[array.dtype.kind]
    assert (tensor["code"], tensor["bits"], tensor["lanes"]) == (code, 8 * array.itemsize, 1)
    assert flags == (0 if versioned else None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_takes_what_we_hand_out_m2(device, dtype):
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    buffer = device.upload(array)
    taken = np.from_dlpack(buffer)
    assert (taken.dtype, taken.shape, taken.ctypes.data) == (
        array.dtype,
        array.shape,
        buffer.address,
    )
    assert (taken == array).all()
    part = np.from_dlpack(buffer.subspan(array.itemsize * 4, array.itemsize * 8))
    assert part.tolist() == array.ravel()[4:12].tolist()
    assert np.from_dlpack(device.upload(np.zeros((0, 3), dtype))).shape == (0, 3)
    assert np.from_dlpack(device.upload(np.ones((), dtype))).tolist() == np.ones((), dtype).tolist()


@pytest.mark.parametrize(
    ("dtype", "match"),
    [
        ([("i", "i4"), ("x", "f4")], "no type for elements"),
        ("M8[s]", "no type for elements"),
        ("S8", "no type for elements"),
        ("V8", "no type for elements"),
        (">i4", "byte order"),
    ],
    ids=str,
)
def test_elements_that_dlpack_lacks(device, dtype, match):
    buffer = device.upload(np.zeros(4, dtype))
    with pytest.raises(ExchangeError, match=match) as caught:
        buffer.__dlpack__()
    assert isinstance(caught.value, BufferError)
    as_bytes = buffer.subspan(0, buffer.size, dtype="u1")
    assert np.from_dlpack(as_bytes).nbytes == buffer.size


def test_copies_are_copies(device):
    buffer = device.upload(np.arange(4, dtype=np.int32))
    capsule = buffer.__dlpack__(copy=True, max_version=(1, 0))
    tensor, shape, _, flags = look_into(capsule)
    assert shape == [4]
    assert int(tensor["data"]) != buffer.address
    assert memory_of(int(tensor["data"]), 16).view("i4").tolist() == [0, 1, 2, 3]
    assert flags == (IS_COPIED if NUMPY_HAS_VERSIONS else None)
    for copy in (False, None):
        shared, *_ = look_into(buffer.__dlpack__(copy=copy))
        assert int(shared["data"]) == buffer.address
    for dl_device in (None, (1, 0), [1, 0]):
        same, *_ = look_into(buffer.__dlpack__(dl_device=dl_device))
        assert int(same["data"]) == buffer.address


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"stream": 1}, InvalidArgumentError, "no streams.*None, not 1"),
        ({"stream": -1}, InvalidArgumentError, "no streams"),
        ({"stream": 1.5}, ArgumentTypeError, "stream"),
        ({"stream": True}, ArgumentTypeError, "stream"),
        ({"max_version": 1}, ArgumentTypeError, "max_version"),
        ({"max_version": (1,)}, ArgumentTypeError, "max_version"),
        ({"max_version": "x"}, ArgumentTypeError, "max_version"),
        ({"dl_device": 2}, ArgumentTypeError, "dl_device"),
        ({"dl_device": (2, 0)}, ExchangeError, r"host memory \(1, 0\).*CUDA \(2, 0\)"),
        ({"copy": 1}, ArgumentTypeError, "copy"),
    ],
    ids=str,
)
def test_what_a_consumer_may_not_ask(device, asked, error, match):
    buffer = device.upload(np.arange(4, dtype=np.int32))
    with pytest.raises(error, match=match):
        buffer.__dlpack__(**asked)


def test_closed_buffers_are_not_handed_out_m2(device):
    buffer = closed_buffer(device)
    for use in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(ClosedError):
            use()


def test_a_consumer_keeps_the_memory_until_its_end_m2(device):
    """M2: as a view, and no longer; a capsule that nobody takes lets it go, too."""
    buffer = device.upload(np.arange(4, dtype=np.int32))
    taken = np.from_dlpack(buffer)
    buffer.close()
    settle(device)
    assert device.statistics().allocations == 1
    assert taken.tolist() == [0, 1, 2, 3]
    del taken
    assert_soon(device, lambda: device.statistics().allocations == 0)
    for versions in ({}, {"max_version": (1, 0)}):
        capsule = device.upload(np.arange(4)).__dlpack__(**versions)
        settle(device)
        assert device.statistics().allocations == 1
        del capsule
        assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumers_tensor_outlives_the_device_m2(open_probe):
    """M2: `close` says that something is still shown; the fixture sees that it goes afterwards."""
    device, probe = open_probe()
    taken = np.from_dlpack(device.upload(np.arange(4, dtype=np.int32)))
    assert len(device.close(LIMIT)) == 1
    assert probe.live() == {"allocation": 1}
    assert taken.tolist() == [0, 1, 2, 3]
    del taken
    gc.collect()


def test_a_consumer_that_lets_go_in_the_middle_of_an_error_m2(device):
    """M2: giving memory back disturbs no exception that is on its way."""

    def fail(_first, _second):
        raise AssertionError

    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            fail(np.from_dlpack(device.upload(np.arange(4))), 1 // 0)
        with pytest.raises(ZeroDivisionError):
            fail(device.upload(np.arange(4)).__dlpack__(), 1 // 0)
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumer_may_let_go_on_any_thread_m2(device):
    taken = [np.from_dlpack(device.upload(np.arange(4))) for _ in range(8)]

    def drop():
        while taken:
            try:
                taken.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumer_may_let_go_at_the_end_of_the_process_m2(run_script):
    done = run_script("""
        import sys, numpy as np, hal
        device = hal.create_device("cpu")
        sys.taken = np.from_dlpack(device.upload(np.arange(4, dtype="i4")))
        sys.capsule = device.upload(np.arange(4)).__dlpack__()
        array = np.arange(4, dtype="f4")
        sys.given = device.from_dlpack(array)
        sys.view = np.asarray(sys.given)
        print(sys.taken.sum(), sys.view.sum())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6 6.0\n", "")


# DLPack, out, of other devices' memory


def pretend(probe, monkeypatch, where):
    """Make a device's memory that of a GPU, as far as DLPack sees it."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)


@pytest.mark.parametrize("where", [(2, 3), (10, 0)])
def test_device_memory_is_handed_out_by_its_address_m2(open_probe, monkeypatch, where):
    """M2: with its device in it, never read by the host, and kept as long as the consumer's."""
    device, probe = open_probe()
    pretend(probe, monkeypatch, where)
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert buffer.__dlpack_device__() == where
    for versions in ({}, {"max_version": (1, 0)}):
        tensor, shape, strides, _ = look_into(buffer.__dlpack__(stream=-1, **versions))
        assert (int(tensor["type"]), int(tensor["id"])) == where
        assert (int(tensor["data"]), shape) == (buffer.address, [2, 3])
        assert strides in ([3, 1], None)
        assert (tensor["code"], tensor["bits"]) == (2, 32)
    capsule = buffer.__dlpack__()
    buffer.close()
    settle(device)
    assert device.statistics().allocations == 1
    del capsule
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_device_memory_is_copied_where_that_is_asked_for(open_probe, monkeypatch):
    device, probe = open_probe()
    pretend(probe, monkeypatch, (2, 0))
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    tensor, shape, _, flags = look_into(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    assert (int(tensor["type"]), shape) == (2, [2, 3])
    assert int(tensor["data"]) != buffer.address
    assert flags == (IS_COPIED if NUMPY_HAS_VERSIONS else None)
    asked = {"dl_device": (1, 0), "max_version": (1, 0)}
    for copy in (None, True):
        tensor, _, _, flags = look_into(capsule := buffer.__dlpack__(copy=copy, **asked))
        assert (tensor["type"], flags) == (1, IS_COPIED if NUMPY_HAS_VERSIONS else None)
        values = memory_of(int(tensor["data"]), 24).view("f4").tolist()
        assert values == [0, 1, 2, 3, 4, 5]
        del capsule
    with pytest.raises(ExchangeError, match="copy=False"):
        buffer.__dlpack__(copy=False, **asked)


@pytest.mark.parametrize(
    ("where", "right", "wrong"),
    [((2, 0), [None, -1, 1, 2, 4096], [0, -2]), ((10, 0), [None, -1, 0, 4096], [1, 2, -2])],
)
def test_streams_are_checked_as_the_standard_says(open_probe, monkeypatch, where, right, wrong):
    device, probe = open_probe()
    pretend(probe, monkeypatch, where)
    buffer = device.upload(np.zeros(4, np.float32))
    for stream in right:
        buffer.__dlpack__(stream=stream)
    for stream in wrong:
        with pytest.raises(InvalidArgumentError, match="stream"):
            buffer.__dlpack__(stream=stream)


def test_the_cuda_array_interface_is_there_where_the_memory_is_cudas(
    open_probe, device, monkeypatch
):
    gpu, probe = open_probe()
    pretend(probe, monkeypatch, (2, 0))
    buffer = gpu.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    interface = buffer.__cuda_array_interface__
    assert {key: interface[key] for key in ("version", "shape", "typestr", "data", "strides")} == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (buffer.address, False),
        "strides": None,
    }
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: (10, 0))
    assert not hasattr(buffer, "__cuda_array_interface__")
    mine = device.upload(np.zeros(4))
    assert not hasattr(mine, "__cuda_array_interface__")
    with pytest.raises(ExchangeError, match=r"host memory \(1, 0\)"):
        _ = mine.__cuda_array_interface__


def test_an_array_that_is_cudas_only_is_refused(device):
    class Array:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012 - as such classes have it

    with pytest.raises(UnimplementedError, match=r"__cuda_array_interface__.*cpu:0"):
        device.from_dlpack(Array())


# DLPack, in


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


def test_numpys_own_arrays_are_shared_m2(device):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    before = sys.getrefcount(array)
    buffer = device.from_dlpack(array, copy=False)
    assert buffer.address == array.ctypes.data
    device.queue.fill(buffer, 0.5).wait(LIMIT)
    assert (array == 0.5).all()
    reference = weakref.ref(array)
    del array
    settle(device)
    assert reference() is not None
    assert (buffer.map() == 0.5).all()
    array = reference()
    buffer.close()
    assert_soon(device, lambda: sys.getrefcount(array) == before)


@pytest.mark.parametrize("versioned", [True, False])
def test_the_deleter_is_called_once_after_the_last_use_m2(open_probe, latch, versioned):
    """M2: not while work is unretired, nor while a part or a view lives; once, and then."""
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
    device.statistics()
    assert producer.deleted == []
    view = part.map()
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
    """M2: it is called under no lock of ours."""
    seen = []
    producer = Producer(np.arange(8, dtype=np.int32))
    producer._deleter = _deleter_type(
        lambda _: seen.append((device.statistics().bytes_now, device.allocate(64).size))
    )
    address = ctypes.cast(producer._deleter, ctypes.c_void_p).value
    producer._block[VERSIONED_DELETER : VERSIONED_DELETER + 8].view("u8")[0] = address
    buffer = device.from_dlpack(producer)
    del buffer
    assert_soon(device, lambda: seen)
    assert [size for _, size in seen] == [64]


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


def test_buffers_go_from_device_to_device_by_dlpack_m2(device, second_device):
    buffer = device.upload(np.arange(8, dtype=np.int32))
    other = second_device.from_dlpack(buffer)
    assert other.address == buffer.address
    second_device.queue.fill(other, 9).wait(LIMIT)
    assert (buffer.numpy() == 9).all()
    buffer.close()
    settle(device)
    assert device.statistics().allocations == 1
    assert (other.numpy() == 9).all()
    del other
    settle(second_device)
    assert_soon(device, lambda: device.statistics().allocations == 0)


STRIDED = {
    "transposed": lambda: np.arange(12, dtype="f4").reshape(3, 4).T,
    "columns": lambda: np.arange(12, dtype="f4").reshape(3, 4)[:, :2],
    "every other": lambda: np.arange(12, dtype="f4")[::2],
    "backwards": lambda: np.arange(12, dtype="f4")[::-1],
    "broadcast": lambda: np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 4), (0, 8)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided_tensors_are_refused_with_advice(device, name):
    producer = Producer(STRIDED[name]())
    with pytest.raises(InvalidArgumentError, match=r"strides.*ascontiguousarray.*copy=True"):
        device.from_dlpack(producer)
    with pytest.raises(ExchangeError, match="strides"):
        device.from_dlpack(producer, copy=False)
    assert_soon(device, lambda: len(producer.deleted) == 2)
    copied = device.from_dlpack(producer, copy=True)
    assert copied.numpy().tolist() == producer.array.tolist()
    assert_soon(device, lambda: len(producer.deleted) == 3)


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


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_empty_tensors(device, shape):
    producer = Producer(np.zeros(shape, "f4"))
    buffer = device.from_dlpack(producer)
    assert (buffer.shape, buffer.size, buffer.dtype) == (shape, 0, np.float32)
    assert_soon(device, lambda: len(producer.deleted) == 1)


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


def test_a_read_only_tensor_is_a_read_only_buffer_m2(device):
    producer = Producer(np.arange(4, dtype=np.int32), flags=READ_ONLY)
    buffer = device.from_dlpack(producer)
    assert buffer.address == producer.array.ctypes.data
    assert buffer.access == "read"
    assert not buffer.map("read").flags.writeable
    assert not np.asarray(buffer).flags.writeable
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
    copy = device.allocate(16)
    device.queue.copy(buffer, copy).wait(LIMIT)
    assert copy.numpy(np.int32).tolist() == [0, 1, 2, 3]
    for write in (
        lambda: device.queue.fill(buffer, 0),
        lambda: device.queue.copy(copy, buffer),
        lambda: device.queue.update(buffer.subspan(0, 4), b"abcd"),
        buffer.map,
    ):
        with pytest.raises(InvalidArgumentError, match="must not be written"):
            write()
    assert device.from_dlpack(producer, copy=True).access == "all"
    assert producer.array.tolist() == [0, 1, 2, 3]


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


CONSTNESS = """
__global__ void HAL_BLOCK(4) add(const int *x, int *y) { y[threadIdx.x] += x[threadIdx.x]; }
"""


def test_kernels_only_read_a_read_only_buffer_c5(device):
    """C5: it is an argument for a pointer to const, and for no other."""
    kernel = device.compile(CONSTNESS)["add"]
    producer = Producer(np.arange(4, dtype=np.int32), flags=READ_ONLY)
    x, y = device.from_dlpack(producer), device.upload(np.ones(4, np.int32))
    device.queue.dispatch(kernel, grid=1, args=(x, y)).wait(LIMIT)
    assert y.numpy().tolist() == [1, 2, 3, 4]
    with pytest.raises(InvalidArgumentError, match=r"'y'.*must not be written"):
        device.queue.dispatch(kernel, grid=1, args=(y, x))
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="'y'"):
        commands.dispatch(kernel, grid=1, args=(y, x))
    assert producer.array.tolist() == [0, 1, 2, 3]


# What is refused


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"code": 4, "bits": 16}, "bfloat16, 16 bits.*integers"),
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
    """Be a tensor whose ``__dlpack__`` returns something else."""

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
    other = _api["PyCapsule_New"](1, None, None)
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


def test_a_closed_device_takes_no_tensor():
    with hal.create_device("cpu") as device:
        pass
    producer = Producer(np.arange(4))
    with pytest.raises(ClosedError):
        device.from_dlpack(producer)
    assert producer.asked == []


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
    with pytest.raises(ExchangeError, match="bfloat16"):
        device.from_dlpack(torch.ones(4, dtype=torch.bfloat16))
    with pytest.raises(InvalidArgumentError, match=r"tensor\.contiguous\(\)"):
        device.from_dlpack(torch.ones(3, 4).T)
    with pytest.raises(BufferError):
        device.from_dlpack(torch.ones(3, requires_grad=True))
