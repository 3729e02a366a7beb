"""The pool that the core's tests have in place of a driver's: what it gives out and finds."""

import pytest
from core_harness import Latch, open_native
from native_probe import Probe

SIZE = 4096


@pytest.fixture
def bed():
    """A probe, two streams of it, an event, and a latch that holds the first stream up."""
    probe = Probe(open_native().open_device(0, {}))
    probe.bind()
    streams = [probe.create_stream() for _ in range(2)]
    event, latch = probe.create_event(), Latch()
    probe.hold(latch)
    own = probe.allocate_async(streams[0], 64)
    probe.fill(streams[0], own, 1, 1, 64)
    yield probe, streams, event, latch
    latch.open(1000)
    for stream in streams:
        probe.synchronize_stream(stream)
    probe.free_async(streams[0], own)
    for address in [*probe.alive["async allocation"]]:
        probe.free_async(streams[0], address)
    probe.synchronize_stream(streams[0])
    probe.destroy_event(event)
    for stream in streams:
        probe.destroy_stream(stream)
    probe.close()
    assert probe.live() == {}


def test_freed_memory_goes_round_in_stream_and_event_order(bed):
    probe, (first, second), event, _ = bed
    address = probe.allocate_async(first, SIZE)
    probe.free_async(first, address)
    other = probe.allocate_async(second, SIZE)
    assert other != address  # nothing orders them
    assert probe.allocate_async(first, SIZE) == address
    probe.free_async(first, address)
    probe.record_event(event, first)
    probe.wait_event(second, event)
    assert probe.allocate_async(second, SIZE) == address
    assert probe.violations == []
    held = 2 * SIZE + 512  # with the fixture's own
    assert probe.pool_statistics() == (held, held)


def test_what_nothing_orders_is_a_violation(bed):
    probe, (first, second), _, _ = bed
    address = probe.allocate_async(first, SIZE)
    probe.fill(second, address, 1, 1, SIZE)
    assert "is not ordered behind its allocate_async" in probe.violations.pop(0)
    probe.fill(first, address, 1, 1, SIZE)
    probe.free_async(second, address)
    assert any("is freed under work that uses it" in each for each in probe.violations)
