"""Recorded transfers: fill, copy and update at any size and place (C1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, first_difference, pattern

FILLS = [
    # Bytes of the pattern, of the buffer, offset and length.
    (1, 1, 0, 1),
    (1, 5, 0, 5),
    (1, 16, 0, 1),
    (1, 16, 0, 3),
    (1, 16, 0, 8),
    (1, 16, 2, 8),
    (2, 2, 0, 2),
    (2, 16, 0, 8),
    (2, 16, 0, 10),
    (2, 16, 2, 8),
    (4, 4, 0, 4),
    (4, 20, 16, 4),
    (4, 16, 0, 8),
    (4, 16, 8, 8),
    (8, 8, 0, 8),
    (8, 40, 8, 24),
    (8, 40, 4, 32),
    (16, 16, 0, 16),
    (16, 64, 4, 48),
]
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
VALUES = {
    1: 0x07,
    2: 0xAB23,
    4: 0xAB23CD45,
    8: 0x0102030405060708,
    16: 0x1112131415161718191A1B1C1D1E1F20,
}


def filled(size: int, offset: int, length: int, width: int) -> bytes:
    """Return zeros with the pattern of `width` bytes over a range."""
    content = bytearray(size)
    content[offset : offset + length] = VALUES[width].to_bytes(width, "little") * (length // width)
    return bytes(content)


@pytest.mark.parametrize(("width", "size", "offset", "length"), FILLS)
def test_fill_patterns_c1(device, recorder, width, size, offset, length):
    """C1: patterns of 1 to 16 bytes fill their range in little endian, and nothing else."""
    buffer = device.upload(np.zeros(size, np.uint8))

    def commands(recording, target):
        value = VALUES[width].to_bytes(width, "little")
        recording.fill(target.subspan(0, size), value, offset=offset, size=length)

    recorder.run(commands, buffer)
    assert buffer.numpy(timeout=LIMIT).tobytes() == filled(size, offset, length, width)


def test_fill_classes_of_size_and_alignment_c1(device, recorder):
    """C1: fills from 4 bytes to megabytes, at any place that the pattern allows; a tail stays."""
    for width, length, offset in CLASSES:
        size = offset + length + 16
        size += -size % width
        buffer = device.upload(np.zeros(size, np.uint8))

        def commands(recording, target, width=width, size=size, offset=offset, length=length):
            value = VALUES[width].to_bytes(width, "little")
            recording.fill(target.subspan(0, size), value, offset=offset, size=length)

        recorder.run(commands, buffer)
        found = buffer.numpy(timeout=LIMIT).tobytes()
        where = first_difference(found, filled(size, offset, length, width))
        assert where is None, (width, length, offset)


@pytest.mark.parametrize("size", [1024, (1 << 20) + 1])
def test_copy_of_a_whole_buffer_c1(device, recorder, size):
    """C1: a copy without a range takes all: a few bytes, or a megabyte and an odd byte."""
    source, target = device.upload(pattern(size)), device.upload(np.zeros(size, np.uint8))
    recorder.run(lambda recording, *pair: recording.copy(*pair), source, target)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(size))


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


@pytest.mark.parametrize("offsets", [(0, 0), (8, 8), (4, 4), (1, 2)], ids=str)
def test_copy_classes_of_size_and_alignment_c1(device, recorder, offsets):
    """C1: copies from 4 bytes to 64 KiB, aligned or not, in one recording; all else stays zero."""
    begin, end = offsets
    sizes = (4, 8, 16, 31, 32, 33, 64, 128, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10)
    places = np.cumsum([0, *(size + 16 for size in sizes)]).tolist()
    source = device.upload(pattern(places[-1] + 16))
    target = device.upload(np.zeros(places[-1] + 16, np.uint8))

    def commands(recording, source, target):
        for size, place in zip(sizes, places, strict=False):
            recording.copy(
                source, target, source_offset=place + begin, target_offset=place + end, size=size
            )

    recorder.run(commands, source, target)
    expected = np.zeros(places[-1] + 16, np.uint8)
    for size, place in zip(sizes, places, strict=False):
        taken = pattern(places[-1] + 16)[place + begin : place + begin + size]
        expected[place + end : place + end + size] = taken
    assert np.array_equal(target.numpy(timeout=LIMIT), expected)


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


def test_fills_take_numbers_as_the_slots_type_c1(device, recorder):
    """C1: a number is converted to the buffer's, or the slot's, dtype."""
    for dtype in (np.float32, np.float64, np.complex128):
        buffer = device.upload(np.zeros(8, dtype))
        width = buffer.dtype.itemsize
        recorder.run(
            lambda recording, to, width=width: recording.fill(
                to, 2.1, offset=2 * width, size=2 * width
            ),
            buffer,
        )
        expected = np.array([0, 0, 2.1, 2.1, 0, 0, 0, 0], dtype)
        assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


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


BAD: dict[str, tuple[type[HalError], Any]] = {
    "a fill beyond the end": (
        InvalidArgumentError,
        lambda r, a, _: r.fill(a, 1, offset=60, size=8),
    ),
    "a fill before the start": (InvalidArgumentError, lambda r, a, _: r.fill(a, 1, offset=-4)),
    "a fill of half a pattern": (
        InvalidArgumentError,
        lambda r, a, _: r.fill(a.subspan(0, 64, dtype="<u4"), 1, size=6),
    ),
    "a fill at a wrong alignment": (
        InvalidArgumentError,
        lambda r, a, _: r.fill(a.subspan(0, 64, dtype="<u4"), 1, offset=2, size=4),
    ),
    "an update beyond the end": (InvalidArgumentError, lambda r, a, _: r.update(a, bytes(65))),
    "an update of no bytes-like": (ArgumentTypeError, lambda r, a, _: r.update(a, 7)),
    "a copy of too much": (InvalidArgumentError, lambda r, a, b: r.copy(a, b, size=65)),
    "a copy to behind the end": (
        InvalidArgumentError,
        lambda r, a, b: r.copy(a, b, target_offset=33, size=32),
    ),
    "a copy onto itself, nearly": (
        InvalidArgumentError,
        lambda r, a, _: r.copy(a, a, target_offset=1, size=63),
    ),
    "a copy that overlaps": (
        InvalidArgumentError,
        lambda r, a, _: r.copy(a, a, source_offset=0, target_offset=16, size=32),
    ),
    "no buffer": (ArgumentTypeError, lambda r, _, __: r.fill(np.zeros(4), 1)),
    "a name that is no text": (ArgumentTypeError, lambda r, a, _: r.fill(a, 1, name=7)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_commands_are_refused_c1(device, recorder, what):
    """C1: a command that is wrong raises while it is recorded, and the recording is as before."""
    kind, wrong = BAD[what]
    first, second = device.upload(pattern(64)), device.upload(np.zeros(64, np.uint8))

    def commands(recording, source, target):
        recording.copy(source, target, size=32)
        with pytest.raises(kind):
            wrong(recording, source, target)
        assert len(recording) == 1
        recording.fill(target, 9, offset=32)

    recorder.run(commands, first, second)
    expected = pattern(32).tobytes() + bytes([9]) * 32
    assert second.numpy(timeout=LIMIT).tobytes() == expected
    assert np.array_equal(first.numpy(timeout=LIMIT), pattern(64))


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
