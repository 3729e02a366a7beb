"""Slots: buffers that each execution binds (C3)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, in_threads, pattern

pytestmark = pytest.mark.ordering


def test_slots_say_what_they_take_c3(device):
    """C3: index, dtype and size; a slot without a size has None."""
    with device.record(slots=["<f4", ("<u2", 64)]) as recording:
        first, second = recording.slots
        assert (first.index, first.offset, first.size, first.dtype.str) == (0, 0, None, "<f4")
        assert (second.index, second.size, second.dtype.str) == (1, 64, "<u2")
        part = second.subspan(16, 32, dtype="u1").subspan(8, 8)
        assert (part.index, part.offset, part.size, part.dtype.str) == (1, 24, 8, "|u1")
        assert recording.slots[-1].index == 1
        assert "Slot 1 from 24" in repr(part)
        assert "any size" in repr(first)
    assert len(recording.slots) == 2
    assert len(device.record().slots) == 0


def test_there_are_only_the_slots_asked_for_c3(device):
    """C3: an index that is none is an `IndexError`, and no slot lies outside of its size."""
    with device.record(slots=[("u1", 64)]) as recording:
        slot = recording.slots[0]
        for index in (1, -2):
            with pytest.raises(IndexError) as caught:
                recording.slots[index]
            assert isinstance(caught.value, InvalidArgumentError)
        for wrong in ("0", 0.0, True):
            with pytest.raises(ArgumentTypeError):
                recording.slots[wrong]
        for offset, size in ((0, 65), (65, 0), (-1, 4), (60, 8)):
            with pytest.raises(InvalidArgumentError):
                slot.subspan(offset, size)


def test_each_execution_binds_its_own_c3(device, queue, lowering):
    """C3: one recording over three pairs of buffers, then the first pair again."""
    with device.record(slots=2, command_buffer=lowering) as recording:
        source, target = recording.slots
        recording.copy(source, target, size=256)
        recording.fill(target, 1, offset=256, size=8)
    pairs = [(device.upload(pattern(256, n)), device.allocate(264)) for n in range(3)]
    for number in (0, 1, 2, 0):
        queue.fill(pairs[number][1], 0).wait(LIMIT)
        queue.execute(recording, bindings=pairs[number]).wait(LIMIT)
        seen = pairs[number][1].numpy(timeout=LIMIT)
        assert np.array_equal(seen[:256], pattern(256, number))
        assert (seen[256:] == 1).all()


def test_new_bindings_leave_the_old_memory_alone_c3(device, queue, lowering):
    """C3: what was bound before is not written by the next execution."""
    with device.record(slots=1, command_buffer=lowering) as recording:
        for offset in range(0, 64, 8):
            recording.fill(recording.slots[0], 5, offset=offset, size=8)
    buffers = [device.upload(np.zeros(64, np.uint8)) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        queue.execute(recording, bindings=[buffer]).wait(LIMIT)
        filled = [bool((each.numpy(timeout=LIMIT) == 5).all()) for each in buffers]
        assert filled == [index <= number for index in range(3)]
        assert not any(each.numpy(timeout=LIMIT).any() for each in buffers[number + 1 :])
        queue.fill(buffer, 0).wait(LIMIT)
        queue.execute(recording, bindings=[buffer]).wait(LIMIT)


def test_one_slot_of_several_is_bound_anew_c3(device, queue, lowering):
    """C3: executions whose tables differ in one slot only, in flight together."""
    source, one, two = (device.upload(pattern(256, n)) for n in range(3))
    with device.record(slots=3, command_buffer=lowering) as recording:
        a, b, c = recording.slots
        recording.copy(a, b, size=256)
        recording.fill(c, 4, size=64)
        recording.fill(c, 5, offset=64, size=64)
        recording.fill(c, 6, offset=128, size=128)
    other = device.allocate(256)
    queue.execute(recording, bindings=(source, one, other))
    queue.execute(recording, bindings=(source, two, other)).wait(LIMIT)
    for target in (one, two):
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(256))
    assert np.array_equal(
        other.numpy(timeout=LIMIT), np.repeat(np.array([4, 5, 6, 6], np.uint8), 64)
    )


@pytest.mark.parametrize("kind", ["list", "tuple", "mapping", "mapping in another order"])
def test_tables_are_sequences_or_mappings_c3(device, queue, kind):
    """C3: buffers in the order of the slots, or by index."""
    source, target = device.upload(pattern(64)), device.upload(np.zeros(64, np.uint8))
    with device.record(slots=2) as recording:
        recording.copy(*recording.slots, size=64)
    tables = {
        "list": [source, target],
        "tuple": (source, target),
        "mapping": {0: source, 1: target},
        "mapping in another order": {1: target, 0: source},
    }
    queue.execute(recording, bindings=tables[kind]).wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(64))


def test_subspans_are_bound_c3(device, queue, lowering):
    """C3: a part of a buffer is bound like a buffer, and the slot's own parts add up to it."""
    whole = device.upload(np.zeros(256, np.uint8))
    with device.record(slots=1, command_buffer=lowering) as recording:
        recording.update(recording.slots[0].subspan(8, 16), b"abcd", offset=4)
    queue.execute(recording, bindings=[whole.subspan(64, 64)])
    queue.execute(recording, bindings=[whole.subspan(128, 24)]).wait(LIMIT)
    expected = bytearray(256)
    expected[76:80] = expected[140:144] = b"abcd"
    assert whole.numpy(timeout=LIMIT).tobytes() == bytes(expected)


