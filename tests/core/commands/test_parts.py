"""Recordings that several queues run: what their executions do (C1, C2)."""

import functools
import sys

import numpy as np
import pytest
from core_harness import LIMIT, Running, collect_in_threads

import hal
from hal._commands.lowering import CommandOrder
from hal._commands.parts import narrow
from hal._memory.settings import MemorySettings
from hal.errors import InvalidArgumentError, OperationError, OutOfMemoryError

NUMBERS = np.arange(64, dtype=np.int32)


def stages_of(recording):
    return [(len(each.work._functions), each.after) for each in recording._stages.stages]


@pytest.fixture
def pair(open_probe):
    (first, one), (second, two) = open_probe(), open_probe()
    return first, one, second, two


def test_copies_and_kernels_take_turns_in_parts_c2(pair, image):
    """C2: while one chunk is computed the next one is copied: each waits for its own alone."""
    first, _, second, _ = pair
    sources = [second.upload(NUMBERS * factor) for factor in (1, 2, 3)]
    targets = [first.allocate(256, dtype=np.int32) for _ in sources]
    with first.record(hazards="auto") as recording:
        for source, target in zip(sources, targets, strict=True):
            with recording.on("upload"):
                recording.copy(source, target)
            recording.fill(target, 7, size=4)
    found = stages_of(recording)
    assert [count for count, _ in found] == [1] * 6
    assert [after for _, after in found] == [(), (0,), (0,), (1, 2), (2,), (3, 4)]
    first.queue.execute(recording).wait(LIMIT)
    for factor, target in enumerate(targets, 1):
        assert target.numpy().tolist() == [7, *NUMBERS[1:] * factor]


def test_what_needs_no_other_place_is_one_part_c4(device):
    buffers = [device.allocate(64) for _ in "abcd"]
    with device.record(hazards="auto") as recording:
        for number, buffer in enumerate(buffers):
            with recording.on("upload" if number % 2 else device.queue):
                recording.fill(buffer, 1)
    assert stages_of(recording) == [(2, ()), (2, ())]
    assert recording.lowering == "parts"


@pytest.mark.parametrize("mode", ["graph", "stream"])
def test_the_only_queue_runs_it_as_if_it_were_not_named_c4(device, mode):
    """C4: in one operation; another queue has it run there, between two of its own."""
    buffer, other = device.allocate(64), device.queues.upload
    with device.record(slots=1, command_buffer=mode) as recording, recording.on("upload"):
        recording.fill(recording.slots[0], 1, size=32)
    assert recording.lowering == mode
    before = other._sequence, device.queue._sequence
    for _ in range(2):
        other.execute(recording, bindings=[buffer]).wait(LIMIT)
    assert (other._sequence, device.queue._sequence) == (before[0] + 2, before[1])
    device.queue.execute(recording, bindings=[buffer.subspan(32, 32)]).wait(LIMIT)
    assert (other._sequence, device.queue._sequence) == (before[0] + 3, before[1] + 2)
    assert buffer.numpy().tolist() == [1] * 64


def test_no_part_is_no_other_way_c4(device):
    """C4: contexts without commands change nothing."""
    buffer = device.allocate(64)
    with device.record(command_buffer="stream") as recording:
        with recording.on("upload"):
            recording.fill(buffer, 1, size=0)
        recording.fill(buffer, 1)
    assert recording.lowering == "stream"


@pytest.fixture
def eager_switches():
    """Threads that take turns as often as the interpreter lets them."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_two_threads_execute_one_recording_q2(pair, eager_switches):
    """Q2: on one queue, all parts of one execution come before all of the other, so that memory
    which both use between their parts is each one's own meanwhile."""
    first, _, second, _ = pair
    between = second.allocate(256, dtype=np.int32)
    slots = [(np.int32, 256), (np.int32, 256)]
    with first.record(slots=slots, hazards="auto") as recording:
        source, result = recording.slots
        with recording.on(second):
            recording.copy(source, between)
        recording.copy(between, result)
    results = [[], []]

    def execute(number):
        for factor in range(100):
            source = first.upload(NUMBERS + 1000 * factor + number)
            result = first.allocate(256, dtype=np.int32)
            done = first.queue.execute(recording, bindings=[source, result])
            results[number].append((result, done))

    collect_in_threads([functools.partial(execute, number) for number in (0, 1)])
    for number in (0, 1):
        for factor, (result, done) in enumerate(results[number]):
            done.wait(LIMIT)  # raises what went wrong, where numpy() reads what is there
            assert result.numpy()[0] == 1000 * factor + number


def test_executions_in_opposite_directions_end_q2(pair):
    """Q2: each waits for what was submitted before it, whatever queues they share."""
    first, _, second, _ = pair
    x, y = first.allocate(64), second.allocate(64)
    recordings = []
    for device, other in ((first, second), (second, first)):
        with device.record() as recording:
            recording.fill(x if device is first else y, 1)
            recording.barrier()
            with recording.on(other):
                recording.fill(y if device is first else x, 1)
            recording.barrier()
            recording.fill(x if device is first else y, 1)
        recordings.append(recording)
    gate = hal.create_semaphore()
    made = [[], []]

    def execute(number):
        queue = (first, second)[number].queue
        for _ in range(50):
            made[number].append(queue.execute(recordings[number], wait=gate.at(1)))

    executing = [Running(execute, number) for number in (0, 1)]
    gate.signal(1)
    for each in executing:
        each.result()
    hal.wait_all(made[0] + made[1], LIMIT)


