"""Recordings that allocate their temporaries themselves (M3, C1 to C5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hal
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, OutOfMemoryError
from hal_conformance.suite.memory.scarcity import BIG, BLOCK, ROOM, give_back_behind, until_issued
from hal_conformance.suite.support import LIMIT, pattern

kernels = pytest.mark.feature("kernels")

SIZE = 4096


@pytest.fixture(params=["manual", "auto"])
def hazards(request: pytest.FixtureRequest) -> str:
    """What orders the commands on the same bytes: barriers, or the recording itself."""
    name: str = request.param
    return name


def through(device: hal.Device, size: int, **options: Any) -> hal.CommandBuffer:  # noqa: ANN401
    """Record copies from slot 0 through two temporaries, one after the other, to slot 1."""
    with device.record(slots=2, **options) as recording:
        source, target = recording.slots
        first = recording.alloca(size)
        recording.copy(source, first, size=size)
        recording.barrier()
        second = recording.alloca(size)
        recording.copy(first, second, size=size)
        recording.barrier()
        recording.dealloca(first)
        recording.copy(second, target, size=size)
    return recording


def filled(device: hal.Device, size: int, value: int, lowering: str) -> hal.CommandBuffer:
    """Record a temporary that is filled and of which 64 bytes are copied to slot 0."""
    with device.record(slots=1, command_buffer=lowering) as recording:
        temporary = recording.alloca(size)
        recording.fill(temporary, value)
        recording.barrier()
        recording.copy(temporary, recording.slots[0], size=64)
    return recording


def run_thrice(
    queue: hal.Queue, recording: hal.CommandBuffer, out: hal.Buffer, expected: NDArray[Any]
) -> None:
    """See that each of three executions writes what is expected."""
    for _ in range(3):
        queue.fill(out, 0)
        queue.execute(recording).wait(LIMIT)
        assert np.array_equal(out.numpy(timeout=LIMIT), expected)


# What a temporary is


@pytest.mark.ordering
@pytest.mark.parametrize("one_shot", [False, True], ids=["reusable", "one-shot"])
def test_every_command_takes_a_temporary_m3(device, queue, lowering, hazards, *, one_shot):
    """M3: fill, update and copy, of all and of parts; what comes out is what was put in."""
    out = device.upload(np.zeros(3 * SIZE, np.uint8))
    options = {"command_buffer": lowering, "hazards": hazards, "one_shot": one_shot}
    with device.record(**options) as recording:
        filled, updated = recording.alloca(SIZE), recording.alloca(SIZE)
        recording.fill(filled, 7)
        recording.update(updated, pattern(SIZE))
        recording.barrier()
        recording.fill(filled.subspan(8, 8), 9)
        recording.barrier()
        recording.copy(filled, out)
        recording.copy(updated, out, target_offset=SIZE)
        recording.copy(updated.subspan(16, 16), out, target_offset=2 * SIZE)
        recording.dealloca(filled)
    for _ in range(1 if one_shot else 3):
        queue.fill(out, 0)
        queue.execute(recording).wait(LIMIT)
        seen = out.numpy(timeout=LIMIT)
        assert seen[:16].tolist() == [7] * 8 + [9] * 8
        assert (seen[16:SIZE] == 7).all()
        assert np.array_equal(seen[SIZE : 2 * SIZE], pattern(SIZE))
        assert np.array_equal(seen[2 * SIZE :][:16], pattern(SIZE)[16:32])


@pytest.mark.ordering
@kernels
def test_kernels_take_a_temporary_m3(device, queue, program, lowering, hazards):
    """M3: as a pointer, with its type, and from an offset."""
    source, target = device.upload(np.arange(8, dtype=np.int32)), device.allocate(32, dtype="i4")
    with device.record(command_buffer=lowering, hazards=hazards) as recording:
        between = recording.alloca(64, dtype=np.int32)
        kernel, part = program["scale_and_offset"], between.subspan(16, 32)
        recording.dispatch(kernel, grid=1, block=8, args=(source, part, 3, 1, 8))
        recording.barrier()
        recording.dispatch(kernel, grid=1, block=8, args=(part, target, 2, 0, 8))
        recording.dealloca(between)
    for _ in range(2):
        queue.execute(recording).wait(LIMIT)
        assert target.numpy(timeout=LIMIT).tolist() == [2 * (3 * each + 1) for each in range(8)]


def test_a_temporary_says_what_it_is_m3(device):
    """M3: its bytes and its type, as slots do."""
    with device.record() as recording:
        plain, typed = recording.alloca(SIZE), recording.alloca(SIZE, dtype=np.float32)
        assert (plain.size, plain.dtype) == (SIZE, np.dtype(np.uint8))
        assert (typed.size, typed.dtype) == (SIZE, np.dtype(np.float32))
        part = typed.subspan(64, 128)
        assert (part.size, part.dtype) == (128, np.dtype(np.float32))


def test_what_is_not_ended_ends_with_the_recording_m3(scarce, lowering):
    """M3: no dealloca is needed, and none is missed: a thousandth of them would fill the room."""
    recording = filled(scarce, BLOCK, 5, lowering)
    target = scarce.upload(np.zeros(64, np.uint8))
    before = scarce.statistics().bytes_now
    for _ in range(20):
        ran = scarce.queue.execute(recording, bindings=[target])
    ran.wait(LIMIT)
    assert scarce.statistics().bytes_now == before
    assert (target.numpy(timeout=LIMIT) == 5).all()


# Sharing of bytes


def test_lives_that_do_not_overlap_share_bytes_m3(scarce, lowering, hazards):
    """M3: four temporaries one after the other need the memory of one."""
    target = scarce.upload(np.zeros(4, np.uint8))
    before = scarce.statistics(reset_peak=True).bytes_now
    with scarce.record(command_buffer=lowering, hazards=hazards) as recording:
        for number in range(4):
            temporary = recording.alloca(BIG)
            recording.fill(temporary, 10 + number)
            recording.barrier()
            recording.copy(temporary, target, source_offset=BIG - 1, target_offset=number, size=1)
            recording.dealloca(temporary)
            recording.barrier()
    scarce.queue.execute(recording).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [10, 11, 12, 13]
    assert scarce.statistics().bytes_peak - before <= BIG + 4096


@pytest.mark.ordering
def test_places_follow_from_all_lives_m3(scarce, lowering, hazards):
    """M3: a small one that lives on keeps no later one from the bytes beside it."""
    unit = BLOCK
    out = scarce.upload(np.zeros(64, np.uint8))
    before = scarce.statistics(reset_peak=True).bytes_now
    with scarce.record(command_buffer=lowering, hazards=hazards) as recording:
        first, lasting = recording.alloca(unit), recording.alloca(unit)
        recording.fill(first, 1)
        recording.fill(lasting, 2)
        recording.barrier()
        recording.copy(first, out, size=16)
        recording.dealloca(first)
        recording.barrier()
        large = recording.alloca(3 * unit)
        recording.fill(large, 3)
        recording.barrier()
        recording.copy(large, out, source_offset=3 * unit - 16, target_offset=16, size=16)
        recording.copy(large, out, target_offset=32, size=16)
        recording.copy(lasting, out, target_offset=48, size=16)
    run_thrice(scarce.queue, recording, out, np.repeat([1, 3, 3, 2], 16))
    assert scarce.statistics().bytes_peak - before <= 4 * unit + 4096


@pytest.mark.ordering
def test_lives_that_overlap_share_nothing_m3(scarce, lowering, hazards):
    """M3: of temporaries without a barrier between their lives each keeps its bytes."""
    out = scarce.upload(np.zeros(6 * 16, np.uint8))
    with scarce.record(command_buffer=lowering, hazards=hazards) as recording:
        sizes = [BLOCK - 256 * number for number in range(6)]
        temporaries = [recording.alloca(size) for size in sizes]
        for number, temporary in enumerate(temporaries):
            recording.fill(temporary, 20 + number)
        recording.barrier()
        for number, temporary in enumerate(temporaries):
            at = 0 if number % 2 else sizes[number] - 16
            recording.copy(temporary, out, source_offset=at, target_offset=16 * number, size=16)
            recording.dealloca(temporary)
    run_thrice(scarce.queue, recording, out, np.repeat(np.arange(20, 26), 16))


@pytest.mark.ordering
def test_without_a_barrier_nothing_is_shared_m3(device, queue, lowering, hazards):
    """M3: one that is ended and one that begins may still run side by side, in any order."""
    out = device.upload(np.zeros(16 * 64, np.uint8))
    with device.record(command_buffer=lowering, hazards=hazards) as recording:
        events = []
        for number in range(16):
            temporary = recording.alloca(1 << 15)
            recording.fill(temporary, number + 1)
            if hazards == "manual":
                # An event orders these two, and nothing beside them.
                event = recording.create_event()
                recording.signal_event(event)
                recording.wait_events(event)
                events.append(event)
            recording.copy(temporary, out, target_offset=64 * number, size=64)
            recording.dealloca(temporary)
    run_thrice(queue, recording, out, np.repeat(np.arange(1, 17), 64))


@pytest.mark.ordering
def test_shared_bytes_keep_their_content_m3(device, queue, lowering, hazards):
    """M3: many temporaries of many sizes, some alive together: none has another's bytes."""
    numbers = np.random.default_rng(7)
    count = 24
    out = device.upload(np.zeros(count * 32, np.uint8))
    live = []
    with device.record(command_buffer=lowering, hazards=hazards) as recording:
        for number in range(count):
            temporary = recording.alloca(int(numbers.integers(32, 1 << 14)))
            recording.fill(temporary, number + 1)
            live.append((number, temporary))
            recording.barrier()
            if len(live) == 4 or number == count - 1:
                while live and (len(live) > 2 or number == count - 1):
                    place, ended = live.pop(int(numbers.integers(len(live))))
                    start = ended.size - 32
                    recording.copy(
                        ended, out, source_offset=start, target_offset=32 * place, size=32
                    )
                    recording.dealloca(ended)
                recording.barrier()
    run_thrice(queue, recording, out, np.repeat(np.arange(1, count + 1), 32))


