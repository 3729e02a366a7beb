"""Transfers: what they bring, when host arrays may change, and how they fail."""

from __future__ import annotations

import asyncio
import gc
import mmap
import weakref

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError, OperationError
from hal.flow import Flow


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 256, 257])
@pytest.mark.parametrize("chunk", [1, 64, 4096])
def test_any_size_between_devices(device, second_device, size, chunk):
    """None, one, and many more pieces than there is pinned memory for."""
    flow = Flow(device, second_device, chunk=chunk, peers=False)
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    there = flow.device_to_device(flow.from_host(data), second_device)
    assert there.device is second_device
    assert np.array_equal(there.numpy(timeout=LIMIT), data)


def test_shapes_and_types_travel(pair):
    data = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    there = pair.device_to_device(pair.from_host(data), pair.devices[1])
    back = pair.device_to_device(there, pair.from_host(np.zeros(24)))
    assert there.shape == data.shape
    assert np.array_equal(there.numpy(timeout=LIMIT), data)
    assert np.array_equal(back.numpy(timeout=LIMIT), data.reshape(-1))
    assert pair.from_host(3.5).numpy(timeout=LIMIT).shape == ()
    assert np.array_equal(pair.from_host(data.T).numpy(timeout=LIMIT), data.T)


def test_parts_between_devices(pair):
    here = pair.from_host(np.arange(5000, dtype=np.uint8))
    there = pair.from_host(np.zeros(5000, np.uint8), pair.devices[1])
    done = pair.copy(here, there, source_offset=100, target_offset=7, size=3000)
    done.wait(LIMIT)
    expected = np.zeros(5000, np.uint8)
    expected[7:3007] = np.arange(5000, dtype=np.uint8)[100:3100]
    assert np.array_equal(there.numpy(timeout=LIMIT), expected)
    for wrong in ({"size": 6000}, {"target_offset": 4000, "size": 3000}, {"queue": "upload"}):
        with pytest.raises(HalError):
            pair.copy(here, there, **wrong)


def test_both_directions_at_once(pair):
    one, two = pair.devices
    a = pair.from_host(np.full(50_000, 1, np.uint8), one)
    b = pair.from_host(np.full(50_000, 2, np.uint8), two)
    c, d = pair.device_to_device(a, two), pair.device_to_device(b, one)
    assert (c.numpy(timeout=LIMIT) == 1).all()
    assert (d.numpy(timeout=LIMIT) == 2).all()


def test_staged_copies_through_a_ring(open_probe):
    """Devices whose copies of ordinary host memory block, of two drivers."""
    one, _ = open_probe(domain=object(), without={"pageable_copies"})
    two, _ = open_probe(domain=object(), without={"pageable_copies"})
    flow = Flow(one, two, chunk=100_000)
    data = np.random.default_rng(1).integers(0, 256, 1_000_000, np.uint8)
    back = flow.device_to_device(flow.device_to_device(flow.from_host(data), two), one)
    assert np.array_equal(back.numpy(timeout=LIMIT), data)


def test_a_piece_is_not_overwritten_before_it_was_taken(device, second_device, gate):
    one, two = device, second_device
    pair = Flow(one, two, chunk=1000, peers=False)
    data = np.random.default_rng(1).integers(0, 256, 10_000, np.uint8)
    here, there = pair.from_host(data), pair.allocate(10_000, device=two)
    here.used.wait(LIMIT)
    two.queues.upload.barrier(wait=gate.at(1))
    pair.copy(here, there)
    assert one.queues.download.barrier().state == "pending"  # no more than there is room for
    gate.signal(1)
    assert np.array_equal(there.numpy(timeout=LIMIT), data)


@pytest.mark.parametrize("side", [0, 1])
def test_a_failed_piece_fails_the_copy(open_probe, side):
    (one, probe), (two, other) = open_probe(domain=object()), open_probe(domain=object())
    flow = Flow(one, two, chunk=100)
    here = flow.from_host(np.zeros(400, np.uint8))
    here.written.wait(LIMIT)
    if side == 0:
        probe.fail_call(3, names={"copy_to_host"})
    else:
        other.fail_call(3, names={"copy"})
    there = flow.device_to_device(here, two)
    with pytest.raises(HalError):
        there.numpy(timeout=LIMIT)
    there.recover()
    here.recover()
    flow.copy(here, there)
    assert not there.numpy(timeout=LIMIT).any()


