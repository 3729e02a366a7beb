"""Several devices of one driver (Q4, Q5, Q6): the feature ``peer_access``."""

import gc

import numpy as np
import pytest

import hal
from hal.errors import CancelledError, ClosedError, InvalidArgumentError, UnimplementedError
from hal_conformance.suite.support import LIMIT, pattern

SIZE = 4096


def test_peers_are_there_or_refused_q4(device, second_device, queue):
    """Q4: without the feature, another device's buffer is refused with a way round."""
    assert device.can_access(device)
    if "peer_access" in device.features:
        assert device.can_access(second_device)
        return
    assert not device.can_access(second_device)
    with pytest.raises(UnimplementedError, match="through the host"):
        device.enable_access(second_device)
    with pytest.raises(InvalidArgumentError, match="through the host"):
        queue.copy(second_device.allocate(16), device.allocate(16))


@pytest.mark.ordering
@pytest.mark.feature("peer_access")
@pytest.mark.parametrize("size", [1, 255, SIZE, (1 << 20) + 1])
def test_copies_between_devices_q4(device, second_device, queue, size):
    """Q4: from and to another device, with offsets, in the order of wait lists."""
    first = device.upload(pattern(size + 16, 1))
    second = second_device.upload(np.zeros(size + 16, np.uint8))
    back = device.upload(np.zeros(size, np.uint8))
    there = queue.copy(first, second, source_offset=3, target_offset=5, size=size)
    changed = second_device.queue.fill(second, 0xEE, offset=5, size=1, wait=there)
    here = queue.copy(second, back, source_offset=5, size=size, wait=changed)
    here.wait(LIMIT)
    expected = pattern(size + 16, 1)[3 : 3 + size]
    expected[0] = 0xEE
    assert np.array_equal(back.numpy(timeout=LIMIT), expected)
    edges = second.numpy(timeout=LIMIT)
    assert not edges[:5].any()
    assert not edges[5 + size :].any()


@pytest.mark.feature("peer_access")
def test_either_devices_queue_copies_q4(device, second_device):
    """Q4: and no third one's."""
    source, target = device.upload(pattern(64)), second_device.allocate(64)
    for queue in (device.queue, second_device.queue):
        second_device.queue.fill(target, 0).wait(LIMIT)
        queue.copy(source, target).wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(64))


@pytest.mark.feature("peer_access")
def test_a_third_devices_queue_does_not_copy_q4(device, second_device, open_device):
    """Q4: it is on neither side."""
    third = open_device()
    with pytest.raises(InvalidArgumentError, match="one of those"):
        third.queue.copy(device.allocate(16), second_device.allocate(16))


@pytest.mark.feature("peer_access")
def test_memory_lives_until_the_other_device_has_copied_q5(device, second_device, queue, gate):
    """Q5: its last name goes while the copy is pending, and its owner allocates again."""
    source, target = second_device.upload(pattern(SIZE, 2)), device.allocate(SIZE)
    copied = queue.copy(source, target, wait=gate.at(1))
    source.close()
    del source
    gc.collect()
    second_device.trim()
    others = [second_device.upload(np.zeros(SIZE, np.uint8)) for _ in range(8)]
    gate.signal(1)
    copied.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(SIZE, 2))
    del others


@pytest.mark.feature("peer_access")
def test_closing_the_owner_cancels_what_was_not_issued_q6(device, queue, open_device, gate):
    """Q6: the handle and the signals of the other device's operation; others go on."""
    owner, done = open_device(), hal.create_semaphore()
    source, target = owner.upload(pattern(SIZE)), device.upload(np.zeros(SIZE, np.uint8))
    copied = queue.copy(source, target, wait=gate.at(1), signal=done.at(1))
    behind = queue.fill(target, 3)
    owner.close(LIMIT)
    assert copied.state == "cancelled"
    with pytest.raises(CancelledError):
        done.wait(1, LIMIT)
    behind.wait(LIMIT)
    assert (target.numpy(timeout=LIMIT) == 3).all()
    with pytest.raises(ClosedError):
        queue.copy(source, target)


@pytest.mark.feature("peer_access")
def test_closing_the_owner_waits_for_what_was_issued_q6(device, queue, open_device):
    """Q6: it reads the memory to its end."""
    size = 8 << 20
    for seed in range(4):
        owner = open_device()
        source, target = owner.upload(pattern(size, seed)), device.allocate(size)
        copied = queue.copy(source, target)
        owner.close(LIMIT)
        copied.wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(size, seed))


@pytest.mark.feature("kernels")
@pytest.mark.feature("peer_access")
def test_kernels_use_another_devices_memory_once_enabled_q5(bench, device, open_device, gate):
    """Q5: in place, kept alive, and refused before."""
    guest = open_device()
    kernel = bench.program(guest)["twice"]
    numbers = np.arange(4, dtype=np.int32)
    source, target = device.upload(numbers), guest.upload(np.zeros(4, np.int32))
    with pytest.raises(InvalidArgumentError, match="enable_access"):
        guest.queue.dispatch(kernel, grid=1, block=4, args=(source, target))
    guest.enable_access(device)
    guest.enable_access(device)
    done = guest.queue.dispatch(kernel, grid=1, block=4, args=(source, target), wait=gate.at(1))
    source.close()
    del source
    gc.collect()
    others = [device.upload(numbers + 7) for _ in range(8)]
    gate.signal(1)
    done.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [0, 2, 4, 6]
    del others, kernel
