"""Memory: M1, M2."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal._settings import MemorySettings
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal.native import MemoryType


@pytest.mark.parametrize("memory", ["device", "host", "shared", MemoryType.HOST])
def test_allocate_each_kind_m1(device, memory):
    buffer = device.allocate(100, memory=memory)
    assert buffer.size == 100
    assert buffer.memory == (memory if isinstance(memory, str) else memory.value)
    assert buffer.device is device
    assert (buffer.dtype, buffer.shape) == (np.uint8, (100,))
    assert buffer.address % 256 == 0
    assert not buffer.closed
    assert buffer.numpy(wait=device.queue.fill(buffer, 7)).tolist() == [7] * 100


@pytest.mark.parametrize(
    ("size", "dtype", "shape"),
    [
        (0, "u1", (0,)),
        (16, "f4", (4,)),
        (16, np.float64, (2,)),
        (24, "i4,f8", (2,)),
        (0, "f8", (0,)),
    ],
)
def test_allocate_with_a_dtype(device, size, dtype, shape):
    buffer = device.allocate(size, dtype=dtype)
    assert (buffer.size, buffer.shape, buffer.dtype) == (size, shape, np.dtype(dtype))
    assert buffer.numpy().shape == shape
    assert buffer.numpy().dtype == np.dtype(dtype)


UPLOADS = {
    "vector": np.arange(7, dtype=np.float32),
    "matrix": np.arange(12, dtype=np.int16).reshape(3, 4),
    "fortran order": np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
    "strided": np.arange(20, dtype=np.uint8)[::3],
    "reversed": np.arange(5, dtype=np.uint32)[::-1],
    "scalar": np.array(3.5),
    "empty": np.zeros((3, 0), np.float32),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "half": np.array([1.5, 2.5], np.float16),
    "big endian": np.arange(3, dtype=">i4"),
    "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "datetime": np.array(["2020-01-01"], dtype="M8[s]"),
    "text": np.array(["ab", "c"]),
    "read only": np.frombuffer(b"abcd", np.uint8),
    "list": [1, 2, 3],
    "number": 5,
    "bytes view": memoryview(b"abc"),
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_upload_comes_back_m1(device, name):
    """`numpy` gives what was uploaded: the same dtype, shape and bytes, in C order."""
    given = UPLOADS[name]
    expected = np.asarray(given)
    buffer = device.upload(given)
    result = buffer.numpy()
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()
    assert result.flags.writeable
    assert result.flags.owndata
    assert buffer.size == expected.nbytes


def test_upload_is_ready_on_every_queue(device):
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    for queue in (device.queues.compute, device.queues.download, device.create_queue()):
        buffer = device.upload(data)
        out = np.zeros_like(data)
        queue.read(buffer, out).wait(LIMIT)
        assert (out == data).all()


def test_upload_does_not_keep_the_array(device):
    data = np.arange(4, dtype=np.uint8)
    buffer = device.upload(data)
    data[:] = 9
    assert buffer.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 255, 65537, (8 << 20) + 3])
def test_every_byte_of_a_large_copy(device, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    source, target = device.upload(data), device.allocate(size)
    assert (target.numpy(wait=device.queue.copy(source, target)) == data).all()


def test_numpy_with_a_dtype_is_flat(device):
    buffer = device.upload(np.arange(4, dtype=np.uint32).reshape(2, 2))
    assert buffer.numpy(np.uint8).shape == (16,)
    assert buffer.numpy("u8").tolist() == [1 << 32, 2 + (3 << 32)]
    with pytest.raises(InvalidArgumentError, match="16 bytes"):
        buffer.numpy("V3")


def test_numpy_waits_for_what_it_is_told(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    gate = hal.create_semaphore()
    fill = device.queue.fill(buffer, 3, wait=gate.at(1))
    with pytest.raises(DeadlineExceededError):
        buffer.numpy(wait=fill, timeout=0.02)
    gate.signal(1)
    for wait in (fill, [fill], [gate.at(1), fill], hal.Fence([fill])):
        assert buffer.numpy(wait=wait, timeout=LIMIT).tolist() == [3] * 4


def test_subspans_m2(device):
    """M2: a part shares the memory, has its own bounds, and starts where it says."""
    buffer = device.upload(np.arange(64, dtype=np.uint32))
    part = buffer.subspan(16, 32)
    assert (part.size, part.shape, part.dtype) == (32, (8,), np.uint32)
    assert part.address == buffer.address + 16
    assert part.memory == buffer.memory
    assert part.numpy().tolist() == list(range(4, 12))
    device.queue.fill(part, np.uint32(7), offset=4, size=8).wait(LIMIT)
    assert buffer.numpy()[3:9].tolist() == [3, 4, 7, 7, 7, 8]
    inner = part.subspan(8, 4, dtype=np.uint8)
    assert (inner.address, inner.shape) == (buffer.address + 24, (4,))
    assert buffer.subspan(256, 0).size == 0
    assert buffer.subspan(0, 256).numpy().tolist() == buffer.numpy().tolist()
    with pytest.raises(InvalidArgumentError, match="32"):
        device.queue.fill(part, 1, offset=20, size=16)
    device.queue.copy(part, buffer, size=4, target_offset=0).wait(LIMIT)
    assert buffer.numpy()[0] == 4


def test_copies_that_overlap_are_refused_also_between_parts(device):
    buffer = device.upload(np.arange(16, dtype=np.uint8))
    left, right = buffer.subspan(0, 8), buffer.subspan(4, 8)
    for copy in (
        lambda: device.queue.copy(buffer, buffer),
        lambda: device.queue.copy(buffer, buffer, target_offset=7, size=8),
        lambda: device.queue.copy(left, right),
        lambda: device.queue.copy(right, left),
        lambda: device.queue.copy(buffer, right, source_offset=8, size=5),
    ):
        with pytest.raises(InvalidArgumentError, match="overlap"):
            copy()
    device.queue.copy(buffer, buffer, target_offset=8, size=8).wait(LIMIT)
    device.queue.copy(left, right, size=4, target_offset=4).wait(LIMIT)
    assert buffer.numpy().tolist() == [*range(8), *range(4), *range(4, 8)]


def test_buffers_that_were_closed_m2(device):
    """A closed buffer can be closed again and asked for what it was, and nothing else."""
    buffer = device.upload(np.arange(4, dtype=np.uint8))
    other = device.allocate(4)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert (buffer.size, buffer.dtype, buffer.shape) == (4, np.uint8, (4,))
    assert "closed" in repr(buffer)
    for use in (
        buffer.numpy,
        buffer.map,
        lambda: buffer.subspan(0, 1),
        lambda: buffer.memory,
        lambda: buffer.address,
        lambda: device.queue.fill(buffer, 1),
        lambda: device.queue.update(buffer, b"1"),
        lambda: device.queue.copy(buffer, other),
        lambda: device.queue.copy(other, buffer),
        lambda: device.queue.write(buffer, b"1"),
        lambda: device.queue.read(buffer, bytearray(1)),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_a_buffer_closed_while_it_is_used_m3(device):
    """Work that was submitted before goes on."""
    buffer, target = device.upload(np.full(4, 5, np.uint8)), device.allocate(4)
    gate = hal.create_semaphore()
    copy = device.queue.copy(buffer, target, wait=gate.at(1))
    buffer.close()
    gate.signal(1)
    assert target.numpy(wait=copy).tolist() == [5] * 4


def test_map_is_refused_where_the_host_cannot_see_m2(open_probe, monkeypatch):
    """M2: a clear error which says what to do instead."""
    device, probe = open_probe()
    monkeypatch.setattr(
        type(probe),
        "host_pointer",
        lambda self, address, memory: None if memory is MemoryType.DEVICE else address,
    )
    hidden, seen = device.allocate(4), device.allocate(4, memory="host")
    with pytest.raises(UnimplementedError, match=r"numpy\(\).*memory='host'"):
        hidden.map()
    assert seen.map().shape == (4,)
    assert hidden.numpy(wait=device.queue.fill(hidden, 1)).tolist() == [1] * 4


def test_map_has_the_buffers_type_and_shape_m2(device):
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    view = buffer.map()
    assert (view.dtype, view.shape) == (np.float32, (2, 3))
    assert view.flags.writeable
    view[1, 2] = 50
    assert buffer.numpy()[1, 2] == 50
    assert buffer.subspan(4, 8).map().tolist() == [1, 2]


# Running out of memory, and statistics


def test_out_of_memory_says_what_was_asked_and_what_is_there_m1(device):
    """M1: size, kind, what is free, what hal holds, and the way out; it is a MemoryError."""
    kept = device.allocate(12345)
    huge = 1 << 60
    for memory in ("device", "host", "shared"):
        with pytest.raises(OutOfMemoryError) as caught:
            device.allocate(huge, memory=memory)
        text = str(caught.value)
        assert f"{huge:,} bytes of {memory} memory" in text
        assert "12,345 bytes in 1 allocation" in text
        assert "free" in text
        assert "close buffers" in text
        assert isinstance(caught.value, MemoryError)
        assert caught.value.native_name == "ENOMEM"
    assert device.statistics().bytes_now == 12345
    assert device.allocate(16).numpy().size == 16
    assert kept.size == 12345


def test_out_of_memory_frees_what_nobody_holds_first_m1(open_probe):
    """M1: finished work is retired and what only that held is given back, then it tries again."""
    device, probe = open_probe()
    big = device.allocate(1 << 20)
    running = device.queue.fill(big, 1)
    del big
    for stream in probe.alive["stream"]:
        probe.inner.synchronize_stream(stream)
    gc.collect()
    probe.fail_call(1, OutOfMemoryError("native"), ("allocate",))
    again = device.allocate(1 << 20)
    assert probe.live()["allocation"] == 1
    assert running.state == "done"
    assert again.size == 1 << 20


def test_out_of_memory_twice_raises_m1(open_probe):
    device, probe = open_probe()
    for _ in range(2):
        for number in (1, 2):
            probe.fail_call(
                number, OutOfMemoryError("native", native_name="E", native_code=2), ("allocate",)
            )
        with pytest.raises(OutOfMemoryError, match="native") as caught:
            device.allocate(64)
        assert (caught.value.native_name, caught.value.native_code) == ("E", 2)
    assert "allocation" not in probe.live()
    device.allocate(64)


# Usage and access


ALL = hal.BufferUsage.ALL
USES = {
    "fill": ("TRANSFER_TARGET", "write", lambda device, it, other: device.queue.fill(it, 1)),
    "update": ("TRANSFER_TARGET", "write", lambda device, it, other: device.queue.update(it, b"1")),
    "write": ("TRANSFER_TARGET", "write", lambda device, it, other: device.queue.write(it, b"1")),
    "copy to": ("TRANSFER_TARGET", "write", lambda device, it, other: device.queue.copy(other, it)),
    "copy from": (
        "TRANSFER_SOURCE",
        "read",
        lambda device, it, other: device.queue.copy(it, other),
    ),
    "read": ("TRANSFER_SOURCE", "read", lambda device, it, o: device.queue.read(it, bytearray(1))),
    "numpy": ("TRANSFER_SOURCE", "read", lambda device, it, other: it.numpy()),
    "map": ("MAPPING", None, lambda device, it, other: it.map()),
    "map to read": ("MAPPING", "read", lambda device, it, other: it.map("read")),
    "map to write": ("MAPPING", "write", lambda device, it, other: it.map("write")),
    "map to discard": ("MAPPING", "write", lambda device, it, other: it.map("discard")),
}


@pytest.mark.parametrize("name", USES)
def test_usage_and_access_are_enforced_m1(device, name):
    """M1: an operation is refused that the buffer was not allocated for, and the others are not."""
    needed, right, use = USES[name]
    other = device.allocate(16)
    for flag in hal.BufferUsage:
        buffer = device.allocate(16, usage=ALL & ~flag)
        assert buffer.usage == ALL & ~flag
        for each in (buffer, buffer.subspan(0, 16)):
            if flag.name == needed:
                with pytest.raises(InvalidArgumentError, match=f"BufferUsage.{needed}"):
                    use(device, each, other)
            else:
                use(device, each, other)
    for access in ("all", "read", "write"):
        buffer = device.allocate(16, access=access)
        assert buffer.access == buffer.subspan(4, 4).access == access
        if access in {"all", right}:
            use(device, buffer, other)
        else:
            with pytest.raises(InvalidArgumentError, match="access is without"):
                use(device, buffer, other)
    device.wait_idle(LIMIT)


def test_usage_of_nothing_else_than_one_thing_m1(device):
    source = device.allocate(16, usage=hal.BufferUsage.TRANSFER_SOURCE)
    target = device.allocate(16, usage=hal.BufferUsage.TRANSFER_TARGET)
    device.queue.copy(source, target).wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="TRANSFER_SOURCE"):
        device.queue.copy(target, source)
    assert "TRANSFER_SOURCE" in repr(source)
    assert "read" in repr(device.allocate(1, access="read"))
    assert "BufferUsage" not in repr(device.allocate(1))


def test_bad_usage_and_access_m1(device):
    for usage, access, error, match in (
        (0, "all", InvalidArgumentError, "at least one"),
        (32, "all", InvalidArgumentError, "nothing else"),
        (-1, "all", InvalidArgumentError, "at least one"),
        ("DISPATCH", "all", ArgumentTypeError, "str"),
        (True, "all", ArgumentTypeError, "bool"),
        (ALL, "rw", InvalidArgumentError, "'rw'"),
        (ALL, None, InvalidArgumentError, "None"),
        (ALL, [], InvalidArgumentError, "access"),
    ):
        with pytest.raises(error, match=match):
            device.allocate(16, usage=usage, access=access)
    for access in ("rw", None, 3, []):
        with pytest.raises(InvalidArgumentError, match="access is one of"):
            device.allocate(16).map(access)
    assert device.statistics().allocations == 0


def test_a_view_to_read_is_read_only_m2(device):
    buffer = device.upload(np.arange(4, dtype=np.float32))
    view = buffer.map("read")
    assert view.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    buffer.map("write")[0] = 9
    assert view[0] == 9
    assert not device.allocate(0).map("read").flags.writeable


# What kinds of memory there are


def test_heaps_m1(open_probe):
    device, probe = open_probe(settings=MemorySettings(memory_limit=1 << 30))
    heaps = device.heaps
    assert [heap.memory for heap in heaps] == ["device", "host", "shared"]
    for heap in heaps:
        assert heap.host_visible
        assert heap.coherent
        assert heap.alignment == 256
        assert heap.largest_allocation == 1 << 30
    assert heaps[0].total == probe.info.total_memory
    assert 0 < heaps[0].free <= heaps[0].total
    probe.fail_call(1, OperationError("no"), ("memory_info",))
    assert device.heaps[0].free is None
    hidden, _ = open_probe(without={"host_visible_device_memory"})
    assert [heap.host_visible for heap in hidden.heaps] == [False, True, True]
    assert hidden.heaps[0].largest_allocation == hidden.info.total_memory


def test_query_memory_m1(open_probe):
    """M1: a "no" is an answer, not an error; it agrees with what allocate and map do."""
    device, _ = open_probe(
        without={"host_import", "host_visible_device_memory"},
        settings=MemorySettings(memory_limit=1 << 20),
    )
    for memory in ("device", "host", "shared"):
        answer = device.query_memory(memory=memory, size=3000)
        assert answer.allocatable
        assert answer.block_size == 3072
        assert answer.queues == ("compute", "upload", "download")
        assert answer.mappable == (memory != "device")
        assert not answer.importable
        assert answer.reason == ""
    too_large = device.query_memory(size=2 << 20)
    assert (too_large.allocatable, too_large.queues) == (False, ())
    assert "2,097,152 bytes" in too_large.reason
    with pytest.raises(OutOfMemoryError):
        device.allocate(2 << 20)
    assert not device.query_memory(memory="host", usage=ALL & ~hal.BufferUsage.MAPPING).mappable
    only = device.query_memory(usage=hal.BufferUsage.MAPPING)
    assert not only.allocatable
    assert "not visible" in only.reason
    other, _ = open_probe()
    assert other.query_memory(memory="host").importable
    assert not other.query_memory(memory="device").importable
    for arguments, error in (
        ({"memory": "vram"}, InvalidArgumentError),
        ({"size": -1}, InvalidArgumentError),
        ({"size": "1"}, ArgumentTypeError),
        ({"usage": 0}, InvalidArgumentError),
        ({"access": "no"}, InvalidArgumentError),
    ):
        with pytest.raises(error):
            device.query_memory(**arguments)


# Host memory in place


def wait_until(condition):
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("it did not come about in time")


class Tracked(np.ndarray):
    pass


def test_import_shares_the_arrays_memory_m1(open_probe):
    """M1: no copy, both ways, with dtype and shape."""
    device, probe = open_probe()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = device.import_array(array)
    assert (buffer.dtype, buffer.shape, buffer.memory) == (np.float32, (2, 3), "host")
    device.queue.fill(buffer, 2.5, offset=4, size=8).wait(LIMIT)
    assert array.tolist() == [[0, 2.5, 2.5], [3, 4, 5]]
    array[1, 1] = 7
    assert buffer.numpy()[1, 1] == 7
    assert buffer.map()[1, 1] == 7
    assert buffer.map().ctypes.data == array.ctypes.data
    assert probe.calls["import_host"] == 1
    assert device.statistics().allocations == 0


def test_an_array_can_be_imported_again_at_once_m1(device):
    """M1: the driver pins it once only, and the end of the import before is another thread's."""
    array = np.zeros(4096, np.uint8)
    for value in range(200):
        buffer = device.import_array(array)
        device.queue.fill(buffer, value).wait(LIMIT)
        buffer.close()
        del buffer
    assert (array == 199).all()


