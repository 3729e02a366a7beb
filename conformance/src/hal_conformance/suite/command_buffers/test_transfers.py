"""Recorded transfers: fill, copy and update at any size and place (C1)."""

from __future__ import annotations

import numpy as np
import pytest

from hal.errors import ClosedError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, first_difference, pattern

CLASSES = [
    (1, 4, 1),
    (1, 31, 3),
    (1, 33, 7),
    (1, 257, 1),
    (1, 4097, 15),
    (1, 65536, 0),
    (2, 4, 2),
    (2, 30, 6),
    (2, 66, 2),
    (2, 1024, 14),
    (2, 65536, 2),
    (4, 4, 4),
    (4, 32, 12),
    (4, 256, 4),
    (4, 4096, 8),
    (4, 65536, 4),
    (8, 8, 8),
    (8, 4096, 4),
    (8, 65536, 0),
    (16, 48, 16),
    (16, 65536, 8),
    (16, 5 << 20, 0),
]
UNITS = {width: bytes(range(101, 101 + width)) for width in (1, 2, 4, 8, 16)}


def test_fill_classes_of_size_and_alignment_c1(device, recorder):
    """C1: fills from 4 bytes to megabytes, at any place that the pattern allows; a tail stays."""
    for width, length, offset in CLASSES:
        size = offset + length + 16
        size += -size % width
        buffer = device.upload(np.zeros(size, np.uint8))

        def commands(recording, target, width=width, size=size, offset=offset, length=length):
            recording.fill(target.subspan(0, size), UNITS[width], offset=offset, size=length)

        recorder.run(commands, buffer)
        found = buffer.numpy(timeout=LIMIT).tobytes()
        filled = UNITS[width] * (length // width)
        expected = bytes(offset) + filled + bytes(size - offset - length)
        assert first_difference(found, expected) is None, (width, length, offset)


def test_copy_between_two_fills_c1(device, recorder):
    """C1: zeros over [0, 8), a copy of source[4, 512) to [8, 516), zeros over the rest."""
    source = device.upload(np.full(512, 0x88, np.uint8))
    target = device.upload(np.full(1024, 0xEE, np.uint8))

    def commands(recording, source, target):
        recording.fill(target, 0, size=8)
        recording.copy(source, target, source_offset=4, target_offset=8, size=508)
        recording.fill(target, 0, offset=516)

    recorder.run(commands, source, target)
    expected = bytes(8) + b"\x88" * 508 + bytes(508)
    assert target.numpy(timeout=LIMIT).tobytes() == expected


@pytest.mark.parametrize(
    ("size", "first", "last", "offset"),
    [(16, 0, 16, 0), (256, 0, 256, 0), (16, 4, 12, 4), (64, 1, 32, 33), (200_000, 0, 150_001, 7)],
)
def test_update_c1(device, recorder, size, first, last, offset):
    """C1: bytes [first, last) of an array land at the offset, whatever their number."""
    buffer = device.upload(np.zeros(size, np.uint8))
    data = pattern(last)[first:]
    recorder.run(lambda recording, to: recording.update(to, data, offset=offset), buffer)
    expected = np.zeros(size, np.uint8)
    expected[offset : offset + last - first] = pattern(last)[first:]
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


def test_update_of_a_subspan_c1(device, recorder):
    """C1: four bytes at offset 4 of the subspan [4, 12) are bytes [8, 12) of the whole."""
    buffer = device.upload(np.zeros(16, np.uint8))
    recorder.run(lambda each, to: each.update(to.subspan(4, 8), b"abcd", offset=4), buffer)
    assert buffer.numpy(timeout=LIMIT).tobytes() == bytes(8) + b"abcd" + bytes(4)
    assert buffer.subspan(4, 8).numpy(timeout=LIMIT).tobytes() == bytes(4) + b"abcd"


def test_update_takes_its_bytes_while_recording_c1(device, recorder):
    """C1: an array that changes after `update` has returned changes no execution."""
    buffer, data = device.upload(np.zeros(4096, np.uint8)), pattern(4096)

    def commands(recording, target):
        recording.update(target, data)
        data[:] = 0

    recording = recorder.record(commands, buffer)
    for _ in range(2):
        recorder.execute(recording, buffer).wait(LIMIT)
        assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(4096))
        recorder.run(lambda other, to: other.fill(to, 0), buffer)


def test_five_hundred_fills_in_one_recording_c1(device, recorder):
    """C1: 512 fills of one word each, executed twice."""
    buffer = device.upload(np.zeros(512, np.uint32))

    def commands(recording, target):
        for index in range(512):
            recording.fill(target, 0xBD370000 | index, offset=4 * index, size=4)

    recording = recorder.record(commands, buffer)
    assert len(recording) == 512
    for _ in range(2):
        recorder.execute(recording, buffer).wait(LIMIT)
        expected = 0xBD370000 | np.arange(512, dtype=np.uint32)
        assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)
        recorder.run(lambda recording, to: recording.fill(to, 0), buffer)


def test_two_hundred_recordings_of_a_fill_c1(device, queue):
    """C1: one-shot recordings, each waited for; the last one's value stays."""
    buffer = device.upload(np.zeros(1024, np.uint32))
    for index in range(200):
        with device.record(one_shot=True) as recording:
            recording.fill(buffer, 0xBEEF0000 | index)
        queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 0xBEEF0000 | 199).all()


def test_two_hundred_recordings_of_a_copy_c1(device, queue):
    """C1: memory that the host has just written is what a one-shot copy takes, every time."""
    source, target = device.allocate(64, memory="host"), device.upload(np.zeros(64, np.uint8))
    view = source.map()
    for index in range(200):
        view[:] = index % 251
        with device.record(one_shot=True) as recording:
            recording.copy(source, target)
        queue.execute(recording).wait(LIMIT)
        if index % 20 == 0:
            assert (target.numpy(timeout=LIMIT) == index % 251).all()
    assert (target.numpy(timeout=LIMIT) == 199).all()


def test_closed_buffers_are_refused_c1(device):
    """C1: a buffer that was closed cannot be recorded."""
    closed, buffer = device.allocate(64), device.allocate(64)
    closed.close()
    with device.record() as recording:
        for use in (
            lambda: recording.fill(closed, 1),
            lambda: recording.update(closed, b"1"),
            lambda: recording.copy(closed, buffer),
            lambda: recording.copy(buffer, closed),
        ):
            with pytest.raises(ClosedError):
                use()
    assert len(recording) == 0


def test_buffers_of_another_device_are_refused_c1(device, second_device):
    """C1: only copies take another device's buffers (test_devices.py)."""
    theirs = second_device.allocate(64)
    with device.record() as recording:
        for use in (lambda: recording.fill(theirs, 1), lambda: recording.update(theirs, b"1")):
            with pytest.raises(InvalidArgumentError):
                use()
    assert len(recording) == 0
