"""Several devices of one driver: copies between them, and kernels on each other's memory.

Q5 and Q6 across devices: what one uses of another lives until then, and closing
the owner of the memory cancels what was not issued and waits for what was.
"""

import gc
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch, Running, wait_until
from interop_harness import assert_soon

import hal
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    ClosedError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    UnimplementedError,
)

SOURCE = """
__global__ void HAL_BLOCK(64) add(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
"""
NUMBERS = np.arange(64, dtype=np.int32)


@pytest.fixture
def pair(open_probe):
    """Two devices of one driver, with their probes."""
    (first, one), (second, two) = open_probe(), open_probe()
    return first, one, second, two


def add_on(device, x, y):
    """Add x to y on a device."""
    return device.queue.dispatch(device.compile(SOURCE)["add"], grid=1, args=(x, y, 64))


# Copies


@pytest.mark.parametrize("way", ["read", "write", "copy out", "copy in"])
def test_pinned_memory_of_another_device_is_copied_in_place_m1(open_blocking, way):
    """M1: its view, too; that is not ordinary host memory, which a thread of the pool copies."""
    (first, one), (second, _) = open_blocking(), open_blocking()
    data = np.arange(100_000, dtype=np.uint8)
    inner, pinned = first.upload(data), second.allocate(100_008, memory="host")
    view = pinned.map()
    view[:] = 7
    submit = {
        "read": lambda: first.queue.read(inner, view[4:-4]),
        "write": lambda: first.queue.write(inner, view[4:-4]),
        "copy out": lambda: first.queue.copy(inner, pinned, target_offset=4),
        "copy in": lambda: first.queue.copy(pinned, inner, source_offset=4, size=100_000),
    }[way]
    before = one.calls.copy()
    submit().wait(LIMIT)
    assert {one.calls[name] - before[name] for name in ("copy_to_host", "copy_from_host")} == {0}
    if way in ("read", "copy out"):
        assert (view[4:-4] == data).all()
        assert [*view[:4], *view[-4:]] == [7] * 8
    else:
        assert (inner.numpy() == 7).all()


@pytest.mark.parametrize("state", ["pending", "issued"])
def test_who_has_the_pinned_memory_may_be_closed_first_q6(open_blocking, state):
    """Q6: closing the owner cancels unissued users of the memory, and waits for issued ones."""
    (first, one), (second, _) = open_blocking(), open_blocking()
    inner, pinned = (
        first.upload(np.ones(100_000, np.uint8)),
        second.allocate(100_000, memory="host"),
    )
    gate, latch = hal.create_semaphore(), Latch()
    if state == "issued":
        gate.signal(1)
        one.hold(latch)
    read = first.queue.read(inner, pinned.map(), wait=gate.at(1))
    assert read.state == state
    closing = Running(second.close, LIMIT)
    latch.open()
    closing.result()
    assert read.state == ("done" if state == "issued" else "cancelled")


def test_a_view_that_outlives_its_device_is_ordinary_memory_m2(open_blocking):
    """M2: after the close a view is ordinary host memory as long as it lives."""
    (first, one), (second, _) = open_blocking(), open_blocking()
    inner = first.upload(np.ones(100_000, np.uint8))
    view = second.allocate(100_000, memory="host").map()
    second.close(LIMIT)
    first.queue.read(inner, view).wait(LIMIT)
    assert (view == 1).all()
    view[:] = 2
    first.queue.write(inner, view).wait(LIMIT)
    assert (inner.numpy() == 2).all()
    assert one.calls["copy_to_host"] > 0


def test_pinned_memory_of_another_driver_is_ordinary_memory_m1(open_blocking):
    (first, one), (second, _) = open_blocking(), open_blocking(domain=object())
    inner, pinned = (
        first.upload(np.ones(100_000, np.uint8)),
        second.allocate(100_000, memory="host"),
    )
    view = pinned.map()
    first.queue.read(inner, view).wait(LIMIT)
    assert one.calls["copy_to_host"] > 0
    assert (view == 1).all()


