"""Ownership: a semaphore belongs to no device and outlives them all (S3)."""

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError
from hal_conformance.suite.support import LIMIT


def test_a_device_makes_the_same_semaphores_s3(device, second_device, make_queue):
    """S3: `Device.create_semaphore` makes what `hal.create_semaphore` makes: for all queues."""
    semaphore = device.create_semaphore(4, name="made by a device")
    assert type(semaphore) is type(hal.create_semaphore())
    assert semaphore.query() == 4
    assert semaphore.name == "made by a device"
    queue = make_queue(device=second_device)
    queue.barrier(wait=semaphore.at(4), signal=semaphore.at(5)).wait(LIMIT)
    assert semaphore.query() == 5


def test_a_semaphore_outlives_its_device_s3(open_device, make_semaphore, queue):
    """S3: what a device signalled before it was closed can be waited for on another."""
    semaphore = make_semaphore()
    other = open_device()
    buffer = other.allocate(64)
    other.queue.fill(buffer, 1, signal=semaphore.at(1))
    assert other.close(LIMIT) == ()
    assert semaphore.query() == 1
    queue.barrier(wait=semaphore.at(1), signal=semaphore.at(2)).wait(LIMIT)
    assert semaphore.query() == 2


def test_devices_hand_a_turn_to_each_other_s3(queue, second_device, make_queue, semaphore):
    """S3: queues of two devices take turns on one semaphore, all submitted beforehand."""
    queues = (queue, make_queue(device=second_device))
    for turn in range(1, 41):
        queues[turn % 2].barrier(wait=semaphore.at(turn), signal=semaphore.at(turn + 1))
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(41, LIMIT)


def test_a_semaphore_may_be_dropped_while_it_is_waited_for_s3(unordered, gate):
    """S3: operations keep the semaphores that they wait for and signal; nobody else has to."""
    middle = hal.create_semaphore()
    last = unordered.barrier(wait=middle.at(1))
    unordered.barrier(wait=gate.at(1), signal=middle.at(1))
    del middle
    gate.signal(1)
    last.wait(LIMIT)


def test_names_s3():
    """S3: a semaphore has the name it was given, or one that no other has."""
    first, second = hal.create_semaphore(), hal.create_semaphore()
    assert first.name != second.name
    assert hal.create_semaphore(name="frames").name == "frames"
    assert "frames" in repr(hal.create_semaphore(name="frames"))
    first.fail(OSError("broken"))
    assert "broken" in repr(first)
    with pytest.raises(ArgumentTypeError):
        hal.create_semaphore(name=7)  # type: ignore[arg-type]


def test_timepoints_are_pairs_s3(make_semaphore):
    """S3: `at` names a semaphore and a value, which can be unpacked and compared."""
    semaphore = make_semaphore(name="frames")
    timepoint = semaphore.at(7)
    assert (timepoint.semaphore, timepoint.value) == (semaphore, 7)
    assert tuple(timepoint) == (semaphore, 7)
    assert timepoint == semaphore.at(7) == semaphore.at(np.int64(7))
    assert timepoint != semaphore.at(8)
    assert repr(timepoint) == "frames@7"