def test_one_buffer_in_two_slots_c3(device, queue, lowering):
    """C3: a buffer may be bound twice where no copy overlaps; one onto itself changes nothing."""
    buffer = device.upload(pattern(64))
    with device.record(slots=2, command_buffer=lowering) as recording:
        recording.copy(*recording.slots, size=64)
    queue.execute(recording, bindings=[buffer, buffer]).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))
    with device.record(slots=2, command_buffer=lowering) as recording:
        first, second = recording.slots
        recording.copy(first, second, target_offset=32, size=32)
    queue.execute(recording, bindings=[buffer, buffer]).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), np.tile(pattern(32), 2))


def test_slots_and_buffers_mix_c3(device, queue, lowering):
    """C3: a command may take one of its buffers directly and the other by slot."""
    source = device.upload(pattern(64))
    with device.record(slots=1, command_buffer=lowering) as recording:
        recording.copy(source, recording.slots[0])
        recording.barrier()
        recording.copy(recording.slots[0], source, source_offset=0, target_offset=32, size=32)
    targets = [device.upload(np.zeros(64, np.uint8)) for _ in range(2)]
    for target in targets:
        queue.update(source, pattern(64)).wait(LIMIT)
        queue.execute(recording, bindings=[target]).wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(64))
        assert np.array_equal(source.numpy(timeout=LIMIT), np.tile(pattern(32), 2))


def test_the_table_is_kept_until_it_has_run_c3(device, queue, make_semaphore, lowering):
    """C3, Q5: w@1 to s@1: table, buffers and recording are dropped before the wait is met."""
    wait, signal = make_semaphore(), make_semaphore()
    source, target = device.upload(pattern(256) ^ 0x5A), device.upload(np.zeros(256, np.uint8))
    with device.record(slots=2, one_shot=True, command_buffer=lowering) as recording:
        recording.copy(*recording.slots, size=256)
    table = [source, target]
    queue.execute(recording, bindings=table, wait=wait.at(1), signal=signal.at(1))
    table[:] = [None, None]
    source.close()
    del recording, source, table
    gc.collect()
    others = [device.upload(np.zeros(256, np.uint8)) for _ in range(3)]
    assert signal.query() == 0
    wait.signal(1)
    signal.wait(1, LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(256) ^ 0x5A)
    del others