def test_large_copies_go_in_parts(pair, monkeypatch):
    monkeypatch.setattr("hal._transfers.peer_copies.CHUNK", 100)
    first, _, second, two = pair
    source, target = first.upload(NUMBERS), second.upload(np.zeros(64, np.int32))
    second.queue.copy(source, target).wait(LIMIT)
    assert target.numpy().tolist() == NUMBERS.tolist()
    assert two.calls["copy_peer"] == 3


def test_copies_of_memory_that_comes_later_m3(pair):
    """M3: either side of a copy may belong to an alloca that is not issued yet."""
    first, _, second, _ = pair
    gate = hal.create_semaphore()
    source = first.queue.alloca(256, dtype="i4", wait=gate.at(1))
    target = second.queue.alloca(256, dtype="i4", wait=gate.at(1))
    filled = first.queue.fill(source, 3, wait=source.allocation)
    copied = second.queue.copy(source, target, wait=[filled, target.allocation])
    early = second.queues.upload.copy(source, second.allocate(256))
    with pytest.raises(OperationError, match="alloca"):
        early.wait(LIMIT)
    gate.signal(1)
    copied.wait(LIMIT)
    assert (target.numpy() == 3).all()


def test_memory_that_both_devices_have_does_not_overlap_itself(device, second_device):
    buffer = device.upload(NUMBERS)
    other = second_device.from_dlpack(buffer)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        device.queue.copy(buffer, other, target_offset=4, size=8)
    device.queue.copy(buffer, other).wait(LIMIT)  # onto itself: nothing
    device.queue.copy(buffer.subspan(0, 128), other.subspan(128, 128)).wait(LIMIT)
    assert buffer.numpy().tolist() == [*range(32), *range(32)]
    del buffer, other  # a thread gives the memory back, which is not to be told of by `close`
    assert_soon(second_device, lambda: device.statistics().allocations == 0)


# Where there is no way


def test_other_drivers_devices_copy_through_the_host(open_probe):
    first, _ = open_probe(domain=object())
    second, two = open_probe(domain=object())
    source, target = first.upload(NUMBERS), second.allocate(256, dtype="i4")
    for queue in (first.queue, second.queue):
        with pytest.raises(InvalidArgumentError, match=r"through the host.*upload"):
            queue.copy(source, target)
    assert not second.can_access(first)
    with pytest.raises(UnimplementedError, match=r"different drivers.*through the host"):
        second.enable_access(first)
    with pytest.raises(InvalidArgumentError, match="through the host"):
        add_on(second, source, target)
    assert two.calls["copy_peer"] == two.calls["can_access_peer"] == two.calls["enable_peer"] == 0


def test_a_backend_without_the_feature_says_so(open_probe):
    first, _ = open_probe(without={"peer_access"})
    second, _ = open_probe(without={"peer_access"})
    with pytest.raises(InvalidArgumentError, match="through the host"):
        second.queue.copy(first.allocate(16), second.allocate(16))
    assert not first.can_access(second)
    with pytest.raises(UnimplementedError, match="'peer_access'"):
        first.enable_access(second)


def test_hardware_without_a_connection_still_copies(pair, monkeypatch):
    first, _, second, two = pair
    monkeypatch.setattr(two, "can_access_peer", lambda other: False)
    assert not second.can_access(first)
    with pytest.raises(UnimplementedError, match=r"no connection.*queue\.copy"):
        second.enable_access(first)
    source, target = first.upload(NUMBERS), second.upload(np.zeros(64, np.int32))
    with pytest.raises(InvalidArgumentError, match=r"queue\.copy"):
        add_on(second, source, target)
    second.queue.copy(source, target).wait(LIMIT)
    assert target.numpy().tolist() == NUMBERS.tolist()
    assert two.calls["enable_peer"] == 0