@pytest.mark.parametrize("end", ["dropped", "closed", "device closed", "pending", "viewed", "part"])
def test_an_import_ends_once_m1(open_probe, end):
    """M1: the array is kept till the last use, then released, then told, on another thread."""
    device, probe = open_probe()
    array = np.zeros(4096, np.uint8).view(Tracked)
    reference, told = weakref.ref(array), []
    buffer = device.import_array(array, release=lambda: told.append(threading.get_ident()))
    del array
    gate, hold = hal.create_semaphore(), None
    if end == "pending":
        device.queue.fill(buffer, 1, wait=gate.at(1))
    elif end == "viewed":
        hold = buffer.map()
    elif end == "part":
        hold = buffer.subspan(8, 8)
    if end == "closed":
        buffer.close()
    if end != "device closed":
        del buffer
    gc.collect()
    if end in {"pending", "viewed", "part"}:
        device.statistics()
        assert reference() is not None
        assert probe.calls["release_host"] == 0
        assert told == []
    gate.signal(1)
    del hold
    if end == "device closed":
        device.close(LIMIT)
    device.queue.wait_idle(LIMIT)
    wait_until(lambda: told)
    assert told != [threading.get_ident()]
    wait_until(lambda: reference() is None)
    assert probe.calls["release_host"] == 1
    buffer = None
    gc.collect()
    if not device.closed:
        device.statistics()
    assert len(told) == 1


