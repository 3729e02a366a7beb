"""Every operation of a queue does what it says (Q4)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import InvalidArgumentError


def test_fill_update_copy_read_write_q4(device):
    queue = device.queue
    source, target = device.allocate(16), device.allocate(16)
    out = np.zeros(16, np.uint8)
    queue.fill(source, b"\x01")
    queue.fill(source, b"\x02\x03", offset=4, size=4)
    queue.fill(source, np.uint32(0x07060504), offset=8, size=4)
    queue.update(source, b"\x09\x0a", offset=13)
    queue.write(target, np.full(16, 0xEE, np.uint8))
    queue.copy(source, target, source_offset=3, target_offset=1, size=12)
    queue.read(target, out).wait(LIMIT)
    expected = bytes([1, 1, 1, 1, 2, 3, 2, 3, 4, 5, 6, 7, 1, 9, 10, 1])
    assert source.numpy().tobytes() == expected
    assert out.tobytes() == b"\xee" + expected[3:15] + b"\xee\xee\xee"


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 255, 256, 257, 65537])
def test_fill_patterns_lengths_and_offsets_q4(device, width, length):
    """Every pattern, offset and length is right to the byte, or refused."""
    size = 65537 + 16
    pattern = bytes(range(1, width + 1))
    buffer = device.upload(np.full(size, 0xAA, np.uint8))
    for offset in range(8):
        if offset % width or length % width:
            with pytest.raises(InvalidArgumentError, match=str(width)):
                device.queue.fill(buffer, pattern, offset=offset, size=length)
            continue
        device.queue.fill(buffer, b"\xaa")
        done = device.queue.fill(buffer, pattern, offset=offset, size=length)
        result = buffer.numpy(wait=done, timeout=LIMIT).tobytes()
        expected = b"\xaa" * offset + pattern * (length // width)
        assert result == expected.ljust(size, b"\xaa")


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


def test_zero_sizes_are_no_ops_that_order_and_signal(device):
    """C4: nothing is written, and waits and signals still hold."""
    buffer = device.upload(np.arange(16, dtype=np.uint8))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    empty = device.allocate(0)
    operations = [
        device.queue.fill(buffer, b"\x01\x02\x03\x04", size=0, wait=gate.at(1)),
        device.queue.fill(empty, 1),
        device.queue.update(buffer, b"", offset=16),
        device.queue.copy(buffer, empty, size=0),
        device.queue.copy(empty, buffer),
        device.queue.write(buffer, np.zeros(0, np.uint8), offset=7),
        device.queue.read(buffer, np.zeros(0, np.float64), offset=3, signal=done.at(1)),
    ]
    assert [operation.state for operation in operations] == ["pending"] * 7
    gate.signal(1)
    done.wait(1, LIMIT)
    assert [operation.state for operation in operations] == ["done"] * 7
    assert buffer.numpy().tolist() == list(range(16))


def test_update_captures_its_bytes_q4(device):
    """Q4: what the array holds after the call changes nothing."""
    buffer = device.allocate(8)
    gate = hal.create_semaphore()
    array = np.arange(8, dtype=np.uint8)
    raw = bytearray(b"abcd")
    device.queue.update(buffer, array, wait=gate.at(1))
    last = device.queue.update(buffer, memoryview(raw), offset=4)
    array[:] = 0xFF
    raw[:] = b"zzzz"
    gate.signal(1)
    assert buffer.numpy(wait=last).tobytes() == b"\x00\x01\x02\x03abcd"


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


def test_call_passes_arguments_and_runs_elsewhere_q4(device):
    """Q4: a host function runs on another thread, with its arguments, once."""
    calls = []
    device.queue.call(
        lambda *arguments: calls.append((arguments, threading.get_ident())), 1, "a"
    ).wait(LIMIT)
    assert [arguments for arguments, _ in calls] == [(1, "a")]
    assert calls[0][1] != threading.get_ident()


def test_calls_may_submit_and_wait(device):
    """Q4: a host function may submit to queues and wait for other ones."""
    buffer = device.upload(np.zeros(4, np.uint8))

    def work():
        device.queues.upload.fill(buffer, 4).wait(LIMIT)
        return device.queue.fill(buffer, 5, size=2)

    inner = []
    device.queue.call(lambda: inner.append(work())).wait(LIMIT)
    inner[0].wait(LIMIT)
    assert buffer.numpy().tolist() == [5, 5, 4, 4]


def test_many_blocking_calls_run_side_by_side(device):
    """Q4: calls of different queues that wait for each other must not share one thread."""
    count = 12
    together = threading.Barrier(count, timeout=LIMIT)
    queues = [device.create_queue() for _ in range(count)]
    calls = [queue.call(together.wait) for queue in queues]
    hal.wait_all(calls, LIMIT)


def test_barrier_and_flush_q4(device):
    semaphore = hal.create_semaphore()
    barrier = device.queue.barrier(wait=semaphore.at(1))
    device.queue.flush()
    assert barrier.state == "pending"
    semaphore.signal(1)
    device.queue.flush()
    barrier.wait(LIMIT)


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