def test_bad_arguments_are_refused(device, second_device):
    for method in (device.can_access, device.enable_access):
        with pytest.raises(ArgumentTypeError, match="takes a device"):
            method("cpu:0")
    assert device.can_access(device)
    device.enable_access(device)
    second_device.close(LIMIT)
    for method in (device.can_access, device.enable_access):
        with pytest.raises(ClosedError):
            method(second_device)


# Kernels


def test_nothing_else_uses_a_peers_memory(pair):
    first, _, second, _ = pair
    second.enable_access(first)
    x = first.upload(NUMBERS)
    counts = first.upload(np.ones(3, np.uint32))
    kernel = second.compile(SOURCE)["add"]
    y = second.upload(NUMBERS)
    for wrong in (
        lambda: second.queue.fill(x, 0),
        lambda: second.queue.update(x, b"abcd"),
        lambda: second.queue.write(x, NUMBERS),
        lambda: second.queue.read(x, NUMBERS.copy()),
        lambda: second.queue.dispatch(kernel, grid=counts, args=(y, y, 64)),
        lambda: second.record().fill(x, 0),
    ):
        with pytest.raises(InvalidArgumentError, match=r"belongs to cpu:0.*queue\.copy"):
            wrong()


def test_a_dealloca_elsewhere_says_where_it_belongs_m3(device, second_device):
    """M3: copying the buffer there would not give it back."""
    buffer = device.queue.alloca(64)
    with pytest.raises(
        InvalidArgumentError, match=r"this queue to cpu:0 \(2\); submit it to a queue"
    ):
        second_device.queue.dealloca(buffer)
    device.queue.dealloca(buffer).wait(LIMIT)


def test_a_kernels_rights_hold_across_devices(pair):
    first, _, second, _ = pair
    second.enable_access(first)
    x = first.allocate(256, dtype="i4", access="read")
    with pytest.raises(InvalidArgumentError, match="must not be written"):
        add_on(second, second.upload(NUMBERS), x)


MODES = pytest.mark.parametrize("mode", ["graph", "stream"])


def test_recorded_copies_that_no_graph_takes_are_replayed_c4(pair, monkeypatch):
    """C4: the driver copies between all of its devices, and graphs only between linked ones."""
    first, _, second, two = pair
    monkeypatch.setattr(two, "can_access_peer", lambda other: False)
    x, y = first.upload(NUMBERS), second.upload(np.zeros(64, np.int32))
    with second.record(command_buffer="graph") as commands:
        commands.copy(x, y)
    assert commands.lowering == "stream"
    second.queue.execute(commands).wait(LIMIT)
    assert y.numpy().tolist() == NUMBERS.tolist()


def test_recorded_copies_that_cannot_be_are_refused_c1(pair, open_probe):
    """C1: while recording, each with its way out."""
    first, _, second, _ = pair
    third, _ = open_probe()
    foreign, _ = open_probe(domain=object())
    x, y = first.upload(NUMBERS), second.upload(NUMBERS)
    commands = first.record()
    with pytest.raises(InvalidArgumentError, match="record it for one of those"):
        third.record().copy(x, y)
    with pytest.raises(InvalidArgumentError, match="through the host"):
        commands.copy(x, foreign.allocate(256))
    with pytest.raises(InvalidArgumentError, match="0 to 257"):
        commands.copy(x, y, size=257)
    y.close()
    with pytest.raises(ClosedError):
        commands.copy(x, y)
    second.close(LIMIT)
    assert not len(commands)


