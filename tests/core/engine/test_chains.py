"""Chains of operations over queues of several devices retire in as many steps as they are long."""

from core_harness import LIMIT

import hal
from hal._engine import retiring


def test_a_chain_over_two_devices_asks_each_event_a_few_times(device, second_device, monkeypatch):
    """Events are not queried again for each dependent, which would double the queries each step."""
    asked = []
    query = retiring.query
    monkeypatch.setattr(
        retiring, "query", lambda operation: (asked.append(operation), query(operation))[1]
    )
    devices, length = (device, second_device), 24
    buffers = [each.allocate(64) for each in devices]
    gate, out = hal.create_semaphore(), hal.create_semaphore()
    wait = gate.at(1)
    for number in range(length):
        queue = devices[number % 2].create_queue()
        signal = [out.at(1)] if number == length - 1 else []
        wait = queue.fill(buffers[number % 2], 1, wait=wait, signal=signal)
    gate.signal(1)
    for each in devices:  # all have ended natively, and nobody has asked
        for queue in each._context.queues:
            each._native.synchronize_stream(queue._stream)
    asked.clear()
    assert out.query() == 1
    assert len(asked) <= 4 * length
    wait.wait(LIMIT)
