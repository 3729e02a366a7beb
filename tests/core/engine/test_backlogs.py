"""A submission returns at once, whatever it waits for (Q1): backlogs, and what moves them."""

import threading

from core_harness import LIMIT, Latch, stalled

import hal
from hal._engine import progress


def test_signal_issues_64_operations_itself_at_most_q1(open_probe):
    """Q1: a signal that releases 500 operations hands the rest over, whatever their queues."""
    device, probe = open_probe()
    buffer, gate = device.allocate(4), hal.create_semaphore()
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]
    fills = [queues[index % 4].fill(buffer, 1, wait=gate.at(1)) for index in range(500)]
    gate.signal(1)
    assert probe.callers["fill", threading.get_ident()] <= 64
    hal.wait_all(fills, LIMIT)
    assert probe.calls["fill"] == 500


def test_a_thread_that_waits_issues_what_it_has_handed_over_q1(open_probe):
    """Q1: for two that issue take the interpreter lock from each other. Here only one can."""
    device, probe = open_probe()
    buffer, gate = device.allocate(4), hal.create_semaphore()
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]
    fills = [queues[index % 4].fill(buffer, 1, wait=gate.at(1)) for index in range(500)]
    is_held, leave = threading.Event(), threading.Event()
    hold = (lambda *_: (is_held.set(), leave.wait(LIMIT)), None, None)
    threading.Thread(target=progress.put_last, args=hold).start()
    assert is_held.wait(LIMIT)
    gate.signal(1)
    try:
        hal.wait_all(fills, LIMIT)
    finally:
        leave.set()
    assert probe.callers["fill", threading.get_ident()] == 500


def test_threads_that_submit_do_not_wait_for_each_other_q1(open_probe):
    """Q1: a thread that is in the middle of a native call blocks no other submitter."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    stall, slow = stalled(probe, "fill", 1, device.queue.fill, buffer, 1)
    same = device.queue.fill(buffer, 2)
    other = device.queues.upload.barrier()
    other.wait(LIMIT)
    assert slow.is_alive()
    assert same.state == "pending", "it stands behind the other thread's"
    stall.leave.set()
    slow.result()
    same.wait(LIMIT)
    assert buffer.numpy().tolist() == [2] * 16


def test_a_recording_leaves_room_for_the_waits_of_its_stream_q1(open_probe):
    """Q1: a stream's waits take room as launches do, and a part has as many calls as are left."""
    device, probe = open_probe(max_in_flight=8)
    buffer, latch = device.allocate(4), Latch()
    with device.record(command_buffer="stream") as commands:
        for _ in range(20):
            commands.fill(buffer, 1)
            commands.barrier()
    before = []
    for _ in range(3):
        probe.hold(latch)
        before.append(device.create_queue().fill(buffer, 1))
    probe.calls.clear()
    executed = device.queue.execute(commands, wait=before)
    assert (probe.calls["wait_event"], probe.calls["fill"]) == (3, 5)
    latch.open(3)
    executed.wait(LIMIT)


def test_a_stream_waits_once_for_each_other_one_q1(open_probe):
    """Q1: its newest operation ends last. A wait for each would fill the stream, or block."""
    device, probe = open_probe()
    buffer, latch = device.allocate(4), Latch()
    probe.hold(latch)
    fills = [device.queues.upload.fill(buffer, 1) for _ in range(5)]
    probe.hold(latch)
    fills += [device.queues.download.fill(buffer, 1) for _ in range(5)]
    after = [device.create_queue().barrier(wait=waits) for waits in (fills, fills[::-1])]
    assert probe.calls["wait_event"] == 4
    latch.open(2)
    hal.wait_all(after, LIMIT)
    assert all(each._retired for each in fills)