# Several executions


@pytest.mark.ordering
@pytest.mark.parametrize("count", [1, 3], ids=["one queue", "three queues"])
def test_executions_in_flight_have_temporaries_of_their_own_m3(
    device, make_queue, lowering, hazards, count
):
    """M3: one recording, many executions at once, each with bytes of its own in between."""
    queues = [make_queue(ordered=number != 2) for number in range(count)]
    recording = through(device, SIZE, command_buffer=lowering, hazards=hazards)
    pairs = [
        (device.upload(pattern(SIZE, number)), device.upload(np.zeros(SIZE, np.uint8)))
        for number in range(12)
    ]
    hal.wait_all(
        [
            queues[number % count].execute(recording, bindings=pair)
            for number, pair in enumerate(pairs)
        ],
        LIMIT,
    )
    for number, (_, target) in enumerate(pairs):
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(SIZE, number))


def test_executions_in_a_queue_use_one_block_m3(scarce, lowering):
    """M3: with room for one, twenty in a row go well, and the peak is that of one."""
    queue, recording = scarce.queue, filled(scarce, BIG, 3, lowering)
    out = scarce.upload(np.zeros(64, np.uint8))
    before = scarce.statistics(reset_peak=True).bytes_now
    hal.wait_all([queue.execute(recording, bindings=[out]) for _ in range(20)], LIMIT)
    assert BIG <= scarce.statistics().bytes_peak - before <= BIG + 4096
    assert (out.numpy(timeout=LIMIT) == 3).all()