@pytest.mark.parametrize("where", ["first", "second"])
def test_a_part_that_fails_fails_the_submission_s5(pair, where):
    """S5: with its cause, and what comes after it does not count; the next execution is well."""
    first, one, second, two = pair
    x, y = first.upload(np.zeros(64, np.uint8)), second.upload(np.zeros(64, np.uint8))
    with first.record(command_buffer="stream") as recording:
        recording.fill(x, 1, name="here")
        recording.barrier()
        with recording.on(second):
            recording.copy(x, y, name="there")
        recording.barrier()
        recording.fill(x, 2)
    done = hal.create_semaphore()
    (one if where == "first" else two).fail_call(1, None, ("fill", "copy_peer"))
    failed = first.queue.execute(recording, signal=done.at(1))
    with pytest.raises(
        OperationError, match={"first": "0 of 3.*here", "second": "1 of 3.*there"}[where]
    ):
        failed.wait(LIMIT)
    with pytest.raises(OperationError, match="injected"):
        done.wait(1, LIMIT)
    assert not (x.numpy() == 2).any()
    first.queue.execute(recording).wait(LIMIT)
    assert (y.numpy() == 1).all()


def test_no_memory_for_temporaries_fails_all_parts_m3(open_probe):
    device, probe = open_probe(settings=MemorySettings(memory_limit=1 << 20))
    x = device.allocate(64)
    with device.record() as recording:
        block = recording.alloca(1 << 19)
        recording.fill(block, 1)
        with recording.on("upload"):
            recording.fill(x, 1)
    kept = device.allocate(3 << 18)
    before = probe.calls["fill"]
    with pytest.raises(OutOfMemoryError):
        device.queue.execute(recording).wait(LIMIT)
    assert probe.calls["fill"] == before
    kept.close()
    device.queue.execute(recording).wait(LIMIT)


def test_devices_of_two_drivers_take_turns_s3(open_probe):
    """S3: copies between them go through the host, but their order is the recording's."""
    first, _ = open_probe(domain=object())
    second, _ = open_probe(domain=object())
    x, y = first.allocate(64), second.allocate(64)
    with first.record() as recording:
        recording.fill(x, 1)
        recording.barrier()
        with recording.on(second):
            recording.fill(y, 2)
            with pytest.raises(InvalidArgumentError, match="through the host"):
                recording.copy(x, y)
        recording.barrier()
        recording.fill(x, 3)
    for _ in range(3):
        first.queue.execute(recording).wait(LIMIT)
    assert (x.numpy()[0], y.numpy()[0]) == (3, 2)


def test_groups_and_places_end_in_the_reverse_of_their_order_c1(device):
    recording = device.record()
    where = recording.on("upload")
    with recording.group("rows"):
        where.__enter__()
        with pytest.raises(InvalidArgumentError, match=r"on\(.*upload.*\) is open already"):
            where.__enter__()
        recording.fill(device.allocate(4), 1)
        with pytest.raises(InvalidArgumentError, match="'rows' is still open"):
            recording.end()
        where.__exit__(None, None, None)
    group = recording.group("columns")
    group.__enter__()
    with (
        recording.on("download"),
        pytest.raises(InvalidArgumentError, match="'columns' ends while on"),
    ):
        group.__exit__(None, None, None)
    group.__exit__(None, None, None)
    with (
        recording.on("upload"),
        pytest.raises(InvalidArgumentError, match=r"upload.* is still open"),
    ):
        recording.end()
    recording.end()
    assert stages_of(recording) == [(1, ())]


def test_a_part_knows_the_slots_that_it_uses_c3(pair, image):
    """C3: of many slots each of many parts uses few."""
    first, _, _, _ = pair
    count = 20
    with first.record(slots=[(np.int32, 4)] * count, hazards="auto") as recording:
        for slot in recording.slots:
            with recording.on("upload"):
                recording.fill(slot, 1)
            recording.fill(slot, 2)
    stages = recording._stages.stages
    assert sum(len(each.work._uses.by_slot) for each in stages) == len(recording) == 2 * count
    buffers = [first.allocate(4, dtype=np.int32) for _ in range(count)]
    first.queue.execute(recording, bindings=buffers).wait(LIMIT)
    assert {int(each.numpy()[0]) for each in buffers} == {2}


def test_parts_behind_a_barrier_do_not_look_at_all_before_it_c2():
    """C2: which they come after, so that it orders none of their commands among themselves."""

    class Counted(list):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    order = CommandOrder()
    for _ in range(3):
        order.add()
    order.barrier()
    for _ in range(4):
        order.add()
    order.bases[-1].commands = Counted(order.bases[-1].commands)
    assert narrow(order, (3, 5)).bases == [None, None]
    assert Counted.looks == 0
    (both,) = {each for each in narrow(order, (0, 2, 5)).bases if each is not None}
    assert (both.stop, both.commands) == (2, [0, 1])
