"""Every operation of a queue does what it says (Q4)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from core_harness import LIMIT

import hal


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("u1", 255, b"\xff" * 4),
        ("i1", -1, b"\xff" * 4),
        ("i2", -2, b"\xfe\xff" * 2),
        ("u4", 2**32 - 1, b"\xff" * 4),
        ("f4", 1.0, b"\x00\x00\x80\x3f"),
        ("f4", 1, b"\x00\x00\x80\x3f"),
        ("f2", 1.0, b"\x00\x3c" * 2),
        ("?", True, b"\x01" * 4),
        ("u1", b"\x07", b"\x07" * 4),
        ("f4", b"\x07", b"\x07" * 4),
        ("u1", np.uint16(0x0201), b"\x01\x02" * 2),
        ("u1", np.float32(1), b"\x00\x00\x80\x3f"),
        ("u1", bytearray(b"\x01\x02\x03\x04"), b"\x01\x02\x03\x04"),
        ("f8", 0.0, b"\x00" * 8),
        ("i8", -1, b"\xff" * 8),
        ("u1", np.int64(0), b"\x00" * 4),
    ],
)
def test_fill_converts_numbers_to_the_buffers_type_q4(device, dtype, value, expected):
    buffer = device.allocate(len(expected), dtype=dtype)
    assert buffer.numpy("u1", wait=device.queue.fill(buffer, value)).tobytes() == expected


@pytest.mark.parametrize(
    "data",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh"),
        np.frombuffer(b"abcdefgh", np.float64),
        np.frombuffer(b"abcdefgh", np.uint16).reshape(2, 2),
        np.frombuffer(b"abcdefgh", "V8"),
        np.float64(np.frombuffer(b"abcdefgh", np.float64)[0]),
    ],
    ids=lambda data: type(data).__name__ + str(getattr(data, "dtype", "")),
)
def test_update_and_write_take_what_has_bytes_q4(device, data):
    buffer = device.allocate(8)
    assert buffer.numpy(wait=device.queue.update(buffer, data)).tobytes() == b"abcdefgh"
    device.queue.fill(buffer, 0).wait(LIMIT)
    assert buffer.numpy(wait=device.queue.write(buffer, data)).tobytes() == b"abcdefgh"


def test_submission_needs_no_flush_or_poke_q4(device):
    """Every entry point makes progress without another call of ours."""
    buffer, other = device.allocate(16), device.allocate(16)
    array = np.zeros(16, np.uint8)
    with device.record() as commands:
        commands.fill(buffer, 1)
    queue = device.queue
    for submit in (
        lambda **lists: queue.fill(buffer, 1, **lists),
        lambda **lists: queue.update(buffer, b"1", **lists),
        lambda **lists: queue.copy(buffer, other, **lists),
        lambda **lists: queue.write(buffer, array, **lists),
        lambda **lists: queue.read(buffer, array, **lists),
        lambda **lists: queue.call(list, **lists),
        lambda **lists: queue.execute(commands, **lists),
        queue.barrier,
    ):
        for gate in (None, hal.create_semaphore()):
            done, told = hal.create_semaphore(), threading.Event()
            done.on_reached(1, lambda _, told=told: told.set())
            submit(wait=gate.at(1) if gate else (), signal=done.at(1))
            if gate:
                gate.signal(1)
            assert told.wait(LIMIT), "nobody looked after it"
