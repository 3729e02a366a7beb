"""Files: ranges that a queue writes into buffers and reads out of them (Q4)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError, OperationError
from hal_conformance.suite.support import LIMIT, assert_fails, broken, pattern


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 4096 bytes."""
    made = tmp_path / "file"
    made.write_bytes(pattern(4096).tobytes())
    return made


def test_a_file_says_what_it_is_q4(path):
    """Q4: path, offset and size; nothing is opened."""
    for given in (path, str(path), str(path).encode()):
        file = hal.File(given, offset=8, size=16)
        assert (file.path, file.offset, file.size) == (str(path), 8, 16)
    assert hal.File(path / "there" / "is" / "none").size is None


def test_a_whole_file_into_a_buffer_q4(device, queue, path):
    """Q4: without a range a write fills the buffer from the beginning of the file."""
    buffer = device.allocate(4096)
    queue.write(buffer, hal.File(path)).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(4096))


@pytest.mark.parametrize(
    ("start", "size", "offset"), [(0, 64, 0), (100, 64, 32), (4095, 1, 255), (1, 255, 1), (9, 0, 9)]
)
def test_a_range_of_a_file_into_a_range_of_a_buffer_q4(device, queue, path, start, size, offset):
    """Q4: bytes [start, start + size) of the file land at the offset, and nothing else changes."""
    buffer = device.upload(np.full(256, 0xEE, np.uint8))
    queue.write(buffer, hal.File(path, offset=start, size=size), offset=offset).wait(LIMIT)
    expected = np.full(256, 0xEE, np.uint8)
    expected[offset : offset + size] = pattern(4096)[start : start + size]
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


@pytest.mark.parametrize(
    ("start", "size", "offset"), [(0, 64, 0), (100, 64, 32), (4090, 6, 250), (1, 255, 1), (9, 0, 9)]
)
def test_a_range_of_a_buffer_into_a_range_of_a_file_q4(device, queue, path, start, size, offset):
    """Q4: a read writes its range of the file; all other bytes of the file stay."""
    buffer = device.upload(pattern(256, 7))
    queue.read(buffer, hal.File(path, offset=start, size=size), offset=offset).wait(LIMIT)
    expected = bytearray(pattern(4096).tobytes())
    expected[start : start + size] = pattern(256, 7)[offset : offset + size].tobytes()
    assert path.read_bytes() == bytes(expected)


def test_a_read_makes_the_file_q4(device, queue, tmp_path):
    """Q4: where there is no file a read makes one, and a gap before its range is zeros."""
    buffer = device.upload(pattern(64))
    queue.read(buffer, hal.File(tmp_path / "new", offset=16)).wait(LIMIT)
    assert (tmp_path / "new").read_bytes() == bytes(16) + pattern(64).tobytes()


def test_a_write_behind_a_read_q4(device, queue, tmp_path, make_semaphore):
    """Q4: to a file, and back into another buffer, in a chain of semaphores."""
    gate, between, done = (make_semaphore() for _ in range(3))
    first, second = device.upload(pattern(4096, 3)), device.allocate(4096)
    file = hal.File(tmp_path / "chain")
    device.queues.upload.write(second, file, wait=between.at(1), signal=done.at(1))
    queue.read(first, file, wait=gate.at(1), signal=between.at(1))
    assert done.query() == 0
    gate.signal(1)
    done.wait(1, LIMIT)
    assert np.array_equal(second.numpy(timeout=LIMIT), pattern(4096, 3))


@pytest.mark.parametrize("memory", ["device", "host", "managed"])
def test_a_large_range_there_and_back_q4(device, queue, tmp_path, memory):
    """Q4: five megabytes and a bit, at odd offsets, there and back in each kind of memory."""
    size = (5 << 20) + 13
    first = device.allocate(size + 3, memory=memory)
    second = device.allocate(size + 5, memory=memory)
    queue.write(first, pattern(size), offset=3)
    queue.read(first, hal.File(tmp_path / "large", offset=7), offset=3)
    queue.write(second, hal.File(tmp_path / "large", offset=7, size=size), offset=5).wait(LIMIT)
    assert np.array_equal(second.numpy(timeout=LIMIT)[5:], pattern(size))
    assert (tmp_path / "large").stat().st_size == size + 7


