"""Every operation of a queue does what it says (Q4)."""

import numpy as np
import pytest


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
