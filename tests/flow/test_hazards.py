"""Every hazard has its wait, and nothing else is waited for."""

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ClosedError, HalError, InvalidArgumentError
from hal.flow import Flow, Recording

SOURCE = """
extern "C" __global__ void HAL_BLOCK(1) add(const int *x, int *y) { y[0] += x[0]; }
extern "C" __global__ void HAL_BLOCK(1) choose(unsigned *counts) {
  counts[0] = 3; counts[1] = counts[2] = 1;
}
extern "C" __global__ void HAL_BLOCK(1) count(int *y) { atomicAdd(y, 1); }
"""


def ints(flow, *values, **options):
    return flow.from_host(np.array(values, np.int32), **options)


def settled(buffer):
    buffer.used.wait(LIMIT)
    return buffer


@pytest.fixture
def kernels(device):
    return device.compile(SOURCE)


@pytest.mark.parametrize("form", ["sequence", "mapping"])
def test_reads_and_writes_narrow_what_a_kernel_does(flow, kernels, gate, form):
    x, y = settled(ints(flow, 1)), settled(ints(flow, 10))
    args = (x, y) if form == "sequence" else {"x": x, "y": y}
    flow.dispatch(kernels["add"], grid=1, args=args, reads=["y"], writes=["x"], wait=gate.at(1))
    assert flow.to_host(y).result(LIMIT).tolist() == [10]
    late = flow.to_host(x)
    assert late.submission.state == "pending"
    gate.signal(1)
    late.result(LIMIT)
    with pytest.raises(hal.errors.InvalidArgumentError, match="'z'"):
        flow.dispatch(kernels["add"], grid=1, args=(x, y), reads=["z"])
    with pytest.raises(TypeError, match="reads and writes: a list of names"):
        flow.dispatch(kernels["add"], grid=1, args=(x, y), reads="y")


def test_a_grid_in_memory_is_read(flow, kernels, gate):
    counts, y = settled(ints(flow, 0, 0, 0)), settled(ints(flow, 0))
    flow.dispatch(kernels["choose"], grid=1, args=(counts,), wait=gate.at(1), queue="upload")
    counted = flow.dispatch(kernels["count"], grid=counts, args=(y,))
    assert counted.state == "pending"
    gate.signal(1)
    assert y.numpy(timeout=LIMIT).tolist() == [3]


def test_a_recording_of_two_devices_waits_for_both_and_both_wait_for_it(
    device, second_device, gate
):
    with Flow(device, second_device) as flow:
        x, y = settled(ints(flow, 1)), settled(ints(flow, 0))
        there = flow.allocate(4, device=second_device, dtype=np.int32)
        with flow.record(hazards="auto") as commands:
            with commands.on(second_device):
                commands.copy(x, there)
            with commands.on("download"):
                commands.copy(there, y)
        flow.fill(there, 9, wait=gate.at(1))
        done = flow.execute(commands)
        flow.fill(there, 7)
        assert done.state == "pending"
        gate.signal(1)
        assert y.numpy(timeout=LIMIT).tolist() == [1]
        assert there.numpy(timeout=LIMIT).tolist() == [7]


def test_a_recordings_temporaries_need_no_tracking_m3(flow, device, kernels):
    """M3: a whole step is one recording, and executions use its memory one after the other."""
    x, y = ints(flow, 1), ints(flow, 0)
    with flow.record(slots=[np.int32]) as commands:
        once = commands.alloca(1 << 20, dtype=np.int32)
        commands.copy(commands.slots[0], once, size=4)
        commands.dispatch(kernels["add"], grid=1, args=(once, y))
        commands.dealloca(once)
        again = commands.alloca(1 << 20, dtype=np.int32)
        commands.fill(again, 5)
        commands.dispatch(kernels["add"], grid=1, args=(again, y))
    assert commands.uses == [1]
    for _ in range(10):
        flow.execute(commands, bindings=[x])
    assert y.numpy(timeout=LIMIT).tolist() == [60]
    assert device.statistics().bytes_peak < 4 << 20
    with flow.record() as commands:
        once = commands.alloca(4)
        commands.dealloca(once)
        with pytest.raises(ClosedError, match="given back"):
            commands.fill(once, 0)


def test_a_raw_recording_reads_and_writes_its_slots_unless_told(flow, device, kernels, gate):
    x, y = settled(ints(flow, 1)), settled(ints(flow, 10))
    with device.record(slots=2) as commands:
        commands.dispatch(kernels["add"], grid=1, args=tuple(commands.slots))
    flow.execute(commands, bindings={0: x, 1: y}, reads=[0], wait=gate.at(1))
    assert flow.to_host(x).result(LIMIT).tolist() == [1]
    flow.execute(commands, bindings=[x, y])
    assert flow.to_host(x).submission.state == "pending"
    gate.signal(1)
    assert y.numpy(timeout=LIMIT).tolist() == [12]


