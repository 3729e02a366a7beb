"""Copies between two pieces of pinned memory, which block in a driver that stages: Q1, M1.

The probe reports each native one on a submitting thread, in a graph too.
"""

import threading

import pytest
from copies_harness import SLOT, some
from core_harness import LIMIT, Latch

import hal
from hal._transfers.transfers import SMALL
from hal.errors import CancelledError, OperationError

SIZES = (1, 4097, SMALL, SMALL + 1, 20 * SLOT + 3)
COPIES = ("copy", "copy_from_host", "copy_to_host", "copy_peer", "launch_graph")


def host(device, size, data=None):
    """Return a buffer in pinned memory, and its bytes."""
    buffer = device.allocate(size, memory="host")
    view = buffer.map()
    view[:] = 0 if data is None else data
    return buffer, view


def native_copies(probe):
    return sum(probe.calls[name] for name in COPIES)


@pytest.mark.parametrize("size", SIZES)
def test_every_way_between_pinned_memories_m1(open_blocking, size):
    """M1: the bytes arrive, at odd places too, and no native copy is made of them."""
    device, probe = open_blocking()
    queue, data = device.queue, some(size)
    source, _ = host(device, size, data)
    target, view = host(device, size + 16)
    pinned, array = host(device, size + 16)
    imported = some(size, 3)
    owner = device.import_array(imported)
    for submit, found, expected in (
        (lambda: queue.copy(source, target, target_offset=3), view[3 : size + 3], data),
        (lambda: queue.write(target, data[::-1].copy(), offset=5), view[5 : size + 5], data[::-1]),
        (lambda: queue.update(target, data, offset=7), view[7 : size + 7], data),
        (lambda: queue.write(pinned, view[7 : size + 7]), array[:size], data),
        (lambda: queue.write(target, imported), view[:size], imported),
        (lambda: queue.read(source, array[9 : size + 9]), array[9 : size + 9], data),
        (lambda: queue.copy(owner, pinned, target_offset=1), array[1 : size + 1], imported),
    ):
        submit().wait(LIMIT)
        assert (found == expected).all()
    assert (source.numpy(timeout=LIMIT) == data).all()
    assert native_copies(probe) == 0


def test_the_submitter_of_a_pinned_copy_never_waits_q1(open_blocking, latch):
    """Q1: behind a stream that is held up, each of them returns at once and stays undone."""
    device, probe = open_blocking()
    queue, size = device.queue, 256
    (source, _), (target, view) = host(device, size, some(size)), host(device, size)
    out = host(device, size)[1]
    with device.record() as commands:
        commands.copy(source, target)
        commands.update(target, b"end", offset=8)
    probe.hold(latch)
    queue.fill(source, 7)
    me = threading.get_ident()
    before = {name: probe.callers[name, me] for name in COPIES}
    submitted = [
        queue.copy(source, target),
        queue.update(target, b"ab"),
        queue.write(target, b"cd", offset=2),
        queue.read(target, out),
        queue.execute(commands),
    ]
    assert [each.done for each in submitted] == [False] * 5
    assert {name: probe.callers[name, me] for name in COPIES} == before
    assert not view.any()
    latch.open()
    submitted[-1].wait(LIMIT)
    assert bytes(out[:5]) == b"abcd\x07"
    assert bytes(view[:12]) == b"\x07" * 8 + b"end\x07"


def test_what_stands_around_a_pinned_copy_is_in_order_q2(open_blocking):
    """Q2: a fill before it, and a fill behind it, on one queue and across two."""
    device, _ = open_blocking()
    queue, other = device.queue, device.create_queue()
    (source, _), (target, view) = host(device, 64), host(device, 64)
    for value in range(1, 40):
        queue.fill(source, value)
        copied = queue.copy(source, target)
        queue.fill(source, 255)
        last = other.fill(target, value, size=32, wait=copied)
        last.wait(LIMIT)
        assert view.tolist() == [value] * 64


def test_pinned_memory_that_comes_later_m3(open_blocking):
    """M3: pinned memory of an alloca works; a use that is issued before the alloca fails."""
    device, probe = open_blocking()
    gate, data = hal.create_semaphore(), some(64)
    source, _ = host(device, 64, data)
    late = device.queue.alloca(64, memory="host", wait=gate.at(1))
    copied = device.queue.copy(source, late)
    early = device.create_queue(ordered=False).copy(source, late)
    with pytest.raises(OperationError, match="no address"):
        early.wait(LIMIT)
    gate.signal(1)
    copied.wait(LIMIT)
    assert (late.numpy(timeout=LIMIT) == data).all()
    assert native_copies(probe) == 0


def test_memory_of_other_kinds_is_copied_by_the_device_m1(open_blocking):
    """M1: copies from and to device and managed memory do not become host operations."""
    device, probe = open_blocking()
    pinned, view = host(device, 64, some(64))
    me = threading.get_ident()
    for memory in ("device", "managed"):
        buffer = device.allocate(64, memory=memory)
        device.queue.copy(pinned, buffer).wait(LIMIT)
        view[:] = 0
        device.queue.copy(buffer, pinned).wait(LIMIT)
        assert (view == some(64)).all()
    assert probe.callers["copy", me] == 4


def test_a_device_whose_copies_never_block_copies_itself_m1(open_probe):
    """M1: with the feature, the device copies pinned memory, too."""
    device, probe = open_probe()
    (source, _), (target, view) = host(device, 64, some(64)), host(device, 64)
    device.queue.copy(source, target).wait(LIMIT)
    device.queue.update(target, b"ab").wait(LIMIT)
    with device.record(command_buffer="graph") as commands:
        commands.copy(source, target)
    assert commands.lowering == "graph"
    device.queue.execute(commands).wait(LIMIT)
    assert (view == some(64)).all()
    assert [probe.calls[name] for name in COPIES] == [1, 1, 0, 0, 1]


