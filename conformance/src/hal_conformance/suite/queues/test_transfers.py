"""Transfers: fill, update, write, read and copy move exactly the bytes that they say (Q4, C1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, first_difference, pattern

pytestmark = pytest.mark.ordering

SIZES = (1, 3, 4, 255, 4096, (1 << 20) + 1)

RANGES = ((0, 64), (0, 1), (1, 1), (1, 62), (4, 8), (7, 33), (63, 1), (64, 0), (5, 0))
"""Offsets and lengths in 64 bytes: whole, both ends, odd, and nothing at all."""

FILLS = {
    1: RANGES,
    2: ((0, 64), (2, 6), (62, 2), (10, 0)),
    4: ((0, 64), (4, 4), (8, 48), (60, 4), (12, 0)),
    8: ((0, 64), (8, 8), (4, 56), (56, 8), (16, 0)),
    16: ((0, 64), (16, 16), (12, 48), (48, 16), (0, 48)),
}
"""For patterns of so many bytes."""
UNITS = {
    1: b"\xab",
    2: b"\xef\xbe",
    4: b"\xfe\xca\xad\xde",
    8: bytes(range(1, 9)),
    16: bytes(range(101, 117)),
}


@pytest.mark.parametrize("width", FILLS)
def test_fill_of_a_range_q4(device, way, width):
    """Q4, C1: a fill writes its pattern over its range, and nothing before or behind it."""
    for offset, length in FILLS[width]:
        buffer = device.upload(pattern(64))
        fill = {"offset": offset, "size": length}
        way.run(lambda to, buffer, fill=fill: to.fill(buffer, UNITS[width], **fill), buffer)
        expected = bytearray(pattern(64).tobytes())
        expected[offset : offset + length] = UNITS[width] * (length // width)
        assert buffer.numpy(timeout=LIMIT).tobytes() == bytes(expected), fill


@pytest.mark.parametrize("width", UNITS)
def test_fill_of_a_whole_buffer_q4(device, way, width):
    """Q4, C1: a fill without a range covers the buffer, whatever its size."""
    for size in (width, 1024, 4096, 1 << 18, 1 << 22):
        buffer = device.allocate(size)
        way.run(lambda to, buffer: to.fill(buffer, UNITS[width]), buffer)
        found = buffer.numpy(timeout=LIMIT).tobytes()
        assert first_difference(found, UNITS[width] * (size // width)) is None, size


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *[("u1", 255), ("i1", -1), ("<i2", -2), ("<u4", 2**32 - 1), ("<i4", -7), ("<f4", 2.1)],
        *[("<f8", 0.1), ("<i8", -(2**40)), ("<u8", 2**64 - 1), ("<c8", 1 - 2j), ("<c16", 0.1 + 3j)],
        *[("<f8", 0), ("<c16", 1), ("<f2", 1.0), ("?", True)],
    ],
)
def test_fill_takes_a_number_as_the_buffers_type_q4(device, way, dtype, value):
    """Q4, C1: a plain number is filled in as an element of the buffer's, or the slot's, dtype."""
    buffer = device.upload(np.zeros(8, dtype))
    two = 2 * buffer.dtype.itemsize
    way.run(lambda to, buffer: to.fill(buffer, value, offset=two, size=two), buffer)
    expected = np.array([0, 0, value, value, 0, 0, 0, 0], dtype)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


@pytest.mark.parametrize(
    ("dtype", "value", "unit"),
    [
        ("<f4", b"\x07", b"\x07"),
        ("u1", bytearray(b"\1\2\3\4"), b"\1\2\3\4"),
        ("u1", np.uint16(0x0201), b"\1\2"),
        ("u1", np.float32(1), b"\x00\x00\x80\x3f"),
        ("u1", np.int64(0), bytes(8)),
    ],
)
def test_fill_takes_bytes_and_numpys_numbers_as_they_are_q4(device, way, dtype, value, unit):
    """Q4, C1: whatever the buffer's dtype."""
    buffer = device.upload(pattern(16).view(dtype))
    way.run(lambda to, buffer: to.fill(buffer, value), buffer)
    assert buffer.numpy("u1", timeout=LIMIT).tobytes() == unit * (16 // len(unit))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", ["update", "write"])
def test_host_to_device_and_back_q4(device, queue, operation, size):
    """Q4: bytes that go to the device and come back are the same, whatever their number."""
    buffer = device.allocate(size)
    data, out = pattern(size, size), np.zeros(size, np.uint8)
    getattr(queue, operation)(buffer, data)
    queue.read(buffer, out).wait(LIMIT)
    assert np.array_equal(out, data)


@pytest.mark.parametrize(("offset", "length"), RANGES)
@pytest.mark.parametrize("operation", ["update", "write"])
def test_host_to_device_at_an_offset_q4(device, queue, operation, offset, length):
    """Q4: an update or a write changes its range and nothing around it."""
    buffer = device.upload(pattern(64))
    data = pattern(length, 1)
    getattr(queue, operation)(buffer, data, offset=offset).wait(LIMIT)
    expected = pattern(64)
    expected[offset : offset + length] = data
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_read_from_an_offset_q4(device, queue, offset, length):
    """Q4: a read fills the array it is given, all of it and nothing around it."""
    buffer = device.upload(pattern(64))
    out = np.zeros(length + 2, np.uint8)
    queue.read(buffer, out[1 : length + 1], offset=offset).wait(LIMIT)
    assert np.array_equal(out[1 : length + 1], pattern(64)[offset : offset + length])
    assert out[0] == 0
    assert out[length + 1] == 0


@pytest.mark.parametrize("offsets", [(0, 0), (8, 8), (4, 12), (1, 2)], ids=str)
def test_copy_of_a_range_q4(device, way, offsets):
    """Q4, C1: copies of up to 64 KiB, aligned or not, change their ranges and nothing around."""
    sizes = (0, 1, 4, 8, 16, 31, 32, 33, 64, 128, 256, 1000, 4 << 10, 16 << 10, 64 << 10)
    places = np.cumsum([0, *(size + 16 for size in sizes)]).tolist()
    before = [pattern(places[-1], seed) for seed in (0, 1)]
    source, target = map(device.upload, before)
    ranges = [
        (*(place + offset for offset in offsets), size)
        for size, place in zip(sizes, places, strict=False)
    ]

    def copy(to, source, target):
        for begin, end, size in ranges:
            to.copy(source, target, source_offset=begin, target_offset=end, size=size)

    way.run(copy, source, target)
    expected = before[1].copy()
    for begin, end, size in ranges:
        expected[end : end + size] = before[0][begin : begin + size]
    assert np.array_equal(target.numpy(timeout=LIMIT), expected)
    assert np.array_equal(source.numpy(timeout=LIMIT), before[0])


@pytest.mark.parametrize("size", [1, 4096, (1 << 20) + 1])
def test_copy_of_a_whole_buffer_q4(device, way, size):
    """Q4, C1: a copy without a range copies all of the source."""
    source, target = device.upload(pattern(size)), device.allocate(size)
    way.run(lambda to, *pair: to.copy(*pair), source, target)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(size))