def test_a_read_only_array_gives_a_read_only_buffer_m1(device):
    array = np.arange(16, dtype=np.uint8)
    array.flags.writeable = False
    buffer = device.import_array(array)
    assert buffer.access == "read"
    with pytest.raises(InvalidArgumentError, match="written"):
        device.queue.fill(buffer, 1)
    with pytest.raises(InvalidArgumentError, match="written"):
        buffer.map()
    view = buffer.map("read")
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    assert device.queue.copy(buffer, device.allocate(16)).wait(LIMIT) is None


def test_fills_of_an_import_at_an_odd_address_m1(device):
    """M1: a wide pattern needs an address that is a multiple of it, wherever the array begins."""
    array = np.zeros(64, np.uint8)
    odd = array[1 - array.ctypes.data % 4 :][:32]
    buffer = device.import_array(odd)
    with pytest.raises(InvalidArgumentError, match="multiples of 4"):
        device.queue.fill(buffer, b"abcd")
    with pytest.raises(InvalidArgumentError, match="multiples of 2"):
        device.queue.fill(buffer, b"ab", offset=4, size=8)
    device.queue.fill(buffer, 7).wait(LIMIT)
    assert (odd == 7).all()


def test_what_import_refuses_m1(open_probe):
    device, probe = open_probe()
    for array, release, error, match in (
        (np.zeros((4, 4))[:, 1], None, InvalidArgumentError, "C-contiguous"),
        (np.zeros(0), None, InvalidArgumentError, "one byte"),
        ([1, 2], None, ArgumentTypeError, "list"),
        (np.array([None]), None, ArgumentTypeError, "objects"),
        (np.zeros(4), 3, ArgumentTypeError, "release"),
    ):
        with pytest.raises(error, match=match):
            device.import_array(array, release=release)
    array, told = np.zeros(64, np.uint8), []
    for error in (OperationError, DeviceLostError):
        probe.fail_call(1, error("injected"), ("import_host",))
        if error is OperationError:  # after which it tries once more
            probe.fail_call(2, error("injected again"), ("import_host",))
        with pytest.raises(error, match="injected"):
            device.import_array(array, release=lambda: told.append(1))
    assert told == []
    without, _ = open_probe(without={"host_import"})
    with pytest.raises(UnimplementedError, match=r"upload\(\)"):
        without.import_array(array)


