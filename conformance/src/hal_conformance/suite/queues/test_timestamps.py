"""Times on the device's own clock (Q4): the feature ``timestamps``."""

import itertools
import time

import pytest

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError, UnimplementedError
from hal_conformance.suite.support import LIMIT

PAUSE = 0.02
"""Seconds that the host lets pass, for the device to measure."""

CLOCK_ERROR = 0.002
"""Seconds that two clocks may differ by over such a time, and a submission may take."""


def test_timestamps_are_there_or_refused_q4(device, queue):
    """Q4: without the feature a timestamp raises; with it, it is a submission like others."""
    if "timestamps" not in device.features:
        with pytest.raises(UnimplementedError, match="timestamps"):
            queue.timestamp()
        return
    done = hal.create_semaphore()
    stamp = queue.timestamp(signal=done.at(1))
    assert issubclass(type(stamp), hal.Submission)
    assert (stamp.kind, stamp.queue) == ("timestamp", queue)
    done.wait(1, LIMIT)
    stamp.wait(LIMIT)
    assert stamp.seconds_since(stamp) == 0


@pytest.mark.feature("timestamps")
def test_a_timestamp_is_taken_when_it_runs_q4(queue, gate):
    """Q4: after its wait, not at its submission."""
    first = queue.timestamp()
    first.wait(LIMIT)
    late = queue.timestamp(wait=gate.at(1))
    time.sleep(PAUSE)
    assert late.state == "pending"
    gate.signal(1)
    late.wait(LIMIT)
    assert late.seconds_since(first) >= PAUSE - CLOCK_ERROR


@pytest.mark.feature("timestamps")
def test_seconds_are_seconds_q4(queue):
    """Q4: the host's clock, looked at around it, agrees."""
    before = time.monotonic()
    first = queue.timestamp()
    first.wait(LIMIT)
    between = time.monotonic()
    time.sleep(PAUSE)
    after = time.monotonic()
    second = queue.timestamp()
    second.wait(LIMIT)
    end = time.monotonic()
    seconds = second.seconds_since(first)
    assert after - between - CLOCK_ERROR <= seconds <= end - before + CLOCK_ERROR
    assert first.seconds_since(second) == pytest.approx(-seconds)


@pytest.mark.feature("timestamps")
def test_times_of_several_queues_compare_q4(queue, make_queue):
    """Q4: they are of one clock, and what waits comes later."""
    stamps = [queue.timestamp()]
    for _ in range(6):
        stamps.append(make_queue().timestamp(wait=stamps[-1]))
    stamps[-1].wait(LIMIT)
    steps = [late.seconds_since(early) for early, late in itertools.pairwise(stamps)]
    assert all(step > -CLOCK_ERROR for step in steps)
    assert sum(steps) == pytest.approx(stamps[-1].seconds_since(stamps[0]), abs=1e-5)


@pytest.mark.feature("timestamps")
def test_a_time_that_is_not_there_is_refused_q4(queue, gate, second_device):
    """Q4: of work that has not ended, of another device, and of no timestamp."""
    first, late = queue.timestamp(), queue.timestamp(wait=gate.at(1))
    first.wait(LIMIT)
    for one, other in ((late, first), (first, late)):
        with pytest.raises(InvalidArgumentError, match="not ended"):
            one.seconds_since(other)
    gate.signal(1)
    late.wait(LIMIT)
    foreign = second_device.queue.timestamp()
    foreign.wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="two devices"):
        first.seconds_since(foreign)
    with pytest.raises(ArgumentTypeError, match=r"queue\.timestamp\(\)"):
        first.seconds_since(queue.barrier())


@pytest.mark.feature("timestamps")
def test_a_kept_time_does_not_change_q5(queue):
    """Q5: whatever is measured afterwards."""
    first, second = queue.timestamp(), queue.timestamp()
    second.wait(LIMIT)
    seconds = second.seconds_since(first)
    for _ in range(50):
        queue.timestamp().wait(LIMIT)
    assert second.seconds_since(first) == seconds