def test_copy_within_a_buffer_q4(device, queue):
    """Q4: a copy within one buffer works where the ranges do not overlap, and is refused where."""
    buffer = device.upload(pattern(64))
    queue.copy(buffer, buffer, source_offset=0, target_offset=32, size=32).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), np.tile(pattern(32), 2))
    with pytest.raises(InvalidArgumentError):
        queue.copy(buffer, buffer, source_offset=0, target_offset=31, size=32)
    left, right = buffer.subspan(0, 32), buffer.subspan(16, 32)
    for source, target in ((left, right), (right, left), (buffer, right)):
        with pytest.raises(InvalidArgumentError, match="overlap"):
            queue.copy(source, target, size=32)
    queue.copy(left, right, size=16, target_offset=16).wait(LIMIT)


def test_copy_of_a_range_onto_itself_q4(device, queue, make_semaphore):
    """Q4: nothing is copied; it still waits, orders and signals."""
    buffer, semaphore = device.upload(pattern(64)), make_semaphore()
    queue.fill(buffer, 7, size=8, wait=semaphore.at(1))
    copied = queue.copy(buffer.subspan(0, 32), buffer, size=32, signal=semaphore.at(2))
    assert not copied.done
    semaphore.signal(1)
    semaphore.wait(2, LIMIT)
    copied.wait(LIMIT)
    expected = pattern(64)
    expected[:8] = 7
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


def test_update_takes_its_bytes_during_the_call_q4(device, queue, gate):
    """Q4: what `update` was given may change at once, also while the operation still waits."""
    buffer = device.upload(np.zeros(256, np.uint8))
    data = pattern(256)
    updated = queue.update(buffer, data, wait=gate.at(1))
    data[:] = 0
    gate.signal(1)
    updated.wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(256))


