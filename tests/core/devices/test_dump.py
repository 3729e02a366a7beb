"""`hal.dump` says what everything waits for (S9)."""

import io

import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError


def test_it_names_who_waits_for_what_s9(device, gate):
    never = hal.create_semaphore(name="never")
    stuck = device.create_queue(name="stuck")
    buffer = device.allocate(16)
    stuck.fill(buffer, 1, wait=never.at(3))
    stuck.fill(buffer, 2)
    device.queue.call(gate.wait, LIMIT)
    text = hal.dump()
    assert f"\n  {stuck.name}: 2 not issued\n" in text
    waiting = "which is not issued and waits for [never@3 (now 0), promised by nobody]"
    assert f"\n    fill on {stuck.name}, {waiting}\n" in text
    assert f"which is not issued behind others in its queue [fill on {stuck.name}" in text
    assert f"\n  {device.queue.name}: 1 on the host\n" in text
    assert f"\n    call on {device.queue.name}, which is running on the host\n" in text
    assert ": 2 busy queues, 2 idle\n" in text
    gate.set()
    never.signal(3)


def test_it_is_written_to_a_stream_s9(device):
    stream = io.StringIO()
    text = hal.dump(stream)
    assert stream.getvalue() == text
    assert repr(device) in text
    assert text.endswith("\n")
    with pytest.raises(ArgumentTypeError, match="text stream"):
        hal.dump("a path")


def test_it_is_bounded_s9(device):
    """The text is bounded for any number of queues and operations, however they depend."""
    never = hal.create_semaphore()
    buffer = device.allocate(16)
    for number in range(40):
        queue = device.create_queue(name=f"q{number}")
        for _ in range(200):
            queue.fill(buffer, 1, wait=never.at(1))
    text = hal.dump()
    assert "197 more not issued" in text
    assert "24 more busy queues" in text
    assert len(text.splitlines()) < 100
    assert len(text) < 20_000
    never.signal(1)
    device.wait_idle(LIMIT)
    assert " 0 busy queues" in hal.dump()


def test_it_never_waits_for_a_device_s9(held, latch):
    device, _, submission = held
    assert f"fill on {device.queue.name}, which is running" in hal.dump()
    latch.open()
    submission.wait(LIMIT)