@MODES
@pytest.mark.parametrize("how", ["direct", "slot"])
def test_recordings_use_a_peers_memory_c3(pair, mode, how):
    """C3: given directly or bound to a slot; each execution visits the other device."""
    first, _, second, _ = pair
    second.enable_access(first)
    x, y = first.upload(NUMBERS), second.upload(np.zeros(64, np.int32))
    kernel = second.compile(SOURCE)["add"]
    with second.record(slots=1, command_buffer=mode) as commands:
        commands.dispatch(kernel, grid=1, args=(x if how == "direct" else commands.slots[0], y, 64))
    bindings = [second.upload(NUMBERS) if how == "direct" else x]
    for _ in range(2):
        second.queue.execute(commands, bindings=bindings).wait(LIMIT)
    assert y.numpy().tolist() == (NUMBERS * 2).tolist()
    gate = hal.create_semaphore()
    pending = second.queue.execute(commands, bindings=bindings, wait=gate.at(1))
    first.close(LIMIT)
    assert pending.state == "cancelled"
    gate.signal(1)
    second.wait_idle(LIMIT)
    if how == "direct":
        with pytest.raises(CancelledError, match=r"memory of cpu:0"):
            second.queue.execute(commands, bindings=bindings).wait(LIMIT)
    else:
        with pytest.raises(ClosedError):
            second.queue.execute(commands, bindings=bindings)
    assert y.numpy().tolist() == (NUMBERS * 2).tolist()


# Lifetimes


def test_closing_a_device_that_is_visited_for_too_long_q6(pair):
    """Q6: at the time-out the device is lost, names the other's work, and keeps the memory."""
    first, one, second, two = pair
    x, y = first.upload(NUMBERS), second.upload(np.zeros(64, np.int32))
    latch = Latch()
    two.hold(latch)
    work = second.queue.copy(x, y)
    (line,) = first.close(0.05)
    assert line == "work on cpu:0 (2) that uses memory of cpu:0"
    assert first.lost
    assert one.live()["allocation"] >= 1
    latch.open()
    work.wait(LIMIT)
    assert y.numpy().tolist() == NUMBERS.tolist()
    assert not second.lost


def test_the_device_that_uses_the_memory_may_close_first_q6(pair):
    first, one, second, _ = pair
    x = first.upload(NUMBERS)
    gate = hal.create_semaphore()
    pending = second.queue.copy(x, second.allocate(256), wait=gate.at(1))
    assert second.close(LIMIT) == ()
    assert pending.state == "cancelled"
    x.close()
    gc.collect()
    wait_until(lambda: first.statistics().allocations == 0)
    assert first.close(LIMIT) == ()
    assert one.live() == {}


def test_a_loss_stays_with_its_device_s5(pair):
    """S5: and its unfinished visits do not hold up the close of the other one."""
    first, _, second, two = pair
    x, y = first.upload(NUMBERS), second.allocate(256)
    two.fail_event(DeviceLostError("gone"))
    work = second.queue.copy(x, y)
    with pytest.raises(DeviceLostError):
        work.wait(LIMIT)
    assert second.lost
    assert not first.lost
    other = first.upload(NUMBERS)
    first.queue.fill(other, 1).wait(LIMIT)
    assert first.close(LIMIT) == ()


def test_an_issue_that_fails_ends_its_visit_q5(pair):
    first, _, second, two = pair
    x, y = first.upload(NUMBERS), second.allocate(256)
    two.fail_call(1, OperationError("no way"), {"copy_peer"})
    with pytest.raises(OperationError, match="no way"):
        second.queue.copy(x, y).wait(LIMIT)
    second.queue.barrier().wait(LIMIT)
    assert first.close(LIMIT) == ()


def test_both_devices_close_while_they_copy_to_each_other_q6():
    """Q6: in whatever order the threads act, both closes return in time."""
    for _ in range(20):
        first, second = hal.create_device("cpu"), hal.create_device("cpu")
        x, y = first.upload(NUMBERS), second.upload(NUMBERS)
        stop = threading.Event()

        def copy(queue, source, target, stop=stop):
            while not stop.is_set():
                try:
                    queue.copy(source, target)
                except ClosedError:
                    return

        copying = Running(copy, first.queue, y, x), Running(copy, second.queue, x, y)
        assert first.close(LIMIT) == ()
        assert second.close(LIMIT) == ()
        stop.set()
        for each in copying:
            each.result()