def test_host_calls_stand_in_the_place_of_work(flow, gate):
    buffer, seen = settled(ints(flow, 1)), []
    flow.fill(buffer, 2, wait=gate.at(1))
    called = flow.call(seen.append, "called", reads=[buffer], queue="download")
    assert called.state == "pending"
    gate.signal(1)
    called.wait(LIMIT)
    assert seen == ["called"]


def test_a_kernel_that_uses_a_peers_memory(pair, gate):
    """In any order of the arguments it runs where it was loaded."""
    one, two = pair.devices
    one.enable_access(two)
    add = one.compile(SOURCE)["add"]
    here, there = settled(ints(pair, 1)), settled(ints(pair, 10, target=two))
    pair.fill(there, 20, wait=gate.at(1))
    done = pair.dispatch(add, grid=1, args=(there, here))
    assert done.queue is one.queue
    assert done.state == "pending"
    gate.signal(1)
    assert here.numpy(timeout=LIMIT).tolist() == [21]


def test_recovery_comes_after_what_the_failed_work_never_waited_for(flow, gate):
    """A failed operation did not wait for its other hazards: the next one has to."""
    buffer, out = settled(ints(flow, 1)), np.zeros(1, np.int32)
    broken = hal.create_semaphore()
    read = flow.read(buffer, out, wait=gate.at(1))  # runs later
    broken.fail(RuntimeError("no power"))
    assert flow.fill(buffer, 2, wait=broken.at(1)).state == "failed"
    buffer.recover()
    write = flow.fill(buffer, 3)
    assert [read.state, write.state] == ["pending", "pending"]
    gate.signal(1)
    write.wait(LIMIT)
    assert out.tolist() == [1]


