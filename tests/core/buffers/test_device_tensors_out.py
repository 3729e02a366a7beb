"""Device memory handed out to other libraries, in the order of their streams (M2, Q1).

The device says of its memory that it is CUDA's; the other library is
`foreign_library`, whose tensors are numpy arrays that nobody reads on the host.
"""

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads, wait_until
from device_tensor_harness import CUDA, ROCM, SIZE, content, hold, pretend
from foreign_library import Library
from interop_harness import look_into, memory_of

import hal
from hal._engine import external
from hal.errors import HalError


@pytest.mark.parametrize("which", ["compute", "upload", "download", "own"])
def test_the_consumers_stream_waits_for_what_was_issued_m2(gpu, which):
    """M2: on whatever queue of the device the work is."""
    device, probe, library = gpu
    queue = device.create_queue() if which == "own" else getattr(device.queues, which)
    buffer, latch = hold(probe, device, queue)
    theirs = library.stream()
    taken = np.zeros(SIZE, np.uint8)
    capsule = buffer.__dlpack__(stream=theirs.handle)
    assert int(look_into(capsule)[0]["data"]) == buffer.address
    theirs.copy(taken.ctypes.data, buffer.address, SIZE)
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()
    assert (taken == 5).all()
    assert "adopted stream" not in probe.live()


def test_minus_one_orders_nothing(gpu):
    device, probe, _ = gpu
    buffer, latch = hold(probe, device)
    waits = probe.calls["wait_event"]
    buffer.__dlpack__(stream=-1)
    assert probe.calls["wait_event"] == waits
    assert probe.calls["adopt_stream"] == 0
    latch.open()


@pytest.mark.parametrize(("where", "number"), [(CUDA, 1), (ROCM, 0)])
def test_none_is_the_default_stream_as_the_standard_says(gpu, monkeypatch, where, number):
    device, probe, library = gpu
    pretend(probe, monkeypatch, where)
    buffer, latch = hold(probe, device)
    theirs, adopted = library.stream(), []
    original = probe.adopt_stream

    def adopt(handle):
        adopted.append(handle)
        return original(theirs.handle)

    monkeypatch.setattr(probe, "adopt_stream", adopt)
    buffer.__dlpack__()
    assert adopted == [number]
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()


def test_what_nobody_has_promised_is_not_waited_for_q1(gpu):
    """Q1: handing out does not block for it; what was ready but queued up is waited for."""
    device, _, library = gpu
    gate = hal.create_semaphore()
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    pending = device.queue.fill(buffer, 1, wait=gate.at(1))
    device.queue.fill(buffer, 2)
    called = device.queues.upload.call(gate.wait, 1, LIMIT)
    behind = device.queues.upload.fill(buffer, 3)
    theirs = library.stream()
    buffer.__dlpack__(stream=theirs.handle)
    theirs.synchronize()
    assert (pending.state, called.done, behind.state) == ("pending", False, "pending")
    gate.signal(1)
    device.wait_idle(LIMIT)


def test_work_that_stands_in_the_backlog_is_waited_for_m2(open_probe, monkeypatch):
    """M2: the consumer waits for work in the backlog, which needs no help to be issued."""
    device, probe = open_probe(max_in_flight=1)
    pretend(probe, monkeypatch)
    library = Library(probe.inner)
    buffer, latch = hold(probe, device, value=1)
    last = device.queue.fill(buffer, 7)
    assert last.state == "pending"
    theirs, naps = library.stream(), []

    def nap(_):
        naps.append(last.state)
        latch.open()
        wait_until(lambda: last.state != "pending")

    monkeypatch.setattr(external.sync, "nap", nap)
    buffer.__dlpack__(stream=theirs.handle)
    assert naps == ["pending"]
    theirs.synchronize()
    assert (content(buffer) == 7).all()
    library.close()


def test_staged_writes_are_waited_for_m2(open_probe, monkeypatch):
    """M2: the host's part of a transfer, too."""
    device, probe = open_probe(without={"pageable_copies"})
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: CUDA)
    library = Library(probe.inner)
    size = 1 << 18
    buffer = device.allocate(size)
    for value in range(8):
        device.queue.write(buffer, np.full(size, value, np.uint8))
        theirs = library.stream()
        taken = np.zeros(size, np.uint8)
        buffer.__dlpack__(stream=theirs.handle)
        theirs.copy(taken.ctypes.data, buffer.address, size)
        theirs.synchronize()
        assert (taken == value).all()
    library.close()


def test_without_streams_the_host_waits_m2(open_probe, monkeypatch):
    device, probe = open_probe(without={"external_streams"})
    pretend(probe, monkeypatch)
    buffer, latch = hold(probe, device)
    probe.fail_call(1, latch.open, {"query_event"})
    buffer.__dlpack__(stream=4096)
    assert (content(buffer) == 5).all()
    assert device.queue._ring == type(device.queue._ring)()
    buffer, latch = hold(probe, device, value=6)
    probe.fail_call(1, latch.open, {"query_event"})
    assert buffer.__cuda_array_interface__["stream"] is None
    assert (content(buffer) == 6).all()


@pytest.mark.parametrize("asked", [{"dl_device": (1, 0)}, {"copy": True}])
def test_copies_are_made_of_what_was_issued_m2(gpu, asked):
    device, probe, _ = gpu
    buffer, latch = hold(probe, device, device.queues.upload)
    probe.fail_call(1, latch.open, {"query_event"})
    capsule = buffer.__dlpack__(max_version=(1, 0), **asked)
    assert (memory_of(int(look_into(capsule)[0]["data"]), SIZE) == 5).all()


def test_a_failed_operation_hands_out_all_the_same(gpu):
    device, _, library = gpu
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    failed = hal.create_semaphore()
    failed.fail(HalError("broken"))
    device.queue.fill(buffer, 1, wait=failed.at(1))
    buffer.__dlpack__(stream=library.stream().handle)
    buffer.__dlpack__(copy=True)


# The CUDA Array Interface, out


def test_the_interface_names_a_stream_to_wait_for_m2(gpu):
    """M2: the stream ends with the issued work; there is none if all work has ended."""
    device, probe, library = gpu
    idle = device.upload(np.zeros(SIZE, np.uint8))
    assert idle.__cuda_array_interface__["stream"] is None
    buffer, latch = hold(probe, device, device.queues.upload)
    number = buffer.__cuda_array_interface__["stream"]
    theirs, taken = library.stream(), np.zeros(SIZE, np.uint8)
    event = library.native.create_event()
    library.native.record_event(event, number)  # what a consumer does with it
    library.native.wait_event(theirs.handle, event)
    theirs.copy(taken.ctypes.data, buffer.address, SIZE)
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()
    assert (taken == 5).all()
    device.wait_idle(LIMIT)
    device.trim(1 << 40)
    assert buffer.__cuda_array_interface__["stream"] is None
    _, latch = hold(probe, device)
    assert buffer.__cuda_array_interface__["stream"] == number
    latch.open()


def test_the_stream_of_the_interface_is_one_threads_at_a_time(gpu):
    """The probe sees two calls on it at once."""
    device, probe, _ = gpu
    buffer, latch = hold(probe, device)

    def look():
        return {buffer.__cuda_array_interface__["stream"] for _ in range(50)}

    streams = set().union(*collect_in_threads([look] * 4))
    assert len(streams) == 1
    latch.open()