@pytest.mark.parametrize(
    "data",
    [
        b"sixteen bytes!!!",
        bytearray(b"sixteen bytes!!!"),
        memoryview(b"sixteen bytes!!!"),
        np.frombuffer(b"sixteen bytes!!!", np.float64),
        np.frombuffer(b"sixteen bytes!!!", "<u2").reshape(2, 4),
    ],
    ids=["bytes", "bytearray", "memoryview", "float64", "matrix"],
)
def test_host_memory_of_any_kind_q4(device, queue, data):
    """Q4: update and write take whatever has contiguous bytes."""
    for operation in (queue.update, queue.write):
        buffer = device.allocate(16)
        operation(buffer, data).wait(LIMIT)
        assert buffer.numpy(timeout=LIMIT).tobytes() == b"sixteen bytes!!!"


def test_transfers_in_a_chain_q4(device, queue, second_queue, semaphore):
    """Q4: fill a, copy a to b, fill a again, over two queues in a chain: b keeps the first."""
    a, b = device.allocate(1024), device.allocate(1024)
    queue.fill(a, 0xAA, signal=semaphore.at(1))
    second_queue.copy(a, b, wait=semaphore.at(1), signal=semaphore.at(2))
    queue.fill(a, 0xBB, wait=semaphore.at(2), signal=semaphore.at(3))
    semaphore.wait(3, LIMIT)
    assert (a.numpy(timeout=LIMIT) == 0xBB).all()
    assert (b.numpy(timeout=LIMIT) == 0xAA).all()


def test_a_barrier_keeps_the_order_of_transfers_q4(device, unordered, semaphore):
    """Q4: fill, barrier, copy, chained by values on an unordered queue."""
    a, b = device.allocate(4096), device.allocate(4096)
    unordered.copy(a, b, wait=semaphore.at(2), signal=semaphore.at(3))
    unordered.barrier(wait=semaphore.at(1), signal=semaphore.at(2))
    unordered.fill(a, 0x5C, signal=semaphore.at(1))
    semaphore.wait(3, LIMIT)
    assert (b.numpy(timeout=LIMIT) == 0x5C).all()


def test_bursts_of_independent_copies_q4(device, unordered, make_semaphore):
    """Q4: 16 rounds of 64 copies, none of which waits for another, all arrive."""
    sources = [device.upload(pattern(4096, seed)) for seed in range(64)]
    targets = [device.allocate(4096) for _ in range(64)]
    for _ in range(16):
        done = [make_semaphore() for _ in range(64)]
        for source, target, semaphore in zip(sources, targets, done, strict=True):
            unordered.copy(source, target, signal=semaphore.at(1))
        hal.wait_all([each.at(1) for each in done], LIMIT)
    for seed, target in enumerate(targets):
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096, seed))


@pytest.mark.parametrize("operation", ["fill", "update", "copy", "write", "read"])
def test_nothing_to_do_still_orders_and_signals_q4(device, queue, semaphore, gate, operation):
    """Q4: a transfer of zero bytes waits, keeps its place and signals."""
    buffer, other = device.upload(pattern(8)), device.upload(pattern(8, 1))
    arguments = {
        "fill": (buffer, 1),
        "update": (buffer, b""),
        "copy": (other, buffer),
        "write": (buffer, np.zeros(0, np.uint8)),
        "read": (buffer, np.zeros(0, np.uint8)),
    }
    size = {"size": 0} if operation in {"fill", "copy"} else {}
    submission = getattr(queue, operation)(
        *arguments[operation], **size, wait=gate.at(1), signal=semaphore.at(1)
    )
    assert submission.state == "pending"
    gate.signal(1)
    semaphore.wait(1, LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(8))