def test_ended_executions_keep_no_table_c3(device, queue, lowering):
    """C3: the buffers of an execution that has retired are free, with the recording alive."""
    with device.record(slots=1, command_buffer=lowering) as recording:
        for offset in range(0, 64, 8):
            recording.fill(recording.slots[0], 5, offset=offset, size=8)
    before = device.statistics().allocations
    for _ in range(20):
        queue.execute(recording, bindings=[device.allocate(64)]).wait(LIMIT)
    gc.collect()
    queue.barrier().wait(LIMIT)
    assert device.statistics().allocations <= before + 1
    queue.execute(recording, bindings=[device.allocate(64)]).wait(LIMIT)


def test_threads_bind_their_own_c3(device, make_queue, lowering):
    """C3: four threads execute one recording over buffers of their own, and none is mixed up."""
    with device.record(slots=2, command_buffer=lowering) as recording:
        source, target = recording.slots
        for offset in range(0, 256, 64):
            recording.copy(source, target, source_offset=offset, target_offset=offset, size=64)

    def work(number, queue):
        for turn in range(20):
            pair = device.upload(pattern(256, number + 4 * turn)), device.allocate(256)
            queue.execute(recording, bindings=pair).wait(LIMIT)
            assert np.array_equal(pair[1].numpy(timeout=LIMIT), pattern(256, number + 4 * turn))

    queues = [make_queue() for _ in range(4)]
    in_threads([lambda n=n: work(n, queues[n]) for n in range(4)])  # type: ignore[misc]


