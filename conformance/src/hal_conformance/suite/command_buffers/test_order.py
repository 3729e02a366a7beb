"""What comes before what in a recording: barriers, events, and the bytes themselves (C1, C2)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, first_difference, pattern

pytestmark = pytest.mark.ordering

SIZE = 1 << 19
"""Bytes of a command that takes so long that a later one would overtake it."""

LAST = SIZE - 64
ROUNDS = 3


HAZARDS: dict[str, Any] = {
    "write then read": (
        [lambda r, a, _: r.fill(a, 7), lambda r, a, b: r.copy(a, b, source_offset=LAST, size=64)],
        lambda a, b: (b"\x07" * SIZE, b"\x07" * 64 + b[64:]),
    ),
    "read then write": (
        [lambda r, a, b: r.copy(a, b), lambda r, a, _: r.fill(a, 9, offset=LAST)],
        lambda a, _: (a[:-64] + b"\x09" * 64, a),
    ),
    "write then write": (
        [lambda r, a, _: r.fill(a, 1), lambda r, a, _: r.fill(a, 2, offset=LAST)],
        lambda _, b: (b"\x01" * LAST + b"\x02" * 64, b),
    ),
    "one byte in common": (
        [
            lambda r, a, _: r.fill(a, 1, size=SIZE // 2),
            lambda r, a, _: r.update(a, b"ab", offset=SIZE // 2 - 1),
        ],
        lambda a, b: (b"\x01" * (SIZE // 2 - 1) + b"ab" + a[SIZE // 2 + 1 :], b),
    ),
    "through a third": (
        [
            lambda r, a, _: r.fill(a, 4),
            lambda r, a, b: r.copy(a, b, source_offset=LAST, size=64),
            lambda r, a, b: r.copy(b, a, size=64),
            lambda r, _, b: r.fill(b, 5, size=32),
        ],
        lambda _, b: (b"\x04" * SIZE, b"\x05" * 32 + b"\x04" * 32 + b[64:]),
    ),
    "through parts": (
        [
            lambda r, a, _: r.fill(a.subspan(0, SIZE // 2), 4),
            lambda r, a, _: r.fill(a.subspan(SIZE // 4, SIZE // 2).subspan(0, 64), 6),
            lambda r, a, b: r.copy(a.subspan(SIZE // 4, 64), b, size=64),
        ],
        lambda a, b: (
            b"\x04" * (SIZE // 4) + b"\x06" * 64 + b"\x04" * (SIZE // 4 - 64) + a[SIZE // 2 :],
            b"\x06" * 64 + b[64:],
        ),
    ),
}


@pytest.mark.parametrize("case", HAZARDS)
@pytest.mark.parametrize("by", ["barrier", "auto"])
def test_commands_on_the_same_bytes_run_in_order_c2(device, recorder, case, by):
    """C2: as recorded, with a barrier between two of them, or none and ``hazards="auto"``."""
    steps, expect = HAZARDS[case]
    first, second = device.allocate(SIZE), device.allocate(SIZE)

    def commands(recording, *operands):
        for step in steps:
            step(recording, *operands)
            if by == "barrier":
                recording.barrier()

    settings = {"hazards": "auto"} if by == "auto" else {}
    recording = recorder.record(commands, first, second, **settings)
    expected = expect(pattern(SIZE).tobytes(), pattern(SIZE, 1).tobytes())
    for _ in range(ROUNDS):
        device.queue.update(first, pattern(SIZE))
        device.queue.update(second, pattern(SIZE, 1)).wait(LIMIT)
        recorder.execute(recording, first, second).wait(LIMIT)
        for buffer, content in zip((first, second), expected, strict=True):
            assert first_difference(buffer.numpy(timeout=LIMIT).tobytes(), content) is None


def test_a_barrier_orders_all_with_all_c2(device, recorder):
    """C2: four commands on each side of it, each of which needs another one's bytes."""
    sources = [device.allocate(SIZE // 4) for _ in range(4)]
    targets = [device.upload(np.zeros(SIZE // 4, np.uint8)) for _ in range(4)]

    def commands(recording, *operands):
        for value, operand in enumerate(operands[:4], 1):
            recording.fill(operand, value)
        recording.barrier()
        for source, target in zip(operands[3::-1], operands[4:], strict=True):
            recording.copy(source, target)

    recorder.run(commands, *sources, *targets)
    for value, target in zip((4, 3, 2, 1), targets, strict=True):
        assert (target.numpy(timeout=LIMIT) == value).all()


def test_order_goes_on_over_many_barriers_c2(device, recorder):
    """C2: what is far before a barrier is ordered, too, with nothing between two of them."""
    first, second = device.allocate(SIZE), device.upload(np.zeros(SIZE, np.uint8))
    other = device.allocate(64)

    def commands(recording, source, target, other):
        recording.barrier()
        recording.fill(source, 3)
        recording.barrier()
        recording.barrier()
        recording.fill(other, 1)
        recording.barrier()
        recording.copy(source, target, source_offset=SIZE - 64, size=64)
        recording.barrier()

    recorder.run(commands, first, second, other)
    seen = second.numpy(timeout=LIMIT)
    assert (seen[:64] == 3).all()
    assert not seen[64:].any()


def test_a_chain_of_copies_c2(device, recorder):
    """C2: bytes go through sixteen buffers, from one barrier to the next."""
    buffers = [device.upload(np.zeros(4096, np.uint8)) for _ in range(16)]

    def commands(recording, *operands):
        recording.update(operands[0], pattern(4096))
        for source, target in itertools.pairwise(operands):
            recording.barrier()
            recording.copy(source, target)

    recorder.run(commands, *buffers)
    assert all(np.array_equal(each.numpy(timeout=LIMIT), pattern(4096)) for each in buffers)


# Events


def test_an_event_is_created_signalled_and_reset_c1(device):
    """C1: an event has a name, and knows whether it is signalled."""
    with device.record() as recording:
        event, other = recording.create_event(name="ready"), recording.create_event()
        assert event.name == "ready"
        assert other.name
        assert not event.signalled
        recording.signal_event(event)
        assert event.signalled
        assert not other.signalled
        recording.wait_events(event)
        recording.reset_event(event)
        assert not event.signalled
        recording.signal_event(event)
        assert event.signalled
    assert len(recording) == 0


def test_signal_and_reset_in_an_execution_c1(device, queue, lowering):
    """C1: a recording of a signal and a reset only is executed, again and again."""
    with device.record(command_buffer=lowering) as recording:
        event = recording.create_event()
        recording.signal_event(event)
        recording.reset_event(event)
    for _ in range(3):
        queue.execute(recording).wait(LIMIT)


def test_an_event_is_a_barrier_in_two_halves_c2(device, recorder):
    """C2: all before the signal comes before all after the wait; what is between is free."""
    first, second = device.allocate(SIZE), device.upload(np.zeros(SIZE, np.uint8))
    other = device.allocate(64)

    def commands(recording, source, target, other):
        ready = recording.create_event()
        recording.fill(source, 7)
        recording.signal_event(ready)
        recording.fill(other, 5)
        recording.wait_events(ready)
        recording.copy(source, target, source_offset=SIZE - 64, size=64)

    recording = recorder.record(commands, first, second, other)
    for _ in range(ROUNDS):
        device.queue.fill(first, 0)
        device.queue.fill(second, 0)
        device.queue.wait_idle(LIMIT)
        recorder.execute(recording, first, second, other).wait(LIMIT)
        assert (second.numpy(timeout=LIMIT)[:64] == 7).all()
        assert (other.numpy(timeout=LIMIT) == 5).all()


def test_a_wait_for_several_events_c2(device, recorder):
    """C2: three fills, each with an event of its own, and copies that need two of them."""
    sources = [device.allocate(SIZE // 4) for _ in range(3)]
    targets = [device.upload(np.zeros(SIZE // 4, np.uint8)) for _ in range(2)]

    def commands(recording, *operands):
        events = []
        for value, operand in enumerate(operands[:3], 1):
            recording.fill(operand, value)
            events.append(recording.create_event())
            recording.signal_event(events[-1])
        recording.wait_events(events[0], events[2])
        recording.copy(operands[0], operands[3])
        recording.copy(operands[2], operands[4])

    recorder.run(commands, *sources, *targets)
    for value, target in zip((1, 3), targets, strict=True):
        assert (target.numpy(timeout=LIMIT) == value).all()


def test_an_event_is_used_again_after_a_reset_c2(device, recorder):
    """C2: one event hands four buffers over, one after another."""
    buffers = [device.upload(np.zeros(SIZE // 4, np.uint8)) for _ in range(5)]

    def commands(recording, *operands):
        event = recording.create_event()
        recording.update(operands[0], pattern(SIZE // 4))
        for source, target in itertools.pairwise(operands):
            recording.signal_event(event)
            recording.wait_events(event)
            recording.copy(source, target)
            recording.reset_event(event)

    recorder.run(commands, *buffers)
    assert all(np.array_equal(each.numpy(timeout=LIMIT), pattern(SIZE // 4)) for each in buffers)


def test_an_event_that_nothing_signals_is_refused_c1(device):
    """C1: a wait for what would never come raises while it is recorded."""
    with device.record() as recording:
        event = recording.create_event(name="never")
        with pytest.raises(InvalidArgumentError, match="never"):
            recording.wait_events(event)
        recording.signal_event(event)
        recording.wait_events(event)
        with pytest.raises(InvalidArgumentError):
            recording.signal_event(event)
        recording.reset_event(event)
        with pytest.raises(InvalidArgumentError):
            recording.wait_events(event)


def test_events_belong_to_their_recording_c1(device):
    """C1: another recording's event, and what is none, are refused."""
    with device.record() as first:
        event = first.create_event()
        first.signal_event(event)
    with device.record() as second:
        for use in (second.signal_event, second.wait_events, second.reset_event):
            with pytest.raises(InvalidArgumentError):
                use(event)
            for wrong in (None, "event", 1):
                with pytest.raises(ArgumentTypeError):
                    use(wrong)


def test_barriers_order_beyond_the_bytes_c2(device, recorder):
    """C2: with ``hazards="auto"`` barriers and events are allowed, and order as ever."""
    first, second = device.allocate(4096), device.upload(np.zeros(4096, np.uint8))

    def commands(recording, source, target):
        event = recording.create_event()
        recording.fill(source, 7)
        recording.signal_event(event)
        recording.barrier()
        recording.wait_events(event)
        recording.copy(source, target)

    recorder.run(commands, first, second, hazards="auto")
    assert (second.numpy(timeout=LIMIT) == 7).all()
