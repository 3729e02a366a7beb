"""What executions leave behind (C1)."""

import gc

import numpy as np
import pytest
from core_harness import LIMIT

from hal.errors import InvalidArgumentError


def test_a_thousand_executions_are_flat(open_probe):
    """An execution leaves nothing of its own."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    with device.record() as commands:
        commands.fill(buffer, 1)

    def execute(count):
        for _ in range(count):
            last = device.queue.execute(commands)
        last.wait(LIMIT)
        gc.collect()
        ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("hal.")]
        events = probe.live()["event"]
        return len(ours) - events, events  # the pool grows with what is in flight

    execute(1000)
    objects, _ = execute(1000)
    later_objects, later_events = execute(1000)
    assert later_objects - objects < 100
    assert later_events <= device._context.max_in_flight + 64


@pytest.mark.parametrize("where", [None, "upload"])
def test_a_recording_that_an_error_left_says_so_and_never_runs(device, where):
    """Also one that had ended before, in one part or in several."""
    buffer = device.upload(np.zeros(4, np.uint8))
    recording = device.record()

    def fail():
        with recording:
            recording.fill(buffer, 1)
            if where:
                with recording.on(where):
                    recording.fill(buffer, 2)
            recording.end()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(InvalidArgumentError, match="left by an error; record another"):
        device.queue.execute(recording)
    device.wait_idle(LIMIT)
    assert not buffer.numpy().any()
