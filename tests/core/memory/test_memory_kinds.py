"""What memory may be used for, who may look into it, and what kinds there are (M1, M2)."""

from __future__ import annotations

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal._memory.settings import MemorySettings
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError, OutOfMemoryError

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
    assert [heap.memory for heap in heaps] == ["device", "host", "managed"]
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
    for memory in ("device", "host", "managed"):
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
