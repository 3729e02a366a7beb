"""Times on native streams: `Queue.timestamp` and `Timestamp.seconds_since` (Q4)."""

import gc

import pytest
from core_harness import LIMIT, Latch

import hal
from hal.errors import CancelledError, ClosedError, OperationError, UnimplementedError


def hold(probe, device):
    """Hold the compute stream up; return what lets it go."""
    latch = Latch()
    probe.hold(latch)
    device.queue.fill(device.allocate(16), 1)
    return latch


def test_a_failed_timestamp_raises_its_error(open_probe):
    device, probe = open_probe()
    first = device.queue.timestamp()
    probe.fail_call(1, OperationError("no time"), {"record_timer"})
    failed = device.queue.timestamp()
    with pytest.raises(OperationError, match="no time"):
        failed.wait(LIMIT)
    first.wait(LIMIT)
    with pytest.raises(OperationError, match="no time"):
        failed.seconds_since(first)
    with pytest.raises(OperationError, match="no time"):
        first.seconds_since(failed)
    probe.fail_call(1, OperationError("no timer"), {"create_timer"})
    assert isinstance(device.queue.timestamp().error, OperationError)


def test_timers_are_used_again_when_nobody_asks_them_any_more_i4(open_probe):
    """I4: a timer is not recorded again while its handle or its work exists."""
    device, probe = open_probe()
    kept = [device.queue.timestamp() for _ in range(8)]
    device.wait_idle(LIMIT)
    assert probe.live()["timer"] == 8
    spans = [each.seconds_since(kept[0]) for each in kept]
    for _ in range(64):
        device.queue.timestamp().wait(LIMIT)
        gc.collect()
    assert probe.live()["timer"] <= 8 + 4
    assert [each.seconds_since(kept[0]) for each in kept] == spans
    latch = hold(probe, device)
    device.queue.timestamp()  # its handle goes at once; the probe sees a record of a busy timer
    gc.collect()
    for _ in range(8):
        device.queues.upload.timestamp()
    latch.open()
    device.wait_idle(LIMIT)


def test_pending_timestamps_need_no_timer(open_probe):
    device, probe = open_probe()
    gate = hal.create_semaphore()
    pending = [device.queue.timestamp(wait=gate.at(1)) for _ in range(50)]
    assert probe.calls["create_timer"] == 0
    device.queue.close(LIMIT)
    assert {each.state for each in pending} == {"cancelled"}
    with pytest.raises(CancelledError):
        pending[0].seconds_since(pending[1])
    assert probe.calls["create_timer"] == 0


def test_closing_ends_the_timers_i7(open_probe):
    """I7: close destroys all timers, even those with live handles."""
    device, probe = open_probe()
    first, second = device.queue.timestamp(), device.queue.timestamp()
    second.wait(LIMIT)
    device.close(LIMIT)
    assert probe.live() == {}
    with pytest.raises(ClosedError, match="timestamps"):
        second.seconds_since(first)
    with pytest.raises(ClosedError):
        device.queue.timestamp()


def test_a_device_without_clocks_says_so(open_probe):
    device, probe = open_probe(without={"timestamps"})
    with pytest.raises(UnimplementedError, match=r"cpu:0 takes no timestamps.*'timestamps'"):
        device.queue.timestamp()
    assert probe.calls["create_timer"] == 0


def test_ordinary_work_makes_no_timer(open_probe):
    device, probe = open_probe()
    for _ in range(4):
        device.queue.fill(device.allocate(16), 1).wait(LIMIT)
    assert probe.calls["create_timer"] == probe.calls["record_timer"] == 0