@kernels
def test_executions_behind_a_kernel_are_issued_m3(scarce, make_hold, lowering):
    """M3: no host is between two executions: the driver has all of them."""
    queue = scarce.queue
    recording = filled(scarce, BIG, 3, lowering)
    out = scarce.upload(np.zeros(64, np.uint8))
    queue.execute(recording, bindings=[out]).wait(LIMIT)
    queue.fill(out, 0).wait(LIMIT)
    hold = make_hold(queue)
    ran = [queue.execute(recording, bindings=[out]) for _ in range(5)]
    until_issued(ran[-1])
    hold.open()
    assert hold.has_seen()
    assert (out.numpy(wait=ran, timeout=LIMIT) == 3).all()


@kernels
def test_an_execution_starves_m3(scarce, make_queue, make_hold, lowering):
    """M3: as an alloca does: it stands in its queue until the memory is back, and then runs."""
    other = make_queue(device=scarce)
    out = scarce.upload(np.zeros(64, np.uint8))
    with scarce.record(command_buffer=lowering) as recording:
        temporary = recording.alloca(BIG)
        recording.fill(temporary, 3)
        recording.barrier()
        recording.copy(temporary, out, size=64)
    hold = give_back_behind(make_hold, scarce.queue, BIG)
    ran = other.execute(recording)
    behind = other.fill(out, 4, size=32)
    assert (ran.state, behind.state) == ("pending", "pending")
    hold.open()
    assert hold.has_seen()
    assert out.numpy(wait=behind, timeout=LIMIT).tolist() == [4] * 32 + [3] * 32