# Between devices


def test_pinned_memory_of_two_devices_q1(open_blocking):
    """Q1: no peer copy is made on the submitting thread; the bytes arrive all the same."""
    (one, first), (two, second) = open_blocking(), open_blocking()
    (source, _), (target, view) = host(one, 5000, some(5000)), host(two, 5000)
    latch = Latch()
    for queue, probe in ((one.queue, first), (two.queue, second)):
        view[:] = 0
        probe.hold(latch)
        queue.fill(source if queue is one.queue else target, 9, size=1)
        copied = queue.copy(source, target, source_offset=10, size=4000)
        assert not copied.done
        latch.open()
        copied.wait(LIMIT)
        assert (view[:4000] == some(5000)[10:4010]).all()
    assert native_copies(first) == native_copies(second) == 0


def test_closing_a_device_cancels_a_pinned_copy_from_it_q6(open_blocking):
    """Q6: closing cancels it, like other uses of another device's memory."""
    (one, _), (two, _) = open_blocking(), open_blocking()
    (source, _), (target, _) = host(one, 64), host(two, 64)
    gate = hal.create_semaphore()
    copied = two.queue.copy(source, target, wait=gate.at(1))
    assert one.close(LIMIT) == ()
    with pytest.raises(CancelledError, match="closed before"):
        copied.wait(LIMIT)
    gate.signal(1)


# In recordings


@pytest.mark.parametrize("mode", ["graph", "stream", "auto"])
def test_a_recording_with_a_pinned_copy_is_the_hosts_c4(open_blocking, mode):
    """C4: one of hal's threads runs it, with the same result in every mode."""
    device, probe = open_blocking()
    me = threading.get_ident()
    (source, _), (target, view) = host(device, 64, some(64)), host(device, 64)
    plain = device.allocate(64)
    with device.record(command_buffer=mode) as commands:
        commands.fill(source, 3, size=4)
        commands.barrier()
        commands.copy(source, target)
        commands.barrier()
        commands.update(target, b"tail", offset=60)
        commands.barrier()
        commands.copy(target, plain)
    assert commands.lowering == "host"
    for _ in range(2):
        view[:] = 0
        done = device.queue.execute(commands)
        expected = some(64)
        expected[:4], expected[60:] = 3, list(b"tail")
        assert (plain.numpy(wait=done, timeout=LIMIT) == expected).all()
        assert (view == expected).all()
    assert all(probe.callers[name, me] == 0 for name in ("copy", "launch_graph"))


@pytest.mark.parametrize("mode", ["graph", "stream"])
def test_slots_that_pinned_memory_is_bound_to_c3(open_blocking, mode):
    """C3: each execution is run as its bindings call for, and others as they were."""
    device, probe = open_blocking()
    data = some(64)
    direct, view = host(device, 64)
    with device.record(slots=[("u1", 64)] * 2, command_buffer=mode) as commands:
        source, target = commands.slots
        commands.copy(source, target)
        commands.barrier()
        commands.update(target, b"tail", offset=60)
        commands.barrier()
        commands.copy(target, direct)
    assert commands.lowering == mode
    me = threading.get_ident()
    expected = data.copy()
    expected[60:] = list(b"tail")
    name = "launch_graph" if mode == "graph" else "copy"
    pinned_source, _ = host(device, 64, data)
    plain_source = device.upload(data)
    for given, kind, is_host in (
        (pinned_source, "device", False),
        (plain_source, "device", False),
        (plain_source, "host", True),
        (pinned_source, "host", True),
        (pinned_source, "managed", False),
    ):
        view[:] = 0
        into = device.allocate(64, memory=kind)
        before = probe.callers[name, me]
        done = device.queue.execute(commands, bindings=[given, into])
        assert (into.numpy(wait=done, timeout=LIMIT) == expected).all()
        assert (view == expected).all()
        assert (probe.callers[name, me] == before) is is_host


def test_the_stream_is_idle_when_a_recorded_pinned_copy_is_made_q1(open_blocking):
    """Q1: not even hal's own thread blocks inside the driver, where it might delay others."""
    device, probe = open_blocking()
    (source, _), (target, _) = host(device, 64), host(device, 64)
    with device.record() as commands:
        commands.fill(source, 1)
        commands.copy(source, target)
    events, inner = [], probe.inner

    class Watched:
        def __getattr__(self, name):
            method = getattr(inner, name)
            if name not in {"fill", "copy", "synchronize_stream"}:
                return method
            return lambda *call: (events.append(name), method(*call))[1]

    probe.inner = Watched()
    device.queue.execute(commands).wait(LIMIT)
    probe.inner = inner
    assert events[:3] == ["fill", "synchronize_stream", "copy"]


def test_a_recorded_pinned_copy_that_fails_says_which_it_was_c4(open_blocking):
    device, probe = open_blocking()
    (source, _), (target, _) = host(device, 64), host(device, 64)
    with device.record() as commands:
        commands.fill(source, 1)
        commands.copy(source, target, name="between")
    probe.fail_call(1, OperationError("broken on purpose"), {"copy"})
    with pytest.raises(OperationError, match=r"command 1 of 2, copy 'between'.*on purpose"):
        device.queue.execute(commands).wait(LIMIT)
    device.queue.execute(commands).wait(LIMIT)