def test_files_stand_in_the_order_of_the_queue_q4(device, queue, tmp_path):
    """Q4, Q2: fills, reads to files and writes from them, submitted at once, run in turn."""
    buffer, target = device.allocate(64), device.allocate(64 * 8)
    for number in range(8):
        queue.fill(buffer, number + 1)
        queue.read(buffer, hal.File(tmp_path / "order", offset=64 * number))
    queue.fill(buffer, 0xEE)
    queue.write(target, hal.File(tmp_path / "order")).wait(LIMIT)
    expected = np.repeat(np.arange(1, 9), 64)
    assert np.array_equal(target.numpy(timeout=LIMIT), expected)


def test_a_file_is_opened_when_the_operation_runs_q4(device, queue, tmp_path, gate):
    """Q4: a write behind an open wait takes what the file holds when it runs."""
    buffer = device.allocate(64)
    ran = queue.write(buffer, hal.File(tmp_path / "late"), wait=gate.at(1))
    assert not ran.done
    (tmp_path / "late").write_bytes(pattern(64).tobytes())
    gate.signal(1)
    ran.wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))


def test_a_file_operation_holds_up_nobody_else_q1(device, queue, make_queue, make_latch, path):
    """Q1: file operations of another queue run while this one's stand behind a latch."""
    latch, other = make_latch(queue), make_queue()
    first, second = device.allocate(4096), device.allocate(4096)
    held = queue.write(first, hal.File(path))
    other.write(second, hal.File(path)).wait(LIMIT)
    assert not held.done
    latch.open()
    held.wait(LIMIT)
    assert np.array_equal(first.numpy(timeout=LIMIT), pattern(4096))


def test_many_file_operations_at_once_q4(device, make_queue, path, tmp_path):
    """Q4: thirty reads and writes of an unordered queue, each on a range of its own."""
    queue = make_queue(ordered=False)
    source, target = device.upload(pattern(30 * 64, 5)), device.allocate(30 * 64)
    ran = []
    for number in range(30):
        place = 64 * number
        out = hal.File(tmp_path / "many", offset=place, size=64)
        ran.append(queue.read(source, out, offset=place))
        ran.append(queue.write(target, hal.File(path, offset=place, size=64), offset=place))
    hal.wait_all(ran, LIMIT)
    assert (tmp_path / "many").read_bytes() == pattern(30 * 64, 5).tobytes()
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096)[: 30 * 64])


def test_what_a_file_operation_uses_is_kept_q5(device, queue, tmp_path, gate):
    """Q5: buffer and file may be dropped while the operation is pending."""
    buffer = device.upload(pattern(4096))
    ran = queue.read(buffer, hal.File(tmp_path / "kept"), wait=gate.at(1))
    buffer.close()
    del buffer
    others = [device.upload(np.zeros(4096, np.uint8)) for _ in range(2)]
    gate.signal(1)
    ran.wait(LIMIT)
    assert (tmp_path / "kept").read_bytes() == pattern(4096).tobytes()
    del others


def test_a_failed_wait_leaves_the_file_alone_q4(device, queue, path, tmp_path, gate):
    """Q4, S5: behind a failed wait no file is made or written, and no buffer."""
    buffer = device.upload(np.zeros(4096, np.uint8))
    read = queue.read(buffer, hal.File(tmp_path / "never"), wait=gate.at(1))
    error = broken()
    gate.fail(error)
    assert_fails(read, error)
    assert_fails(queue.write(buffer, hal.File(path), wait=gate.at(1)), error)
    assert not (tmp_path / "never").exists()
    assert not buffer.numpy(timeout=LIMIT).any()


