"""Operations that wait for what is submitted or signalled later, across queues (S2, S3, S7)."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from core_harness import LIMIT, queues_of

import hal


def test_host_signal_releases_a_queued_chain_s2(device):
    """S2: 12 chained submissions over three queues are queued first; one signal runs them all."""
    semaphore = hal.create_semaphore()
    buffer = device.upload(np.zeros(12, np.uint8))
    queues = queues_of(device)
    for step in range(1, 13):
        queues[step % 3].fill(
            buffer,
            step,
            offset=step - 1,
            size=13 - step,
            wait=semaphore.at(step),
            signal=semaphore.at(step + 1),
        )
    assert semaphore.query() == 0
    assert not semaphore.poll(1)
    semaphore.signal(1)
    semaphore.wait(13, LIMIT)
    assert buffer.numpy().tolist() == list(range(1, 13))


@pytest.mark.parametrize("kind", ["same driver", "another driver", "another domain"])
def test_wait_before_signal_across_devices_s2_s3(device, second_device, open_probe, kind):
    """S2, S3: the waiting device needs no other call to run."""
    other = second_device
    if kind != "same driver":
        other, _ = open_probe(domain=object() if kind == "another domain" else None)
    one, two, three = (hal.create_semaphore() for _ in range(3))
    mine, theirs = device.allocate(4, memory="host"), other.allocate(4, memory="host")
    view = mine.map()
    seen = []
    last = device.queue.call(lambda: seen.append(view[0]), wait=three.at(1))
    other.queue.fill(theirs, 2, wait=two.at(1), signal=three.at(1))
    device.queues.upload.fill(mine, 1, wait=one.at(1), signal=two.at(1))
    told = threading.Event()
    three.on_reached(1, lambda _: told.set())
    assert not told.is_set()
    one.signal(1)
    assert told.wait(LIMIT)
    last.wait(LIMIT)
    assert seen == [1]
    assert theirs.map().tolist() == [2, 2, 2, 2]


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


@pytest.mark.parametrize("seed", range(8))
def test_submission_out_of_order_over_all_queues_s2(device, small_device, seed):
    """S2: a chain's links, submitted in any order over the queues of two devices, keep the data.

    Every link works on what the last one left, so that one that runs early,
    late, twice or never shows in the end.
    """
    generator = random.Random(seed)
    links = 24
    devices = (device, small_device)
    # An ordered queue would hold its own earlier links up, so each of those gets one link.
    queues = [each.create_queue(ordered=False) for each in devices]
    queues += [each.create_queue() for each in devices for _ in range(6)]
    semaphore = hal.create_semaphore()
    view = device.upload(np.zeros(links + 1, np.int64)).map()

    def run(step):
        view[step] = (int(view[step - 1]) * 3 + step) % 1_000_003

    order = list(range(1, links + 1))
    generator.shuffle(order)
    for step in order:
        queue = generator.choice(queues)
        if queue.ordered:
            queues.remove(queue)
        queue.call(run, step, wait=semaphore.at(step), signal=semaphore.at(step + 1))
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(links + 1, LIMIT)
    steps = range(1, links + 1)
    expected = itertools.accumulate(steps, lambda a, step: (a * 3 + step) % 1_000_003, initial=0)
    assert view.tolist() == list(expected)


@pytest.mark.parametrize("seed", range(4))
def test_out_of_order_copies_keep_the_data_s2(device, seed):
    """S2: as above with native copies, on streams that wait for each other's events."""
    generator = random.Random(seed)
    links = 30
    buffers = [device.allocate(64) for _ in range(links + 1)]
    data = bytes(generator.randrange(256) for _ in range(64))
    device.queue.update(buffers[0], data).wait(LIMIT)
    queues = [device.create_queue(ordered=False) for _ in range(4)]
    semaphore = hal.create_semaphore()
    order = list(range(links))
    generator.shuffle(order)
    for step in order:
        generator.choice(queues).copy(
            buffers[step],
            buffers[step + 1],
            wait=semaphore.at(step + 1),
            signal=semaphore.at(step + 2),
        )
    semaphore.signal(1)
    semaphore.wait(links + 1, LIMIT)
    assert buffers[-1].numpy().tobytes() == data


def test_one_write_fans_out_to_every_queue_s2(device, second_device):
    """S2: one signal, many queues that wait for it; each sees the same bytes."""
    semaphore = hal.create_semaphore()
    source = device.allocate(256)
    queues = [*queues_of(device), *(device.create_queue() for _ in range(5))]
    outs = [np.zeros(256, np.uint8) for _ in queues]
    reads = [
        queue.read(source, out, wait=semaphore.at(1))
        for queue, out in zip(queues, outs, strict=True)
    ]
    foreign = second_device.queue.barrier(wait=semaphore.at(1))
    data = np.arange(256, dtype=np.uint8)
    device.create_queue().write(source, data, signal=semaphore.at(1))
    hal.wait_all([*reads, foreign], LIMIT)
    for out in outs:
        assert (out == data).all()


def test_twelve_rounds_between_host_and_device_s7(device):
    """Queue write, queue copy, queue read, each waiting for the last: bytes stay what they were."""
    semaphore = hal.create_semaphore()
    data = np.random.default_rng(1).integers(0, 256, 512, np.uint8)
    original = data.copy()
    one, two = device.allocate(512), device.allocate(512)
    for round_ in range(12):
        base = 3 * round_
        device.queues.upload.write(
            one, data, wait=semaphore.at(base), signal=semaphore.at(base + 1)
        )
        device.queues.compute.copy(
            one, two, wait=semaphore.at(base + 1), signal=semaphore.at(base + 2)
        )
        device.queues.download.read(
            two, data, wait=semaphore.at(base + 2), signal=semaphore.at(base + 3)
        )
    semaphore.wait(36, LIMIT)
    assert (data == original).all()


def test_a_consumer_is_not_released_before_its_producer_is_recorded(open_probe):
    """A producer in the middle of its issue has promised, and recorded, nothing."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    inside, go = threading.Event(), threading.Event()

    def stop():
        inside.set()
        assert go.wait(LIMIT)

    semaphore = hal.create_semaphore()
    probe.fail_call(1, stop, names=("record_event",))
    producer = threading.Thread(
        target=lambda: device.queues.upload.fill(buffer, 1, signal=semaphore.at(1))
    )
    producer.start()
    assert inside.wait(LIMIT)
    consumer = device.queues.compute.fill(buffer, 2, wait=semaphore.at(1))
    assert consumer.state == "pending"
    assert semaphore.query() == 0
    go.set()
    producer.join(LIMIT)
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
