"""Ranges of files: where they begin, and what is outside of them (Q4)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hal
from hal.errors import OperationError
from hal_conformance.suite.support import LIMIT, pattern

SIZE = 4096


@pytest.mark.parametrize("missing", [1, SIZE])
def test_a_file_that_is_too_short_fails_q4(
    device: hal.Device,
    queue: hal.Queue,
    semaphore: hal.Semaphore,
    tmp_path: Path,
    missing: int,
) -> None:
    """Q4: a range that the file does not have fails the write and its signals; nothing moves."""
    path = tmp_path / "short"
    path.write_bytes(pattern(2 * SIZE - missing).tobytes())
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    written = queue.write(buffer, hal.File(path, offset=SIZE), signal=semaphore.at(1))
    with pytest.raises(OperationError):
        written.wait(LIMIT)
    with pytest.raises(OperationError):
        semaphore.wait(1, LIMIT)
    assert missing == SIZE or not buffer.numpy(timeout=LIMIT).any()


def test_a_range_of_a_file_moves_both_ways_q4(
    device: hal.Device, queue: hal.Queue, tmp_path: Path
) -> None:
    """Q4: offsets in the file count, and its bytes outside of the range stay."""
    path, data = tmp_path / "file", pattern(3 * SIZE)
    path.write_bytes(data.tobytes())
    buffer = device.upload(np.zeros(SIZE, np.uint8))
    queue.write(buffer, hal.File(path, offset=SIZE)).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), data[SIZE : 2 * SIZE])
    queue.fill(buffer, 0xEE)
    queue.read(buffer, hal.File(path, offset=SIZE)).wait(LIMIT)
    data[SIZE : 2 * SIZE] = 0xEE
    assert path.read_bytes() == data.tobytes()