def test_an_interrupt_in_a_submission_loses_no_hazard(flow, gate, monkeypatch):
    """Ctrl-C after the queue took the work, before the flow noted it."""
    buffer = settled(ints(flow, 1))
    fill = hal.Queue.fill

    def interrupted(*arguments, **options):
        fill(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(hal.Queue, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flow.fill(buffer, 2, wait=gate.at(1))
    monkeypatch.undo()
    late = flow.to_host(buffer)
    assert late.submission.state == "pending"
    gate.signal(1)
    assert late.result(LIMIT).tolist() == [2]


def test_refused_work_changes_nothing(flow, gate):
    buffer = settled(ints(flow, 1))
    before = buffer.used
    for wrong in (
        lambda: flow.fill(buffer, 1, offset=100),
        lambda: flow.fill(buffer, "x"),
        lambda: flow.write(buffer, np.zeros(9)),
        lambda: flow.read(buffer, np.zeros(9)),
        lambda: flow.fill(buffer, 1, queue="sideways"),
        lambda: flow.fill(buffer, 1, queue=3),
        lambda: flow.fill(buffer, 1, wait=3),
    ):
        with pytest.raises(HalError):
            wrong()
    assert set(buffer.used) == set(before)


def test_parts_that_are_in_use_are_not_forgotten(flow, gate):
    buffer, array = settled(ints(flow, *range(200))), np.zeros(1, np.int32)
    for index in range(0, 200, 2):
        flow.read(buffer.subspan(4 * index, 4), array, wait=gate.at(1))
    writes = [flow.fill(buffer.subspan(4 * index, 4), 0) for index in (0, 198)]
    assert [each.state for each in writes] == ["pending"] * 2
    flow.fill(buffer.subspan(4, 4), 0, queue="upload").wait(LIMIT)
    gate.signal(1)
    hal.wait_all(writes, LIMIT)


def test_readers_and_parts_are_bounded(flow):
    buffer = flow.allocate(4096, dtype=np.int32)
    flow.fill(buffer, 0)
    for index in range(3000):
        flow.fill(buffer, index, offset=4 * (index * 37 % 1024), size=4).wait(LIMIT)
        flow.to_host(buffer.subspan(4 * (index * 53 % 1024), 4)).result(LIMIT)
    assert len(buffer.history.intervals or ()) <= 256
    flow.fill(buffer, 0)
    assert buffer.history.intervals is None
    for _ in range(300):
        flow.read(buffer, np.empty(1024, np.int32))
    assert len(buffer.history.readers) == 1


@pytest.mark.parametrize("way", ["copy", "dispatch", "part"])
def test_closed_queues_are_forgotten(flow, device, kernels, way):
    buffer, target = settled(ints(flow, 1, 2)), settled(ints(flow, 0, 0))
    out = np.zeros(1, np.int32)
    for _ in range(100):
        with device.create_queue() as queue:
            if way == "copy":
                work = flow.copy(buffer, target, queue=queue)
            elif way == "part":
                work = flow.read(buffer.subspan(4, 4), out, queue=queue)
            else:
                work = flow.dispatch(kernels["add"], grid=1, args=(buffer, target), queue=queue)
            work.wait(LIMIT)
    assert len(flow._queues) <= 4
    history = buffer.history
    for readers in (history.readers, *(each.readers for each in history.intervals or ())):
        assert len(readers or ()) <= 16


@pytest.mark.parametrize("size", [4, 8])
def test_readers_on_many_queues_are_not_forgotten(device, gate, size):
    """Before they have ended."""
    waits, held = [], []
    flow = Flow(device, trace=lambda _, found: waits.append(list(found)))
    buffer, target = settled(ints(flow, 1, 2)), settled(ints(flow, *range(32)))
    part = buffer.subspan(0, size)
    for index in range(32):
        queue = device.create_queue()
        wait = gate.at(1) if index % 2 else ()
        read = flow.copy(part, target, size=4, target_offset=4 * index, queue=queue, wait=wait)
        if wait:
            held.append(read)
        else:
            read.wait(LIMIT)
    write = flow.fill(part, 5)
    assert set(held) <= set(waits[-1])
    assert len(waits[-1]) < 32
    gate.signal(1)
    write.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [1] * 32


@pytest.mark.parametrize("way", ["slot", "name", "direct"])
def test_what_kernels_print_is_bound_for_each_run(flow, way):
    """Runs print apart."""
    source = r"""__global__ void HAL_BLOCK(1) tell(const int *x) { printf("%d\n", x[0]); }"""
    tell = flow.devices[0].compile(source)["tell"]
    numbers = [settled(ints(flow, number)) for number in (7, 8)]
    outputs = [hal.Output(flow.devices[0]) for _ in numbers]
    if way == "direct":
        runs = [
            flow.dispatch(tell, grid=1, args=(x, output))
            for x, output in zip(numbers, outputs, strict=True)
        ]
    else:
        with flow.record(slots=2) as commands:
            commands.dispatch(tell, grid=1, args=tuple(commands.slots))
        runs = [
            flow.execute(commands, bindings=(x, output) if way == "slot" else {0: x, 1: output})
            for x, output in zip(numbers, outputs, strict=True)
        ]
    for number, run, output in zip((7, 8), runs, outputs, strict=True):
        assert str(output.read(wait=run, timeout=LIMIT)) == f"{number}\n"


@pytest.mark.parametrize("way", ["dispatch", "copy"])
def test_a_writer_that_has_ended_is_not_waited_for_for_ever(device, gate, way):
    """The buffer is written once and read often; but a failed writer's error stays."""
    waits = []
    flow = Flow(device, trace=lambda _, found: waits.append(list(found)))
    add = device.compile(SOURCE)["add"]
    source, broken, target = ints(flow, 1), ints(flow, 1), ints(flow, 0)
    settled(source), settled(broken), settled(target)

    def read(buffer):
        if way == "dispatch":
            return flow.dispatch(add, grid=1, args=(buffer, target))
        return flow.copy(buffer, target)

    written = flow.fill(source, 5, wait=gate.at(1))
    early = [read(source) for _ in range(3)]
    assert all(written in found for found in waits[-3:])  # it has not ended
    gate.signal(1)
    early[-1].wait(LIMIT)
    for _ in range(2):
        read(source).wait(LIMIT)
        assert written not in waits[-1]
    flow.fill(source, 6)
    read(source)
    assert len(waits[-1]) == 2
    fails = hal.create_semaphore()
    fails.fail(RuntimeError("no more"))
    flow.fill(broken, 1, wait=fails.at(1))
    for _ in range(3):
        late = read(broken)
        with pytest.raises(HalError, match="no more"):
            late.wait(LIMIT)
        target.recover()


@pytest.mark.parametrize("command", ["fill", "update", "copy", "dispatch"])
def test_a_command_whose_uses_an_interrupt_hid_never_runs_o3(flow, kernels, monkeypatch, command):
    """O3: it would not wait for the work on its buffers."""
    x, y = ints(flow, 1), ints(flow, 2)
    commands = flow.record()
    add = {
        "fill": lambda: commands.fill(y, 5),
        "update": lambda: commands.update(y, np.array([5], np.int32)),
        "copy": lambda: commands.copy(x, y),
        "dispatch": lambda: commands.dispatch(kernels["add"], grid=1, args=(x, y)),
    }[command]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recording, "_note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add()
    with pytest.raises(ClosedError, match="left by an error; record another"):
        commands.end()
    with pytest.raises(InvalidArgumentError, match="left by an error; record another"):
        flow.execute(commands)
    assert y.numpy(timeout=LIMIT) == [2]