def test_an_import_of_a_lost_device_ends_without_a_native_call_s5(open_probe):
    device, probe = open_probe()
    told = []
    buffer = device.import_array(np.zeros(64, np.uint8), release=lambda: told.append(1))
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queue.fill(buffer, 1)
    del buffer
    wait_until(lambda: told)
    device.close(LIMIT)
    assert probe.calls["release_host"] == 0
    assert told == [1]


def test_a_release_that_raises_is_reported(open_probe, monkeypatch):
    """And ends nothing of ours."""
    device, probe = open_probe()
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    device.import_array(np.zeros(64, np.uint8), release=lambda: 1 / 0).close()
    wait_until(lambda: seen)
    assert seen[0].exc_type is ZeroDivisionError
    assert probe.calls["release_host"] == 1
    device.queue.barrier().wait(LIMIT)


def test_statistics_m1(device):
    """M1: what is allocated now, and at the most; what died is not counted."""
    start = device.statistics()
    assert (start.bytes_now, start.allocations) == (0, 0)
    one, two = device.allocate(1000), device.allocate(24)
    part = one.subspan(0, 10)
    now = device.statistics()
    assert (now.bytes_now, now.bytes_peak, now.allocations) == (1024, 1024, 2)
    one.close()
    assert device.statistics().allocations == 2, "the part holds it"
    part.close()
    now = device.statistics()
    assert (now.bytes_now, now.bytes_peak, now.allocations) == (24, 1024, 1)
    two.close()
    three = device.allocate(8)
    now = device.statistics()
    assert (now.bytes_now, now.bytes_peak, now.allocations) == (8, 1024, 1)
    three.close()
    assert device.statistics().bytes_now == 0


