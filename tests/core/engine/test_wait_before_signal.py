"""Operations that wait for what is submitted or signalled later, across queues (S2, S3, S7)."""

from functools import partial

from core_harness import LIMIT, queues_of, stalled

import hal


def test_work_of_another_domain_is_waited_for_on_the_host(open_probe, latch):
    """S3: no stream waits for an event of a domain that is not its own."""
    device, probe = open_probe(domain=object())
    other, _ = open_probe(domain=object())
    buffer, target = device.allocate(4), other.allocate(4)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1, signal=semaphore.at(1))
    follower = other.queue.fill(target, 2, wait=semaphore.at(1))
    assert follower.state == "pending"
    latch.open()
    follower.wait(LIMIT)  # the probe objects to an event of another domain


def test_work_of_the_same_domain_is_waited_for_on_the_stream(open_probe, latch):
    """Design 5: a recorded point of the same driver is a stream wait, not a host's."""
    device, probe = open_probe()
    buffer = device.allocate(8)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    device.queues.upload.fill(buffer, 1, size=4, signal=semaphore.at(1))
    follower = device.queues.compute.fill(buffer, 2, wait=semaphore.at(1))
    assert follower.state == "issued"
    assert probe.calls["wait_event"] == 1
    again = device.queues.compute.fill(buffer, 3, wait=semaphore.at(1))
    assert again.state == "issued"
    assert probe.calls["wait_event"] == 1, "the stream has waited for it already"
    third = device.queues.download.fill(buffer, 4, wait=[semaphore.at(1), again])
    assert probe.calls["wait_event"] == 3, "another stream has not"
    latch.open()
    third.wait(LIMIT)
    assert buffer.numpy().tolist() == [4] * 8


def test_the_smallest_covering_point_is_waited_for(open_probe, latch):
    """With 1 and 5 recorded, a wait for 1 does not wait for 5's work."""
    device, probe = open_probe()
    buffer = device.allocate(8)
    semaphore, gate = hal.create_semaphore(), hal.create_semaphore()
    five = device.queues.upload.fill(buffer, 5, wait=gate.at(1), signal=semaphore.at(5))
    one = device.queues.download.barrier(signal=semaphore.at(1))
    probe.hold(latch)
    gate.signal(1)
    assert five.state == "issued"
    waiting = device.queues.compute.barrier(wait=semaphore.at(1))
    waiting.wait(LIMIT)
    one.wait(LIMIT)
    assert not five.done
    assert semaphore.query() == 1
    latch.open()


def test_a_consumer_is_not_released_before_its_producer_is_recorded(open_probe):
    """A producer in the middle of its issue has promised, and recorded, nothing."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    semaphore = hal.create_semaphore()
    fill = partial(device.queues.upload.fill, buffer, 1, signal=semaphore.at(1))
    stall, producer = stalled(probe, "record_event", 1, fill)
    consumer = device.queues.compute.fill(buffer, 2, wait=semaphore.at(1))
    assert consumer.state == "pending"
    assert semaphore.query() == 0
    stall.leave.set()
    producer.result()
    consumer.wait(LIMIT)
    assert buffer.numpy().tolist() == [2] * 16


def test_many_rounds_reuse_their_events(open_probe):
    """Events are pooled: 3000 operations over three queues need few native ones."""
    device, probe = open_probe()
    semaphore = hal.create_semaphore()
    queues = queues_of(device)
    for value in range(1, 3001):
        queues[value % 3].barrier(wait=semaphore.at(value - 1), signal=semaphore.at(value))
        if value % 50 == 0:
            semaphore.wait(value, LIMIT)
    assert probe.live()["event"] < 400


def test_a_value_is_reached_over_smaller_ones_that_are_not_yet_s1(open_probe, latch):
    """S1: the value does not fall when smaller ones retire, and promises above it stand."""
    device, probe = open_probe()
    buffer, semaphore = device.allocate(4), hal.create_semaphore()
    probe.hold(latch)
    queues = (device.queues.upload, device.queues.upload, device.queues.compute)
    submissions = [
        queue.fill(buffer, value, signal=semaphore.at(value))
        for value, queue in enumerate((*queues, device.queues.upload), 1)
    ]
    submissions[2].wait(LIMIT)
    assert semaphore.query() == 3
    assert [each.state for each in submissions] == ["issued", "issued", "done", "issued"]
    latch.open()
    semaphore.wait(4, LIMIT)
    assert [each.state for each in submissions] == ["done"] * 4
