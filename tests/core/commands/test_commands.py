"""What executions leave behind (C1)."""

import gc

from core_harness import LIMIT


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