def test_threads_allocate_and_drop(open_probe):
    """Four threads allocate, use and drop; nothing is freed under work, nothing is left."""
    device, probe = open_probe()

    def churn(seed):
        generator = np.random.default_rng(seed)
        for _ in range(80):
            size = int(generator.integers(1, 5000))
            source, target = device.allocate(size), device.allocate(size)
            value = int(generator.integers(0, 256))
            device.queue.fill(source, value)
            copied = device.queue.copy(source, target)
            del source
            assert (target.numpy(wait=copied, timeout=LIMIT) == value).all()

    collect_in_threads([lambda seed=seed: churn(seed) for seed in range(4)])
    device.wait_idle(LIMIT)
    gc.collect()
    assert device.statistics().allocations == 0
    device.trim()
    assert "allocation" not in probe.live()


@pytest.mark.parametrize("size", [1, 255, 256, 257, 4096])
def test_allocations_do_not_overlap(device, size):
    buffers = [device.allocate(size) for _ in range(20)]
    for value, buffer in enumerate(buffers):
        device.queue.fill(buffer, value)
    device.queue.wait_idle(LIMIT)
    for value, buffer in enumerate(buffers):
        assert (buffer.numpy() == value).all()


def test_bad_allocations(device):
    for size, dtype, memory, error, match in (
        (-1, "u1", "device", InvalidArgumentError, "-1"),
        (1.5, "u1", "device", ArgumentTypeError, "float"),
        (True, "u1", "device", ArgumentTypeError, "bool"),
        ("4", "u1", "device", ArgumentTypeError, "str"),
        (None, "u1", "device", ArgumentTypeError, "NoneType"),
        (5, "f4", "device", InvalidArgumentError, "5 bytes"),
        (8, "O", "device", ArgumentTypeError, "objects"),
        (8, "nonsense", "device", ArgumentTypeError, "nonsense"),
        (8, "u1", "vram", InvalidArgumentError, "'vram'"),
        (8, "u1", None, InvalidArgumentError, "'shared'"),
        (8, "u1", [], InvalidArgumentError, "memory"),
    ):
        with pytest.raises(error, match=match):
            device.allocate(size, dtype=dtype, memory=memory)
    assert device.statistics().allocations == 0
    assert device.allocate(np.int64(8)).size == 8