@pytest.mark.ordering
def test_an_execution_without_memory_fails_m3(scarce, make_latch, lowering):
    """M3: nothing of it runs, its signals fail, and a later one runs."""
    queue, signal = scarce.queue, hal.create_semaphore()
    out = scarce.upload(np.zeros(64, np.uint8))
    with scarce.record(command_buffer=lowering) as recording:
        recording.fill(out, 9)
        temporary = recording.alloca(BIG)
        recording.fill(temporary, 3)
    held = scarce.allocate(2 << 20)
    ran = queue.execute(recording, signal=signal.at(1))
    for each in (ran, signal.at(1)):
        with pytest.raises(OutOfMemoryError):
            hal.wait_all(each, LIMIT)
    assert not out.numpy(timeout=LIMIT).any()
    held.close()
    latch = make_latch(queue)
    again = queue.execute(recording)
    latch.open()
    again.wait(LIMIT)
    assert (out.numpy(timeout=LIMIT) == 9).all()


# What is refused


def test_what_recordings_refuse_m3(device, queue):
    """M3: uses after the end, second ends, and temporaries of others."""
    target = device.allocate(64)
    with device.record(slots=1) as recording, device.record() as other:
        temporary = recording.alloca(64)
        part = temporary.subspan(0, 8)
        with pytest.raises(InvalidArgumentError):
            other.fill(temporary, 1)
        with pytest.raises(InvalidArgumentError):
            other.dealloca(temporary)
        for wrong in (target, recording.slots[0], part, None, 1):
            with pytest.raises((InvalidArgumentError, ArgumentTypeError)):
                recording.dealloca(wrong)
        recording.fill(temporary, 1)
        recording.dealloca(temporary)
        uses = [
            lambda: recording.fill(temporary, 1),
            lambda: recording.copy(target, part, size=8),
            lambda: recording.dealloca(temporary),
        ]
        for use in uses:
            with pytest.raises(ClosedError):
                use()
    with pytest.raises(ArgumentTypeError):
        queue.fill(temporary, 1)
    with pytest.raises(InvalidArgumentError):
        recording.alloca(64)


@pytest.mark.parametrize("size", [-1, 1.5, "4", True])
def test_bad_sizes_of_temporaries_m3(device, size):
    """M3: as those of any allocation."""
    with device.record() as recording:
        with pytest.raises((InvalidArgumentError, ArgumentTypeError)):
            recording.alloca(size)
        with pytest.raises(InvalidArgumentError):
            recording.alloca(6, dtype=np.float32)


def test_a_temporary_of_nothing_m3(device, queue):
    """M3: zero bytes are a temporary, too, and a recording that only allocates runs."""
    with device.record() as recording:
        empty = recording.alloca(0)
        recording.alloca(64)
        recording.fill(empty, 1)
        recording.dealloca(empty)
    queue.execute(recording).wait(LIMIT)


def test_temporaries_beyond_the_room_m3(scarce):
    """M3: one that no device of this room can have is refused before anything is submitted."""
    with pytest.raises(OutOfMemoryError):  # noqa: PT012 - while it is recorded, or submitted
        with scarce.record() as recording:
            recording.fill(recording.alloca(ROOM + 1), 1)
        scarce.queue.execute(recording)
    with pytest.raises(OutOfMemoryError):  # noqa: PT012
        with scarce.record() as recording:
            one, two = recording.alloca(BIG), recording.alloca(BIG)
            recording.fill(one, 1)
            recording.fill(two, 1)
        scarce.queue.execute(recording)
    scarce.queue.barrier().wait(LIMIT)


# Buffers of allocas in recordings


def test_what_a_recording_holds_is_not_given_back_m3(device, queue):
    """M3: the error names the buffer or its use; once the recording is gone it may be."""
    buffer = queue.alloca(96)
    queue.fill(buffer, 1).wait(LIMIT)
    with device.record() as recording:
        recording.fill(buffer.subspan(8, 8), 2)
    with pytest.raises(InvalidArgumentError, match="record"):
        queue.dealloca(buffer)
    assert not buffer.closed
    queue.execute(recording).wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT)[8:16].tolist() == [2] * 8
    del recording
    queue.dealloca(buffer).wait(LIMIT)


def test_a_recording_by_slot_holds_nothing_m3(device, queue):
    """M3: a buffer that was only bound may be given back while the recording stays."""
    buffer = queue.alloca(96)
    with device.record(slots=1) as recording:
        recording.fill(recording.slots[0], 2, size=96)
    ran = queue.execute(recording, bindings=[buffer])
    queue.dealloca(buffer).wait(LIMIT)
    assert ran.done