FAILURES: dict[str, tuple[str, Any, int | None]] = {
    # The queue's method, the path from a folder, and the system's error, if it raises one.
    "a missing file": ("write", lambda folder: folder / "missing", errno.ENOENT),
    "a missing folder": ("read", lambda folder: folder / "missing" / "file", errno.ENOENT),
    "a folder to read into": ("read", lambda folder: folder, errno.EISDIR),
    "a folder to write from": ("write", lambda folder: folder, errno.EISDIR),
    "a short file": ("write", lambda folder: folder / "short", None),
    "a file for a folder": ("read", lambda folder: folder / "short" / "data", errno.ENOTDIR),
    "a link to itself": ("read", lambda folder: folder / "loop", errno.ELOOP),
    "a pipe to write from": ("write", lambda folder: folder / "pipe", errno.ESPIPE),
    "a pipe that none reads": ("read", lambda folder: folder / "pipe", errno.ENXIO),
    "a full disk": ("read", lambda folder: Path("/dev/full"), errno.ENOSPC),
}


@pytest.mark.parametrize("what", FAILURES)
def test_what_goes_wrong_fails_the_operation_q4(device, queue, tmp_path, semaphore, what):
    """Q4: an error of the system fails operation and signal, and says path and reason."""
    method, make, number = FAILURES[what]
    (tmp_path / "short").write_bytes(b"short")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    buffer = device.upload(np.zeros(64, np.uint8))
    file = hal.File(make(tmp_path))
    ran = getattr(queue, method)(buffer, file, signal=semaphore.at(1))
    with pytest.raises(OperationError) as caught:
        ran.wait(LIMIT)
    assert file.path in str(caught.value)
    if number is not None:
        assert errno.errorcode[number] in str(caught.value)
    with pytest.raises(OperationError):
        semaphore.wait(1, LIMIT)
    assert not buffer.numpy(timeout=LIMIT).any()
    queue.fill(buffer, 1).wait(LIMIT)  # and nothing else fails


BAD: dict[str, tuple[type[HalError], Any]] = {
    "a file of no path": (ArgumentTypeError, lambda q, b, p: hal.File(7)),  # type: ignore[arg-type]
    "an empty path": (InvalidArgumentError, lambda q, b, p: hal.File("")),
    "a zero in the path": (InvalidArgumentError, lambda q, b, p: hal.File("a\0b")),
    "an offset below zero": (InvalidArgumentError, lambda q, b, p: hal.File(p, offset=-1)),
    "a size below zero": (InvalidArgumentError, lambda q, b, p: hal.File(p, size=-1)),
    "an offset that is no int": (ArgumentTypeError, lambda q, b, p: hal.File(p, offset=1.5)),  # type: ignore[arg-type]
    "an offset of no file": (InvalidArgumentError, lambda q, b, p: hal.File(p, offset=2**63)),
    "a range that no file has": (
        InvalidArgumentError,
        lambda q, b, p: q.read(b, hal.File(p, offset=2**63 - 8)),
    ),
    "a write of too much": (InvalidArgumentError, lambda q, b, p: q.write(b, hal.File(p, size=65))),
    "a read of too much": (
        InvalidArgumentError,
        lambda q, b, p: q.read(b, hal.File(p, size=60), offset=8),
    ),
    "an offset behind the buffer": (
        InvalidArgumentError,
        lambda q, b, p: q.write(b, hal.File(p), offset=65),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_q4(device, queue, path, what):
    """Q4: a range that cannot be is refused during the call, and nothing is submitted."""
    kind, wrong = BAD[what]
    buffer = device.upload(np.zeros(64, np.uint8))
    with pytest.raises(kind):
        wrong(queue, buffer, path)
    queue.wait_idle(LIMIT)
    assert not buffer.numpy(timeout=LIMIT).any()
    assert path.read_bytes() == pattern(4096).tobytes()
