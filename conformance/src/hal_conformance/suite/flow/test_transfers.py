"""Transfers: host to device, back, and between devices."""

import numpy as np
import pytest

from hal.flow import Flow
from hal_conformance.suite.support import LIMIT, pattern

SIZES = [0, 1, 999, 1000, 5003, (1 << 20) + 3]


@pytest.mark.ordering
@pytest.mark.parametrize("size", SIZES)
def test_an_array_comes_back_as_it_went_q4(flow, size):
    """Q4: a flow moves arrays of any size to the device and back."""
    array = pattern(size)
    assert np.array_equal(flow.from_host(array).numpy(timeout=LIMIT), array)
    shaped = np.arange(12, dtype=np.int16).reshape(3, 4)
    back = flow.to_host(flow.from_host(shaped)).result(LIMIT)
    assert back.dtype == shaped.dtype
    assert back.tolist() == shaped.tolist()


@pytest.mark.parametrize("size", [16, 1 << 18])
def test_a_taken_array_may_change_at_once_q4(flow, gate, size):
    """Q4: a flow's write takes the bytes during the call, whatever it waits for."""
    array, buffer = pattern(size), flow.allocate(size)
    flow.write(buffer, array, wait=gate.at(1))
    array[:] = 0
    gate.signal(1)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(size))


def test_a_held_array_cannot_change_until_it_was_read_m1(flow, gate):
    """M1: a large array is not copied, but read-only until the transfer has ended."""
    array, buffer = pattern(1 << 16), flow.allocate(1 << 16)
    write = flow.write(buffer, array, hold=True, wait=gate.at(1))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    gate.signal(1)
    write.wait(LIMIT)
    array[0] = 1
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(1 << 16))


@pytest.mark.ordering
@pytest.mark.parametrize("size", SIZES)
def test_devices_copy_through_the_host_in_pieces_q4(relay, second_device, size):
    """Q4: between any two devices, of one backend or two, a buffer of any size."""
    there = relay.device_to_device(relay.from_host(pattern(size)), second_device)
    assert there.device is second_device
    back = relay.device_to_device(there, relay.devices[0])
    assert np.array_equal(back.numpy(timeout=LIMIT), pattern(size))


@pytest.mark.feature("peer_access")
def test_peers_copy_directly_q4(device, second_device):
    """Q4: a flow over devices that reach each other copies in one operation."""
    seen = []
    with Flow(device, second_device, trace=lambda done, waits: seen.append(done)) as flow:
        source = flow.from_host(pattern(5000))
        there = flow.device_to_device(source, second_device)
        assert np.array_equal(there.numpy(timeout=LIMIT), pattern(5000))
        assert [each.queue for each in seen[1:2]] == [device.queues.download]


def test_devices_wait_for_each_other_s3(relay, second_device, gate):
    """S3: what one device writes the other reads after it, and overwrites after that."""
    source = relay.from_host(pattern(3000, 1))
    target = relay.from_host(pattern(3000, 2), second_device)
    relay.wait_idle(LIMIT)
    relay.fill(source, 7, wait=gate.at(1))
    copy = relay.copy(source, target)
    late = relay.fill(source, 9)
    read = relay.to_host(target)
    assert {each.state for each in (copy, late, read.submission)} == {"pending"}
    gate.signal(1)
    assert (read.result(LIMIT) == 7).all()
    assert (source.numpy(timeout=LIMIT) == 9).all()