def test_peers_copy_directly(open_probe):
    one, probe = open_probe()
    two, other = open_probe()
    assert one.can_access(two)
    for peers in (True, False):
        flow = Flow(one, two, peers=peers)
        there = flow.device_to_device(flow.from_host(np.arange(100)), two)
        assert np.array_equal(there.numpy(timeout=LIMIT), np.arange(100))
        assert (probe.calls["copy_to_host"], probe.calls["copy_peer"]) == (1 - peers, 1)
        # Without that a driver may send it through the host itself.
        assert probe.calls["enable_peer"] == 1
    assert other.calls["copy_peer"] == 0


# Host arrays


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_copied_array_may_change_at_once(flow, gate, size):
    """Also below a view, and in memory that is not numpy's."""
    whole = np.ones(size + 8, np.uint8)
    memory = mmap.mmap(-1, size)
    memory[:] = bytes([3]) * size
    foreign, view = np.frombuffer(memory, np.uint8), whole[8:]
    raw = bytearray([5]) * size
    buffers = [flow.allocate(size) for _ in range(3)]
    for buffer, array in zip(buffers, (view, foreign, raw), strict=True):
        flow.write(buffer, array, wait=gate.at(1))
    whole[:] = foreign[:] = 0
    raw[:] = bytes(size)
    gate.signal(1)
    assert [set(each.numpy(timeout=LIMIT).tolist()) for each in buffers] == [{1}, {3}, {5}]
    del foreign


def test_a_held_array_cannot_be_changed(flow, gate):
    whole = np.ones(1000, np.uint8)
    view = whole[100:]
    buffer = flow.allocate(900)
    done = flow.write(buffer, view, hold=True, wait=gate.at(1))
    for array in (whole, view):
        with pytest.raises(ValueError, match="read-only"):
            array[500] = 7
    gate.signal(1)
    done.wait(LIMIT)
    whole[:] = view[:] = 7
    assert (buffer.numpy(timeout=LIMIT) == 1).all()


def test_an_array_is_held_by_all_its_transfers(flow, gate):
    array, buffer, other = np.ones(1000, np.uint8), flow.allocate(1000), flow.allocate(1000)
    late = flow.write(buffer, array, hold=True, wait=gate.at(1), queue="compute")
    flow.write(other, array, hold=True).wait(LIMIT)
    assert not array.flags.writeable
    gate.signal(1)
    late.wait(LIMIT)
    assert array.flags.writeable


def test_large_arrays_are_held_by_themselves(device, gate):
    flow = Flow(device, snapshot=500)
    small, large = np.ones(500, np.uint8), np.ones(501, np.uint8)
    flow.from_host(small, wait=gate.at(1))
    buffer = flow.from_host(large, wait=gate.at(1))
    assert (small.flags.writeable, large.flags.writeable) == (True, False)
    gate.signal(1)
    buffer.written.wait(LIMIT)  # that includes the array
    assert large.flags.writeable
    flow.close()


def test_a_read_only_array_stays_read_only(flow):
    array = np.ones(1000, np.uint8)
    array.flags.writeable = False
    flow.write(flow.allocate(1000), array, hold=True).wait(LIMIT)
    assert not array.flags.writeable


@pytest.mark.parametrize("way", ["view", "flag", "foreign"])
def test_a_change_of_a_held_array_is_found(flow, gate, way):
    """Through a view that was there before, by force, and where no flag can help."""
    array = np.ones(100_003, np.uint8)
    if way == "foreign":
        array = np.frombuffer(mmap.mmap(-1, 100_003), np.uint8)
    other = array[:]
    buffer = flow.allocate(array.size)
    done = flow.write(buffer, array, hold=True, wait=gate.at(1))
    if way == "flag":
        array.flags.writeable = True
    (array if way == "foreign" else other)[99_999] = 7
    gate.signal(1)
    with pytest.raises(OperationError, match="was changed while it was read"):
        done.wait(LIMIT)
    with pytest.raises(OperationError):
        buffer.numpy(timeout=LIMIT)  # nobody takes it for good
    assert array.flags.writeable
    buffer.recover()
    flow.write(buffer, array).wait(LIMIT)