BAD_TABLES: dict[str, tuple[type[HalError], str, Any]] = {
    "no table": (InvalidArgumentError, "2 slots, and 0", lambda a, b: None),
    "one buffer of two": (InvalidArgumentError, "2 slots, and 1", lambda a, b: [a]),
    "three buffers for two": (InvalidArgumentError, "2 slots, and 3", lambda a, b: [a, b, b]),
    "a slot left out": (InvalidArgumentError, r"nothing for slots \[0\]", lambda a, b: {1: b}),
    "a slot that is none": (
        InvalidArgumentError,
        r"\[2\], which are no slots",
        lambda a, b: {0: a, 1: b, 2: b},
    ),
    "too few bytes": (
        InvalidArgumentError,
        "slot 1 needs 64 bytes.*has 60",
        lambda a, b: [a, b.subspan(0, 60)],
    ),
    "a wrong alignment": (
        InvalidArgumentError,
        "slot 1 needs .*multiple of 4",
        lambda a, b: [a, b.subspan(2, 64)],
    ),
    "a copy that overlaps": (InvalidArgumentError, "overlap", lambda a, b: [b, b.subspan(4, 64)]),
    "no buffer": (ArgumentTypeError, "slot 1 takes a buffer, not NoneType", lambda a, b: [a, None]),
    "an array": (
        ArgumentTypeError,
        "slot 1 takes a buffer, not ndarray",
        lambda a, b: [a, np.zeros(64, np.uint8)],
    ),
    "one buffer, no table": (ArgumentTypeError, "bindings.*not Buffer", lambda a, b: a),
    "text": (ArgumentTypeError, "bindings.*not str", lambda a, b: "ab"),
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_tables_are_refused_c3(device, queue, lowering, what):
    """C3: a table that does not fit raises, and neither runs nor submits anything."""
    kind, words, make = BAD_TABLES[what]
    source, target = device.upload(pattern(68)), device.upload(np.zeros(68, np.uint8))
    with device.record(slots=["u1", "<u4"], command_buffer=lowering) as recording:
        first, second = recording.slots
        recording.copy(first, second, size=64)
        recording.barrier()
        recording.fill(second, 1, offset=60, size=4)
    with pytest.raises(kind, match=words):
        queue.execute(recording, bindings=make(source, target))
    queue.wait_idle(LIMIT)
    assert not target.numpy(timeout=LIMIT).any()
    queue.execute(recording, bindings=[source, target]).wait(LIMIT)
    expected = pattern(60).tobytes() + bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert target.numpy(timeout=LIMIT).tobytes() == expected


def test_closed_and_foreign_buffers_are_not_bound_c3(device, second_device, queue):
    """C3: a closed buffer raises `ClosedError`, another device's is refused."""
    with device.record(slots=1) as recording:
        recording.fill(recording.slots[0], 1, size=64)
    closed = device.allocate(64)
    closed.close()
    with pytest.raises(ClosedError):
        queue.execute(recording, bindings=[closed])
    with pytest.raises(InvalidArgumentError):
        queue.execute(recording, bindings=[second_device.allocate(64)])


def test_bindings_for_no_slots_c3(device, queue):
    """C3: a recording without slots takes no table, or an empty one."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record() as recording:
        recording.fill(buffer, 5)
    queue.execute(recording, bindings=[])
    queue.execute(recording, bindings={}).wait(LIMIT)
    with pytest.raises(InvalidArgumentError):
        queue.execute(recording, bindings=[buffer])
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_slots_of_another_recording_are_refused_c3(device):
    """C3: a slot stands for something in its own recording only."""
    with device.record(slots=1) as first, device.record(slots=1) as second:
        with pytest.raises(InvalidArgumentError):
            second.fill(first.slots[0], 1, size=4)
        with pytest.raises(InvalidArgumentError):
            second.copy(second.slots[0], first.slots[0], size=4)
    assert len(second) == 0


def test_a_slot_without_a_size_needs_one_c3(device):
    """C3: a fill or a copy of all of a slot of unknown size raises."""
    with device.record(slots=2) as recording:
        first, second = recording.slots
        with pytest.raises(InvalidArgumentError, match="slot 0"):
            recording.fill(first, 1)
        with pytest.raises(InvalidArgumentError, match="slot 0"):
            recording.copy(first, second)
    assert len(recording) == 0


def test_slots_with_a_size_are_checked_while_recording_c3(device):
    """C3: a command beyond the size that was asked for raises at once."""
    with device.record(slots=[("u1", 64)]) as recording:
        slot = recording.slots[0]
        for use in (
            lambda: recording.fill(slot, 1, offset=60, size=8),
            lambda: recording.update(slot, bytes(65)),
            lambda: recording.copy(slot, slot, target_offset=16, size=32),
        ):
            with pytest.raises(InvalidArgumentError):
                use()
        recording.fill(slot, 1)
    assert len(recording) == 1


def test_bindings_that_hazards_do_not_know_are_refused_c3(device, queue, lowering):
    """C3: with ``hazards="auto"`` bindings must not share bytes that one of them writes."""
    direct = device.upload(pattern(64))
    with device.record(slots=3, hazards="auto", command_buffer=lowering) as recording:
        first, second, third = recording.slots
        recording.copy(first, second, size=32)
        recording.copy(first, third, size=32)
        recording.copy(third, direct, size=32)
    whole = device.upload(np.zeros(256, np.uint8))
    parts = [whole.subspan(offset, 64) for offset in (0, 64, 128)]
    for table, said in (
        ([parts[0], parts[1], parts[1]], "slot 1 shares .* slot 2"),
        ([parts[0], direct, parts[1]], "slot 1 shares .* recorded directly"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            queue.execute(recording, bindings=table)
    untouched = [parts[0], parts[1], whole.subspan(96, 64)]  # shares the half that nothing uses
    queue.execute(recording, bindings=untouched).wait(LIMIT)
    queue.update(parts[0], pattern(64, 1))
    queue.execute(recording, bindings=parts).wait(LIMIT)
    expected = np.concatenate([pattern(32, 1), pattern(64)[32:]])
    assert np.array_equal(direct.numpy(timeout=LIMIT), expected)


def test_readers_may_share_with_hazards_c3(device, queue, lowering):
    """C3: with ``hazards="auto"`` two slots that are only read may have the same memory."""
    source, target = device.upload(pattern(64)), device.upload(np.zeros(128, np.uint8))
    with device.record(slots=2, hazards="auto", command_buffer=lowering) as recording:
        first, second = recording.slots
        recording.copy(first, target, size=64)
        recording.copy(second, target, target_offset=64, size=64)
    queue.execute(recording, bindings=[source, source]).wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), np.tile(pattern(64), 2))
