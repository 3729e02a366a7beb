"""What kinds of memory there are (M1)."""

import pytest

import hal
from hal._memory.settings import MemorySettings
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError, OutOfMemoryError

ALL = hal.BufferUsage.ALL


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
