"""Queues over streams of other libraries, and our streams for them (I1, Q2, Q6).

The other library is `foreign_library`: it makes native calls of its own on the
device under the probe.
"""

import gc
import weakref

import pytest
from core_harness import LIMIT, Latch
from external_harness import SIZE, pretend, zeros

import hal
from hal.errors import ClosedError


def test_who_waits_for_their_stream_reads_our_value_s7(shared):
    """S7: after the owner of the stream has synchronised it, no further wait is needed."""
    device, _, library = shared
    theirs = library.stream()
    queue = device.create_queue(stream=theirs.handle)
    done, buffer = hal.create_semaphore(), zeros(device)
    for value in range(1, 200):
        queue.fill(buffer, value, signal=done.at(value))
        theirs.synchronize()
        assert done.query() == value


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_a_barrier_ends_after_their_work_on_the_stream_q2(shared, whose):
    """Q2: a barrier ends after all work on the stream, including theirs."""
    device, probe, library = shared
    buffer = zeros(device)
    if whose == "theirs":
        theirs, latch = library.held_stream()
        queue = device.create_queue(stream=theirs.handle)
        queue.fill(buffer, 1)
    else:
        latch = Latch()
        probe.hold(latch)
        queue = device.queue
        queue.fill(buffer, 1)
        assert queue.stream_handle
    records = probe.calls["record_event"]
    barrier = queue.barrier()
    assert probe.calls["record_event"] == records + 1, "theirs may stand before it"
    latch.open()
    barrier.wait(LIMIT)


def test_a_stream_object_is_kept_while_the_queue_is_open(shared, monkeypatch):
    device, probe, library = shared
    pretend(probe, monkeypatch, (2, 0))
    theirs = library.stream()
    queue = device.create_queue(stream=theirs)
    library.streams.remove(theirs)
    handle, reference = theirs.handle, weakref.ref(theirs)
    del theirs
    gc.collect()
    assert reference() is not None
    queue.barrier().wait(LIMIT)
    queue.close(LIMIT)
    gc.collect()
    assert reference() is None
    library.native.destroy_stream(handle)


# Our streams, for them


def test_a_queue_shows_its_stream_where_it_is_cudas(shared, monkeypatch):
    """Their work runs after the work issued here before, and before later work."""
    device, probe, library = shared
    assert not hasattr(device.queue, "__cuda_stream__")
    pretend(probe, monkeypatch, (10, 0))
    assert not hasattr(device.queue, "__cuda_stream__")
    pretend(probe, monkeypatch, (2, 0))
    version, handle = device.queue.__cuda_stream__()
    assert (version, handle) == (0, device.queue._stream)
    assert device.queues.upload.__cuda_stream__() != (0, handle)
    buffer, copied = zeros(device), zeros(device)
    latch = Latch()
    probe.hold(latch)
    device.queue.fill(buffer, 5)
    library.native.copy(handle, copied.address, buffer.address, SIZE)
    device.queue.fill(buffer, 6)
    latch.open()
    device.wait_idle(LIMIT)
    assert (copied.map() == 5).all()
    queue = device.create_queue()
    get = queue.__cuda_stream__
    queue.close(LIMIT)
    with pytest.raises(ClosedError):
        get()


def test_without_the_feature_no_stream_is_shown(open_probe, monkeypatch):
    device, probe = open_probe(without={"external_streams"})
    pretend(probe, monkeypatch, (2, 0))
    assert not hasattr(device.queue, "__cuda_stream__")
