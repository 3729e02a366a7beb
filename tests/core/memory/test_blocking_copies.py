"""Calls that block by themselves copy on the calling thread: M1, M2, M3, S5, S6, Q6, O3."""

import contextlib
import gc
import itertools
import threading

import numpy as np
import pytest
from copies_harness import MANY, SLOT, some
from core_harness import LIMIT, Running, collect_in_threads, stalled, wait_until
from interrupts import Interrupts

import hal
from hal._memory import blocking
from hal.errors import ClosedError, DeadlineExceededError, DeviceLostError, OperationError

COPIES = ("copy_to_host", "copy_from_host")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Let a few hundred KiB be many native copies."""
    monkeypatch.setattr(blocking, "PART", SLOT)


@pytest.mark.parametrize("size", [1, SLOT - 1, SLOT, SLOT + 1, MANY])
def test_the_calling_thread_makes_the_native_calls_m1(open_blocking, size):
    """M1: a copy and a wait for each part, on a stream of its own; no event, memory or thread."""
    device, probe = open_blocking()
    data = some(size)
    buffer = device.upload(data)  # makes the stream
    me, parts = threading.get_ident(), -(-size // SLOT)
    for work, copy in ((buffer.numpy, "copy_to_host"), (lambda: device.upload(data), COPIES[1])):
        probe.calls.clear()
        probe.callers.clear()
        kept = work()
        probe.calls.pop("allocate", 0)  # the new buffer's
        probe.calls.pop("host_pointer", 0)
        probe.calls.pop("bind")
        assert {**probe.calls} == {copy: parts, "synchronize_stream": parts}
        assert {thread for _, thread in probe.callers} == {me}
        assert (np.asarray(kept) == data).all() if copy == "copy_to_host" else kept.size == size
    assert (device.upload(data).numpy() == data).all()


@pytest.mark.parametrize("memory", ["device", "host", "managed"])
def test_what_the_host_sees_takes_no_native_call_m1(open_probe, memory):
    """M1: the host copies it."""
    device, probe = open_probe()
    buffer = device.allocate(MANY, memory=memory)
    buffer.map()[:] = some(MANY)
    probe.calls.clear()
    assert (buffer.subspan(3, MANY - 3).numpy() == some(MANY)[3:]).all()
    assert not probe.calls


def test_pinned_memory_is_copied_by_the_host_m1(open_blocking):
    """M1: without pageable copies too; managed memory is the driver's to copy."""
    device, probe = open_blocking()
    for memory, native in (("host", 0), ("managed", 1)):
        buffer = device.allocate(64, memory=memory)
        buffer.map()[:] = 7
        probe.calls.clear()
        assert (buffer.numpy() == 7).all()
        assert probe.calls["copy_to_host"] == native


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.array(5.0),
        np.array(["2020-01-01", "2021-05-06"], "M8[D]"),
        np.zeros(3, [("a", "i1"), ("b", "f8")]),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.empty((0, 4), np.float32),
        np.frombuffer(b"read-only", np.uint8),
        [[1, 2], [3, 4]],
    ],
    ids=["big-endian", "scalar", "dates", "records", "strided", "empty", "read-only", "list"],
)
def test_arrays_of_all_kinds_come_back_m1(open_blocking, array):
    device, _ = open_blocking()
    found = device.upload(array).numpy()
    expected = np.asarray(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
    assert found.flags.owndata
    assert found.flags.writeable


def test_it_waits_for_what_it_is_told_and_for_no_queue_m2(open_blocking):
    """M2, S6: ``wait=()`` waits for nothing, not for what stands in the download queue either."""
    device, _ = open_blocking()
    buffer, never = device.upload(some(MANY)), hal.create_semaphore(name="never")
    device.queues.download.barrier(wait=never.at(1))
    assert (buffer.numpy(wait=()) == some(MANY)).all()
    with pytest.raises(DeadlineExceededError, match="never@2"):
        buffer.numpy(wait=never.at(2), timeout=0)
    with pytest.raises(DeadlineExceededError, match="never@1"):
        buffer.numpy(timeout=0)
    never.fail(OperationError("on purpose"))
    with pytest.raises(OperationError, match="on purpose"):
        buffer.numpy(wait=never.at(1))
    assert (buffer.numpy(timeout=0) == some(MANY)).all()


def test_threads_copy_at_once_each_on_its_stream_m1(open_blocking):
    """M1: two that copy at the same time; the probe looks whether two threads use one stream."""
    device, probe = open_blocking()
    buffers = [device.upload(some(MANY, seed)) for seed in range(4)]
    stall, reading = stalled(probe, "copy_to_host", 3, buffers[0].numpy)
    streams = probe.live()["stream"]
    assert (buffers[1].numpy() == some(MANY, 1)).all()
    assert probe.live()["stream"] == streams + 1
    stall.leave.set()
    assert (reading.result() == some(MANY)).all()
    whole = collect_in_threads([each.numpy for each in buffers] * 2)
    assert all((each == some(MANY, index % 4)).all() for index, each in enumerate(whole))


@pytest.mark.parametrize("name", [*COPIES, "synchronize_stream", "create_stream", "bind"])
@pytest.mark.parametrize("error", [OperationError("injected"), RuntimeError("injected")])
def test_a_native_call_fails_m1(open_blocking, name, error):
    """M1: the call raises it, once the copy has ended, and the next one works."""
    device, probe = open_blocking()
    data, buffer = some(MANY), device.allocate(MANY)
    buffer.map()[:] = data  # no copy, which would make the stream
    probe.fail_call(1, error, (name,))
    with pytest.raises(OperationError, match="injected"):
        device.upload(data) if name == "copy_from_host" else buffer.numpy()
    assert not device.lost
    assert (device.upload(data).numpy() == buffer.numpy()).all()


def test_a_copy_whose_end_is_unknown_loses_the_device_s5(open_blocking):
    """S5: waiting for it fails, and fails again."""
    device, probe = open_blocking()
    buffer = device.upload(some(MANY))
    probe.fail_call(1, OperationError("injected"), ("synchronize_stream",))
    probe.fail_call(2, OperationError("injected again"), ("synchronize_stream",))
    with pytest.raises(DeviceLostError, match="nothing knows when it ends"):
        buffer.numpy()
    assert device.lost
    with pytest.raises(DeviceLostError, match="injected again"):
        buffer.numpy()


@pytest.mark.parametrize("name", [*COPIES, "synchronize_stream"])
def test_the_device_is_lost_s5(open_blocking, name):
    """S5: everything unretired of it fails with the cause."""
    device, probe = open_blocking()
    buffer, never = device.allocate(MANY), hal.create_semaphore()
    waiting = device.queue.fill(buffer, 1, wait=never.at(1))
    probe.fail_call(2, DeviceLostError("gone", native_code=700), (name,))
    with pytest.raises(DeviceLostError, match="gone"):
        device.upload(some(MANY)) if name == "copy_from_host" else buffer.numpy(wait=())
    assert device.lost
    with pytest.raises(DeviceLostError, match="gone"):
        waiting.wait(LIMIT)
    with pytest.raises(DeviceLostError, match="gone"):
        device.upload(some(4))


def test_closing_waits_for_a_copy_q6(open_blocking):
    """Q6: nothing is freed under the copy, and it returns what was there."""
    device, probe = open_blocking()
    buffer = device.upload(some(MANY))
    stall, reading = stalled(probe, "copy_to_host", 2, buffer.numpy)
    closing = Running(device.close, LIMIT)
    wait_until(lambda: device.closed)
    with pytest.raises(ClosedError):
        buffer.numpy()
    assert probe.live()["allocation"]
    stall.leave.set()
    assert (reading.result() == some(MANY)).all()
    assert closing.result() == ()
    assert probe.live() == {}


def test_closing_gives_up_on_a_copy_that_hangs_q6(open_blocking):
    """Q6: close reports a hanging copy and leaves its memory alone."""
    device, probe = open_blocking()
    buffer = device.upload(some(MANY))
    stall, reading = stalled(probe, "copy_to_host", 2, buffer.numpy)
    assert "on another thread" in device.close(0.05)[0]
    assert probe.live()["allocation"]
    stall.leave.set()
    with contextlib.suppress(hal.HalError):
        reading.result()


def test_closing_while_it_waits_ends_it_q6(open_blocking):
    """Q6: close cancels the work that the call waits for."""
    device, _ = open_blocking()
    buffer, never = device.upload(some(4)), hal.create_semaphore()
    waited = device.queue.fill(buffer, 1, wait=never.at(1))
    reading = Running(buffer.numpy)
    wait_until(lambda: waited._private)
    device.close(LIMIT)
    with pytest.raises(ClosedError):
        reading.result()


def test_memory_of_an_alloca_is_not_given_away_meanwhile_m3(open_blocking):
    """M3: a dealloca on another thread leaves it to the reader, and then it is free again."""
    device, probe = open_blocking()
    buffer = device.queue.alloca(MANY)
    device.queue.write(buffer, some(MANY)).wait(LIMIT)
    stall, reading = stalled(probe, "copy_to_host", 2, buffer.numpy)
    device.queue.dealloca(buffer).wait(LIMIT)
    other = device.queue.alloca(MANY)
    device.queue.fill(other, 0).wait(LIMIT)
    stall.leave.set()
    assert (reading.result() == some(MANY)).all()
    del other
    gc.collect()
    wait_until(lambda: not device.statistics().allocations)


def test_an_alloca_that_was_not_issued_has_nothing_to_read_m3(open_blocking):
    device, _ = open_blocking()
    never = hal.create_semaphore()
    buffer = device.queue.alloca(64, wait=never.at(1))
    with pytest.raises(OperationError, match="no address before its alloca"):
        buffer.numpy(wait=())
    never.fail(OperationError("on purpose"))
    with pytest.raises(OperationError, match="on purpose"):
        buffer.numpy()


def test_an_imported_array_stays_pinned_while_it_is_uploaded_m1(open_blocking):
    device, probe = open_blocking()
    data = some(MANY)
    imported = device.import_array(data)
    stall, uploading = stalled(probe, "copy_from_host", 2, device.upload, data)
    del imported
    gc.collect()
    device.trim()
    assert probe.live()["import"] == 1
    stall.leave.set()
    assert (uploading.result().numpy() == data).all()


def test_a_ctrl_c_ends_it_between_two_parts_o3(open_blocking):
    """O3: no part comes after it, the copy has ended by then, and nothing is left of it."""
    device, probe = open_blocking()
    buffer = device.upload(some(MANY))
    for name, count in (("copy_to_host", 3), ("synchronize_stream", 4)):
        probe.calls.clear()
        probe.fail_call(3, KeyboardInterrupt(), (name,))
        with pytest.raises(KeyboardInterrupt):
            buffer.numpy()
        assert probe.calls["copy_to_host"] == 3
        assert probe.calls["synchronize_stream"] == count
    assert [ours.used for ours in device._copy_streams] == [None]
    assert (buffer.numpy() == some(MANY)).all()


def test_a_ctrl_c_anywhere_leaves_nothing_o3(open_blocking):
    """O3, I7: at every place of ours, and a second one right behind; the next call works."""
    device, probe = open_blocking()
    data = some(3 * SLOT)
    buffer = device.upload(data)
    for second in (0, 1, 3):
        for number in itertools.count(1):
            with Interrupts(number, second) as interrupts:
                buffer.numpy()
            assert (buffer.numpy() == data).all(), interrupts.places
            assert probe.live()["stream"] == 4, interrupts.places
            if not interrupts.places:
                break
    assert [ours.used for ours in device._copy_streams] == [None]
    assert device.close(LIMIT) == ()
    assert probe.live() == {}


@pytest.mark.parametrize("is_lost", [False, True])
def test_closing_waits_for_a_copy_that_a_ctrl_c_left_under_way_q6(open_blocking, is_lost):
    """Q6, O3: two interrupts leave it; closing returns even if its end is unknown."""
    device, probe = open_blocking()
    buffer = device.upload(some(MANY))
    for number in (1, 2):
        probe.fail_call(number, KeyboardInterrupt(), ("synchronize_stream",))
    with pytest.raises(KeyboardInterrupt):
        buffer.numpy()
    (ours,) = device._copy_streams
    assert ours.used is not None
    waited = probe.calls["synchronize_stream"]
    if is_lost:
        probe.fail_call(1, OperationError("injected"), ("synchronize_stream",))
    device.close(LIMIT)
    assert probe.calls["synchronize_stream"] == waited + 1
    assert device.lost == is_lost
    assert is_lost or probe.live() == {}
