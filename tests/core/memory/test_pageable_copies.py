"""Copies of ordinary memory by operations, on devices where they block: M1, Q1."""

import gc
import threading

import numpy as np
import pytest
from copies_harness import LARGE, MANY, SLOT, some
from core_harness import LIMIT, Latch, Stall, wait_until

import hal
from hal._transfers.transfers import SMALL
from hal.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "size",
    [1, 255, SLOT, SMALL - 1, SMALL, SMALL + 1, 17 * SLOT - 1, 17 * SLOT, 17 * SLOT + 1, MANY],
)
def test_transfers_of_all_sizes_m1(open_blocking, size):
    """M1: bytes survive every way in and out, at odd offsets too."""
    device, _ = open_blocking()
    data = some(size)
    assert (device.upload(data).numpy() == data).all()
    buffer = device.allocate(size + 20)
    queue = device.queue
    queue.fill(buffer, 0xAA).wait(LIMIT)
    queue.write(buffer, data, offset=7).wait(LIMIT)
    whole = buffer.numpy()
    assert (whole[7 : size + 7] == data).all()
    assert (whole[:7] == 0xAA).all()
    assert (whole[size + 7 :] == 0xAA).all()
    queue.update(buffer, data[::-1].copy(), offset=13).wait(LIMIT)
    out = np.zeros(size + 1, np.uint8)
    queue.read(buffer, out[1:], offset=13).wait(LIMIT)
    assert (out[1:] == data[::-1]).all()
    assert out[0] == 0


def test_the_submitter_neither_copies_nor_waits_q1(open_blocking):
    """Q1: large transfers return at once though the device is busy, and run on the pool."""
    device, probe = open_blocking()
    latch, data = Latch(), some(MANY)
    buffer, out = device.allocate(MANY), np.zeros(MANY, np.uint8)
    probe.hold(latch)
    me = threading.get_ident()
    written = device.queue.write(buffer, data)
    read = device.queue.read(buffer, out)
    assert (written.done, read.done) == (False, False)
    latch.open()
    read.wait(LIMIT)
    assert (out == data).all()
    for name in ("copy_from_host", "copy_to_host", "allocate", "synchronize_stream"):
        assert probe.callers[name, me] == (1 if name == "allocate" else 0), name


def test_small_ones_are_taken_during_the_call_q4(open_blocking):
    """Q4: update of any size, and write up to 64 KiB: the bytes may change at once."""
    device, _ = open_blocking()
    gate = hal.create_semaphore()
    buffer = device.allocate(4 * LARGE)
    for round_ in range(3):  # the first has no pinned memory yet, later ones may
        pending = []
        for index, (method, size) in enumerate(
            [("write", SMALL), ("write", 1), ("update", SMALL), ("update", LARGE)]
        ):
            data = np.full(size, 10 * round_ + index, np.uint8)
            pending.append(
                getattr(device.queue, method)(
                    buffer, data, offset=index * LARGE, wait=gate.at(round_ + 1)
                )
            )
            data[:] = 255
        gate.signal(round_ + 1)
        for index, (submission, size) in enumerate(
            zip(pending, (SMALL, 1, SMALL, LARGE), strict=True)
        ):
            part = buffer.subspan(index * LARGE, size).numpy(wait=submission, timeout=LIMIT)
            assert (part == 10 * round_ + index).all()


def test_small_ones_are_ordinary_operations_with_pinned_memory_at_hand_m1(open_blocking):
    """M1: no thread hop: one copy from pinned memory on the queue's stream."""
    device, probe = open_blocking()
    buffer, data = device.allocate(256), np.arange(256, dtype=np.uint8)
    device.allocate(256, memory="host").close()
    calls = probe.calls.copy()
    me = threading.get_ident()
    written = device.queue.write(buffer, data)
    assert written.state in {"issued", "done"}
    written.wait(LIMIT)
    assert probe.callers["copy_from_host", me] == 1
    assert probe.calls["allocate"] == calls["allocate"]
    assert (buffer.map() == data).all()


def test_small_ones_get_pinned_memory_for_the_next_time_m1(open_blocking):
    """M1: the first makes no native allocation on the submitting thread, but has one made."""
    device, probe = open_blocking()
    buffer, data = device.allocate(256), np.arange(256, dtype=np.uint8)
    me = threading.get_ident()
    before = probe.callers["allocate", me]
    device.queue.write(buffer, data).wait(LIMIT)
    wait_until(lambda: device.trim(1 << 40) == 0 and device._heap.books.has(256 + 1))
    device.queue.update(buffer, data[::-1].copy()).wait(LIMIT)
    assert probe.callers["allocate", me] == before
    assert probe.callers["copy_from_host", me] == 1
    assert (buffer.map() == data[::-1]).all()