BAD: dict[str, Any] = {
    "fill past the end": lambda to, b, o: to.fill(b, 1, offset=60, size=8),
    "fill from behind the end": lambda to, b, o: to.fill(b, 1, offset=65),
    "fill at a negative offset": lambda to, b, o: to.fill(b, 1, offset=-1),
    "fill of a negative size": lambda to, b, o: to.fill(b, 1, size=-4),
    "fill of three bytes": lambda to, b, o: to.fill(b, b"123"),
    "fill of twelve bytes": lambda to, b, o: to.fill(b, b"123456789012"),
    "fill of 32 bytes": lambda to, b, o: to.fill(b, bytes(range(32))),
    "fill of eights over twelve bytes": lambda to, b, o: to.fill(b, b"12345678", size=12),
    "fill of eights at two": lambda to, b, o: to.fill(b, b"12345678", offset=2, size=8),
    "fill with no bytes": lambda to, b, o: to.fill(b, b""),
    "fill that does not fit the type": lambda to, b, o: to.fill(b, 256),
    "fill of pairs at an odd offset": lambda to, b, o: to.fill(b, b"12", offset=1, size=2),
    "fill of fours over six bytes": lambda to, b, o: to.fill(b, b"1234", size=6),
    "fill of a number and a half": lambda to, b, o: to.fill(words(b), 1, size=6),
    "fill of a number at two": lambda to, b, o: to.fill(words(b), 1, offset=2, size=4),
    "update past the end": lambda to, b, o: to.update(b, bytes(65)),
    "update past the end from an offset": lambda to, b, o: to.update(b, bytes(4), offset=61),
    "copy past the source's end": lambda to, b, o: to.copy(b, o, source_offset=60, size=8),
    "copy past the target's end": lambda to, b, o: to.copy(b, o, target_offset=1),
    "copy one byte further": lambda to, b, o: to.copy(b, b, target_offset=1, size=63),
    "copy that overlaps": lambda to, b, o: to.copy(b, b, target_offset=16, size=32),
}
MISTYPED: dict[str, Any] = {
    "fill with text": lambda to, b, o: to.fill(b, "text"),
    "fill of no buffer": lambda to, b, o: to.fill(np.zeros(4), 1),
    "fill at a broken offset": lambda to, b, o: to.fill(b, 1, offset=0.5),
    "fill of bytes with a float": lambda to, b, o: to.fill(b, 0.5),
    "fill of words with a complex": lambda to, b, o: to.fill(words(b), 1j),
    "update with a number": lambda to, b, o: to.update(b, 7),
    "update with objects": lambda to, b, o: to.update(b, np.array([None])),
    "update from a buffer": lambda to, b, o: to.update(b, o),
    "copy from an array": lambda to, b, o: to.copy(np.zeros(4), b),
}
BAD_IN_A_QUEUE: dict[str, Any] = {
    "write past the end": lambda q, b: q.write(b, np.zeros(65, np.uint8)),
    "write of scattered memory": lambda q, b: q.write(b, np.zeros((8, 8), np.uint8)[:, :2]),
    "read past the end": lambda q, b: q.read(b, np.zeros(65, np.uint8)),
    "read into a read-only array": lambda q, b: q.read(b, np.frombuffer(b"12", np.uint8)),
}
MISTYPED_IN_A_QUEUE: dict[str, Any] = {
    "write with None": lambda q, b: q.write(b, None),
    "read into a list": lambda q, b: q.read(b, [0] * 4),
    "call of no function": lambda q, b: q.call(7),
    "execution of no recording": lambda q, b: q.execute(b),
}


def words(buffer: Any) -> Any:  # noqa: ANN401 - a buffer, or a slot
    """Return the 64 bytes as integers."""
    return buffer.subspan(0, 64, dtype="<u4")


@pytest.mark.parametrize("what", [*BAD, *MISTYPED])
def test_bad_commands_are_refused_q4(device, way, what):
    """Q4, C1: a range, a pattern or a type that is wrong raises; what is around it goes on."""
    buffer, other = device.upload(pattern(64)), device.upload(pattern(64, 1))
    kind = InvalidArgumentError if what in BAD else ArgumentTypeError

    def commands(to, buffer, other):
        to.copy(buffer, other, size=32)
        with pytest.raises(kind) as caught:
            {**BAD, **MISTYPED}[what](to, buffer, other)
        assert str(caught.value)
        assert not isinstance(to, hal.CommandBuffer) or len(to) == 1
        to.fill(other, 9, offset=32)

    way.run(commands, buffer, other)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))
    assert other.numpy(timeout=LIMIT).tobytes() == pattern(32).tobytes() + b"\t" * 32


@pytest.mark.parametrize("what", [*BAD_IN_A_QUEUE, *MISTYPED_IN_A_QUEUE])
def test_bad_operations_are_refused_q4(device, queue, what):
    """Q4: what only queues do, too, raises and is not submitted if it is wrong."""
    buffer = device.upload(pattern(64))
    kind = InvalidArgumentError if what in BAD_IN_A_QUEUE else ArgumentTypeError
    with pytest.raises(kind) as caught:
        {**BAD_IN_A_QUEUE, **MISTYPED_IN_A_QUEUE}[what](queue, buffer)
    assert str(caught.value)
    queue.wait_idle(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))


@pytest.mark.parametrize("operation", ["fill", "update", "read", "write"])
def test_buffers_of_another_device_are_refused_q4(second_device, queue, operation):
    """Q4: a queue refuses another device's buffer in all but copies (see devices/test_peers)."""
    foreign = second_device.upload(pattern(64))
    arguments = {
        "fill": (foreign, 1),
        "update": (foreign, bytes(4)),
        "read": (foreign, np.zeros(4, np.uint8)),
        "write": (foreign, np.zeros(4, np.uint8)),
    }
    with pytest.raises(InvalidArgumentError):
        getattr(queue, operation)(*arguments[operation])
    assert np.array_equal(foreign.numpy(timeout=LIMIT), pattern(64))
