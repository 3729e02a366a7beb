"""Recordings that use two devices of one driver (C1): the feature ``peer_access``."""

import numpy as np
import pytest

from hal.errors import CancelledError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, pattern

pytestmark = pytest.mark.feature("peer_access")
SIZE = 4096


@pytest.mark.parametrize("size", [1, 255, SIZE, (1 << 20) + 1])
def test_copies_between_devices_are_recorded_c1(device, second_device, queue, lowering, size):
    """C1: there and back, with offsets, behind and before commands of the recording's device."""
    first = device.allocate(size + 16)
    second = second_device.upload(np.zeros(size + 16, np.uint8))
    back = device.upload(np.zeros(size, np.uint8))
    data = pattern(size + 16, 1)
    with device.record(command_buffer=lowering) as commands:
        commands.update(first, data)
        commands.barrier()
        commands.copy(first, second, source_offset=3, target_offset=5, size=size)
        commands.barrier()
        commands.copy(second, back, source_offset=5, size=size)
    for _ in range(2):
        queue.execute(commands).wait(LIMIT)
        assert np.array_equal(back.numpy(timeout=LIMIT), data[3 : 3 + size])
        edges = second.numpy(timeout=LIMIT)
        assert not edges[:5].any()
        assert not edges[5 + size :].any()
        queue.fill(back, 0).wait(LIMIT)


def test_copies_to_another_device_take_bindings_c3(device, second_device, queue, lowering):
    """C3: a slot stands for memory of the recording's device, and for no other's."""
    target = second_device.upload(np.zeros(SIZE, np.uint8))
    with device.record(slots=1, hazards="auto", command_buffer=lowering) as commands:
        commands.copy(commands.slots[0], target, size=SIZE)
    for seed in range(3):
        queue.execute(commands, bindings=[device.upload(pattern(SIZE, seed))]).wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(SIZE, seed))
    with pytest.raises(InvalidArgumentError, match="slot 0"):
        queue.execute(commands, bindings=[target])


def test_closing_the_other_device_cancels_what_was_not_issued_q6(
    device, queue, open_device, gate, lowering
):
    """Q6: of a recording as of a copy; later executions fail, too."""
    owner = open_device()
    source, target = owner.upload(pattern(SIZE)), device.upload(np.zeros(SIZE, np.uint8))
    with device.record(command_buffer=lowering) as commands:
        commands.copy(source, target)
    pending = queue.execute(commands, wait=gate.at(1))
    owner.close(LIMIT)
    assert pending.state == "cancelled"
    gate.signal(1)
    with pytest.raises(CancelledError):
        queue.execute(commands).wait(LIMIT)
    assert not target.numpy(timeout=LIMIT).any()


def test_a_third_devices_recording_does_not_copy_c1(device, second_device, open_device):
    """C1: it is on neither side."""
    third = open_device()
    with pytest.raises(InvalidArgumentError, match="one of those"):
        third.record().copy(device.allocate(16), second_device.allocate(16))
