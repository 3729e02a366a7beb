"""Transfers: what they bring, when host arrays may change, and how they fail."""

import asyncio

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.flow import Flow


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


# Host arrays: see test_host_arrays.py


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


@pytest.mark.parametrize("way", ["fill", "read", "write", "copy from", "copy to"])
def test_small_integers_of_numpy_do_not_overflow(flow, gate, way):
    """The range that is waited for is the one that is used."""
    one = np.uint8
    buffer, other = flow.from_host(np.ones(1000, np.uint8)), flow.allocate(1000)
    array = np.zeros(100, np.uint8)
    {
        "fill": lambda: flow.fill(buffer, 2, offset=one(200), size=one(100), wait=gate.at(1)),
        "read": lambda: flow.read(buffer, array, offset=one(200), wait=gate.at(1)),
        "write": lambda: flow.write(buffer, array, offset=one(200), wait=gate.at(1)),
        "copy from": lambda: flow.copy(
            buffer, other, source_offset=one(200), size=one(100), wait=gate.at(1)
        ),
        "copy to": lambda: flow.copy(
            other, buffer, target_offset=one(200), size=one(100), wait=gate.at(1)
        ),
    }[way]()
    after = flow.fill(buffer, 9, offset=290, size=1, queue="upload")
    assert after.state == "pending"
    gate.signal(1)
    after.wait(LIMIT)


@pytest.mark.parametrize("hold", [None, True, False])
@pytest.mark.parametrize("count", [16, 1 << 20])
def test_arrays_of_other_elements_are_not_written_m1(flow, hold, count):
    """A queue refuses them as well: their bytes would be other numbers."""
    buffer = flow.from_host(np.zeros(count, np.float32))
    for dtype in (np.int32, np.float64):
        wrong = np.ones(buffer.size // np.dtype(dtype).itemsize, dtype)
        with pytest.raises(ArgumentTypeError, match="and the buffer of float32"):
            flow.write(buffer, wrong, hold=hold)
        with pytest.raises(ArgumentTypeError, match="and the buffer of float32"):
            flow.from_host(wrong, buffer)
    flow.write(buffer, np.zeros(buffer.size, np.uint8), hold=hold).wait(LIMIT)
    flow.write(buffer.view(np.int32), np.ones(count, np.int32), hold=hold).wait(LIMIT)
    assert (buffer.view(np.uint32).numpy(timeout=LIMIT) == 1).all()


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
        lambda: flow.fill(buffer, 1, offset=1.0),
        lambda: flow.fill(buffer, 1, offset=np.array([1, 2])),
        lambda: flow.fill(buffer, 1, size="4"),
        lambda: flow.copy(buffer, buffer, source_offset=True),
        lambda: Flow(device, chunk=0),
        lambda: Flow(device, snapshot=-1),
    ):
        with pytest.raises((InvalidArgumentError, ArgumentTypeError)):
            wrong()
    assert len(buffer.used) == 0