def test_a_held_array_is_given_back_when_its_transfer_fails(flow):
    array, broken = np.ones(1000, np.uint8), hal.create_semaphore()
    buffer = flow.allocate(1000)
    done = flow.write(buffer, array, hold=True, wait=broken.at(1))
    broken.fail(RuntimeError("no power"))
    with pytest.raises(HalError, match="no power"):
        done.wait(LIMIT)
    flow.wait_idle(LIMIT)
    with pytest.raises(HalError):
        flow.write(flow.allocate(10), array, hold=True)
    assert array.flags.writeable


def test_closing_the_device_gives_held_arrays_back(gate):
    device = hal.create_device("cpu")
    flow, array = Flow(device), np.ones(1000, np.uint8)
    flow.write(flow.allocate(1000), array, hold=True, wait=gate.at(1))
    noticed = hal.create_semaphore()
    device.close(LIMIT)
    # The callbacks of one thread, in order.
    hal.create_semaphore(1).on_reached(1, lambda _: noticed.signal(1))
    noticed.wait(1, LIMIT)
    assert array.flags.writeable
    flow.close()


def test_bytes_are_neither_copied_nor_held(flow, gate, monkeypatch):
    allocated = []
    allocate = hal.Device.allocate
    buffer = flow.allocate(200_000)
    monkeypatch.setattr(
        hal.Device, "allocate", lambda *a, **k: allocated.append(a) or allocate(*a, **k)
    )
    flow.write(buffer, bytes([4]) * 200_000, wait=gate.at(1))
    assert allocated == []
    gate.signal(1)
    assert (buffer.numpy(timeout=LIMIT) == 4).all()


def test_an_array_that_is_being_filled_is_refused(flow, gate):
    buffer, array = flow.from_host(np.ones(100, np.uint8)), np.zeros(100, np.uint8)
    read = flow.read(buffer, array, wait=gate.at(1))
    for part in (array, array[50:]):
        with pytest.raises(InvalidArgumentError, match="still being filled"):
            flow.from_host(part)
    gate.signal(1)
    read.wait(LIMIT)
    flow.from_host(array)


def test_a_source_array_is_dropped_in_the_end(flow):
    array = np.ones(1000, np.uint8)
    gone = weakref.ref(array)
    flow.write(flow.allocate(1000), array, hold=True).wait(LIMIT)
    flow.wait_idle(LIMIT)
    del array
    gc.collect()
    ended = hal.create_semaphore()
    flow.call(ended.signal, 1).wait(LIMIT)
    assert gone() is None or len(gc.get_referrers(gone())) <= 1


def test_downloads_can_be_awaited(flow):
    buffer = flow.from_host(np.arange(6).reshape(2, 3))

    async def main():
        return await flow.to_host(buffer)

    assert asyncio.run(main()).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_files(flow, tmp_path):
    path = tmp_path / "bytes"
    buffer = flow.from_host(np.arange(100, dtype=np.uint8))
    flow.read(buffer, hal.File(path))
    other = flow.allocate(100)
    buffer.used.wait(LIMIT)
    flow.write(other, hal.File(path))
    assert np.array_equal(other.numpy(timeout=LIMIT), np.arange(100))


def test_wrong_arguments(flow, device):
    buffer = flow.allocate(100)
    for wrong in (
        lambda: flow.write(buffer, np.zeros(101, np.uint8)),
        lambda: flow.write(buffer, np.zeros(1, np.uint8), offset=-1),
        lambda: flow.write(buffer, np.zeros(1, object)),
        lambda: flow.write(buffer, 3),
        lambda: flow.write(buffer, device.allocate(4)),
        lambda: flow.from_host(np.array([None])),
        lambda: flow.read(buffer, 3),
        lambda: flow.read(buffer, bytes(10)),
        lambda: Flow(device, chunk=0),
        lambda: Flow(device, snapshot=-1),
    ):
        with pytest.raises((InvalidArgumentError, ArgumentTypeError)):
            wrong()
    assert len(buffer.used) == 0