def test_a_native_allocation_that_stalls_holds_up_no_submitter_q1(open_blocking):
    """Q1: nobody waits for pinned memory that the driver takes its time for."""
    device, probe = open_blocking()
    buffer = device.allocate(256)
    stall = Stall()
    probe.fail_call(1, stall, ("allocate",))
    written = device.queue.write(buffer, np.ones(256, np.uint8))
    assert stall.entered.wait(LIMIT)
    written.wait(LIMIT)
    assert (buffer.map() == 1).all()
    stall.leave.set()


@pytest.mark.parametrize("count", [2, 16])
def test_many_operations_copy_at_once_m1(open_blocking, count):
    """M1: both ways: all of them end, with their own bytes."""
    device, probe = open_blocking()
    queues = [device.create_queue() for _ in range(count)]
    arrays = [some(MANY, seed) for seed in range(count)]
    buffers = [device.allocate(MANY) for _ in range(count)]
    outs = [np.zeros(MANY, np.uint8) for _ in range(count)]
    reads = []
    for queue, array, buffer, out in zip(queues, arrays, buffers, outs, strict=True):
        queue.write(buffer, array)
        reads.append(queue.read(buffer, out))
    for submission in reads:
        submission.wait(3 * LIMIT)
    for array, out in zip(arrays, outs, strict=True):
        assert (out == array).all()
    held = sum(probe.alive["allocation"].values())
    assert held == count * hal._memory.blocks.block_size(MANY), "nothing else is allocated"


def test_an_operation_that_is_held_up_does_not_hold_up_others_m1(open_blocking):
    device, probe = open_blocking()
    stuck, latch = device.allocate(SLOT), Latch()
    one, two = device.create_queue(), device.create_queue()
    probe.hold(latch)
    held = one.write(stuck.subspan(0, 1), np.ones(1, np.uint8))
    wait_until(lambda: probe.calls["copy_from_host"])
    for seed in range(3):
        buffer = device.allocate(MANY)
        two.write(buffer, some(MANY, seed))
        out = np.zeros(MANY, np.uint8)
        two.read(buffer, out).wait(LIMIT)
        assert (out == some(MANY, seed)).all()
    assert not held.done
    latch.open()
    held.wait(LIMIT)


# Without a way round


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_arrays_in_the_devices_own_memory_are_copied_directly_m1(open_blocking, memory):
    """M1: no other thread: they are pinned already."""
    device, probe = open_blocking()
    pinned = device.allocate(MANY, memory=memory)
    array, buffer = pinned.map(), device.allocate(MANY)
    array[:] = some(MANY)
    device.queue.write(buffer, array).wait(LIMIT)
    part = array[100 : 100 + LARGE]
    part[:] = 0
    device.queue.read(buffer, part, offset=5).wait(LIMIT)
    assert (part == some(MANY)[5 : 5 + LARGE]).all()
    assert probe.calls["copy"] == 2
    assert probe.calls["copy_from_host"] == probe.calls["copy_to_host"] == 0


def test_imported_arrays_are_copied_directly_m1(open_blocking):
    device, probe = open_blocking()
    array = some(MANY)
    imported, buffer = device.import_array(array), device.allocate(MANY)
    device.queue.write(buffer, array[3:]).wait(LIMIT)
    assert probe.calls["copy"] == 1
    assert (buffer.map()[: MANY - 3] == some(MANY)[3:]).all()
    imported.close()
    gc.collect()
    device.trim(1 << 40)
    device.queue.write(buffer, array).wait(LIMIT)
    assert (buffer.map() == some(MANY)).all()
    assert probe.calls["copy"] == 1


def test_the_pinned_memory_of_a_direct_copy_is_kept_q5(open_blocking):
    device, _ = open_blocking()
    pinned, buffer = device.allocate(MANY, memory="host"), device.allocate(MANY)
    array = pinned.map()
    array[:] = 9
    gate = hal.create_semaphore()
    written = device.queue.write(buffer, array, wait=gate.at(1))
    del array, pinned
    gc.collect()
    others = [device.allocate(MANY, memory="host") for _ in range(2)]
    for other in others:
        other.map(wait=())[:] = 0
    gate.signal(1)
    assert (buffer.numpy(wait=written, timeout=LIMIT) == 9).all()


def test_an_array_over_the_target_itself_m1(open_blocking):
    """M1: the host moves the bytes, as no native copy takes ends that overlap."""
    device, _ = open_blocking()
    buffer = device.allocate(MANY, memory="host")
    view = buffer.map()
    view[:] = some(MANY)
    device.queue.write(buffer, view).wait(LIMIT)
    assert (view == some(MANY)).all()
    device.queue.write(buffer, view[SMALL : 2 * SMALL + 9], offset=SMALL + 5 * SLOT).wait(LIMIT)
    assert (view[: SMALL + 5 * SLOT] == some(MANY)[: SMALL + 5 * SLOT]).all()


def test_read_only_arrays_are_refused_m1(open_blocking):
    device, _ = open_blocking()
    array = np.zeros(MANY, np.uint8)
    array.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        device.queue.read(device.allocate(MANY), array)
