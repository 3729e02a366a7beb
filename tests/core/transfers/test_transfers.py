"""Fills and copies of every size and place, checked against numpy: M1, C1, Q4."""

import random

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal._transfers.transfers import CHUNK
from hal.errors import ArgumentTypeError

MIB, GIB = 1 << 20, 1 << 30

LENGTHS = sorted(
    {
        *range(70),
        *(power + offset for power in (128, 256, 4096, 65536) for offset in (-2, -1, 0, 1)),
        *random.Random(3).sample(range(70, 65537), 24),
    }
)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("offset", range(8))
def test_fills_m1(device, width, offset):
    """Every pattern width, offsets 0 to 7, lengths 0 to 64 Ki + 1: these bytes and no other."""
    room = 65536 + 64
    buffer, queue = device.allocate(room, memory="host"), device.queue
    expected = np.zeros(room, np.uint8)
    queue.fill(buffer, 0).wait(LIMIT)
    pattern = np.arange(0x12, 0x12 + 7 * width, 7, np.uint8)
    for step, length in enumerate(LENGTHS):
        value = bytes(pattern ^ (step % 256))
        if offset % min(width, 4) or length % width:
            with pytest.raises(hal.errors.InvalidArgumentError, match="multiples"):
                queue.fill(buffer, value, offset=offset, size=length)
            continue
        filled = queue.fill(buffer, value, offset=offset, size=length)
        expected[offset : offset + length] = np.tile(pattern ^ (step % 256), length // width)
        filled.wait(LIMIT)
        assert (buffer.map() == expected).all(), (width, offset, length)


@pytest.mark.parametrize("pageable", [True, False])
@pytest.mark.parametrize("size", [4095, 4096, 4097, 8192, 3 * 4096 + 1])
def test_large_ones_are_made_in_parts_m1(open_probe, monkeypatch, size, pageable):
    """M1: no native call has more than a chunk, and the parts make up the whole."""
    monkeypatch.setattr("hal._transfers.transfers.CHUNK", 4096)
    monkeypatch.setattr("hal._transfers.transfers.SMALL", 64)
    device, probe = open_probe(without=() if pageable else {"pageable_copies"})
    seen = []
    inner = probe.inner

    class Watched:
        def __getattr__(self, name):
            method = getattr(inner, name)
            if name == "fill":
                return lambda *call: (seen.append(call[3] * call[4]), method(*call))[1]
            if name.startswith("copy"):
                return lambda *call: (seen.append(call[3]), method(*call))[1]
            return method

    probe.inner = Watched()
    parts = -(-size // 4096)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    one, two = device.allocate(size), device.allocate(size)
    queue, out = device.queue, np.zeros(size, np.uint8)
    wide = size // 4 * 4
    for submit, least, total, expected in (
        (lambda: queue.write(one, data), parts if pageable else 1, size, data),
        (lambda: queue.copy(one, two), parts, size, data),
        (lambda: queue.fill(one, 7), parts, size, None),
        (lambda: queue.update(one, data), parts if pageable else 1, size, data),
        (lambda: queue.read(two, out), parts if pageable else 1, size, None),
        (lambda: queue.fill(two, b"abcd", size=wide), -(-wide // 4096), wide, None),
    ):
        seen.clear()
        submit().wait(LIMIT)
        assert len(seen) >= least
        assert not pageable or max(seen) <= 4096
        assert sum(seen) == total
        if expected is not None:
            assert (one.map() == expected).all()
    assert (out == data).all()
    assert bytes(two.map()[:wide]) == b"abcd" * (wide // 4)
    probe.inner = inner


def test_late_ones_are_made_in_parts_too_m3(open_probe, monkeypatch):
    monkeypatch.setattr("hal._transfers.transfers.CHUNK", 4096)
    device, probe = open_probe()
    gate, size = hal.create_semaphore(), 3 * 4096 + 8
    buffer, out = device.queue.alloca(size, wait=gate.at(1)), np.zeros(size, np.uint8)
    device.queue.fill(buffer, b"ab")
    read = device.queue.read(buffer, out)
    gate.signal(1)
    read.wait(LIMIT)
    assert bytes(out) == b"ab" * (size // 2)
    assert (probe.calls["fill"], probe.calls["copy_to_host"]) == (4, 4)


def free_memory():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)


ENOUGH = pytest.mark.skipif(free_memory() < 12 * GIB, reason="less than 12 GiB of memory are free")


@ENOUGH
def test_parts_of_more_than_four_gibibytes_m1(open_probe, monkeypatch):
    """M1: native calls of a chunk at the most, one behind the other; nothing is really moved."""
    device, probe = open_probe()
    size = 4 * GIB + 3
    one, two, host = device.allocate(size), device.allocate(size), np.empty(size, np.uint8)
    calls = []

    class Swallow:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            if name == "fill" or name.startswith("copy"):
                return lambda stream, *call: calls.append(call)
            return getattr(self.inner, name)

    probe.inner = Swallow(probe.inner)
    starts = [0, GIB, 2 * GIB, 3 * GIB, 4 * GIB]
    sizes = [GIB] * 4 + [3]
    queue = device.queue
    for submit, target, source in (
        (lambda: queue.copy(two, one), one.address, two.address),
        (lambda: queue.write(one, host), one.address, host.ctypes.data),
        (lambda: queue.read(one, host), host.ctypes.data, one.address),
    ):
        submit().wait(LIMIT)
        expected = [
            (target + start, source + start, n) for start, n in zip(starts, sizes, strict=True)
        ]
        assert calls == expected
        calls.clear()
    queue.fill(one, 7).wait(LIMIT)
    assert calls == [(one.address + start, 7, 1, n) for start, n in zip(starts, sizes, strict=True)]
    calls.clear()
    queue.fill(one, b"abcd", offset=4, size=4 * GIB - 4).wait(LIMIT)
    counts = [GIB // 4] * 3 + [GIB // 4 - 1]
    word = int.from_bytes(b"abcd", "little")
    assert calls == [
        (one.address + 4 + start, word, 4, n) for start, n in zip(starts, counts, strict=False)
    ]
    probe.inner = probe.inner.inner


@ENOUGH
def test_beyond_four_gibibytes_m1(device):
    """M1: a buffer of 4 GiB + 3 bytes: every operation reaches both of its ends."""
    size = 4 * GIB + 3
    buffer, queue = device.allocate(size, memory="host"), device.queue
    view, end, high = buffer.map(), np.arange(64, dtype=np.uint8), 4 * GIB - 61
    queue.fill(buffer, 0x5A, offset=high - 9, size=9).wait(LIMIT)
    queue.write(buffer, end, offset=high).wait(LIMIT)
    assert (view[high:] == end).all()
    assert (view[high - 9 : high] == 0x5A).all()
    queue.update(buffer, b"last", offset=size - 4).wait(LIMIT)
    assert bytes(view[-4:]) == b"last"
    queue.copy(buffer, buffer, source_offset=high, target_offset=3, size=64).wait(LIMIT)
    assert (view[3:67] == view[high:]).all()
    out = np.zeros(16, np.uint8)
    queue.read(buffer, out, offset=size - 16).wait(LIMIT)
    assert (out == view[-16:]).all()
    # More than a chunk at once, up to the boundary. Not everything: first touch is slow.
    length = CHUNK + 4096
    start = 4 * GIB - length
    queue.fill(buffer, b"\x01\x02\x03\x04", offset=start, size=length).wait(6 * LIMIT)
    assert bytes(view[-7:]) == b"\x01\x02\x03\x04" + b"ast"
    step = (1 << 14) + 1
    assert (view[start:-3:step] == 1 + np.arange(0, length, step) % 4).all()
    queue.copy(buffer, buffer, source_offset=size - MIB, size=MIB).wait(LIMIT)
    assert (view[:MIB] == view[-MIB:]).all()


@pytest.mark.parametrize("late", [False, True], ids=["there", "alloca"])
def test_fills_of_long_patterns_are_issued_in_parts_q1(small_device, late):
    """Q1, C1: a long pattern takes many native calls, of which a stream gets so many at a time."""
    queue, gate = small_device.queue, hal.create_semaphore()
    size = 3 * 4096 + 16
    if late:
        buffer = queue.alloca(size, dtype=np.complex128, wait=gate.at(1))
    else:
        buffer = small_device.allocate(size, dtype=np.complex128)
        queue.barrier(wait=gate.at(1))
    fills = [queue.fill(buffer, number + 0.1j) for number in range(20)]
    queue.fill(buffer, 0.3, offset=16, size=32)
    assert not fills[0].done
    gate.signal(1)
    expected = np.full(size // 16, 19 + 0.1j)
    expected[1:3] = 0.3
    assert (buffer.numpy(timeout=LIMIT) == expected).all()
    assert {fill.state for fill in fills} == {"done"}


def test_a_long_pattern_takes_few_native_calls_c1(open_probe):
    """C1: one element is filled in words of 4 bytes, then copies double the filled part."""
    device, probe = open_probe()
    buffer = device.allocate(1 << 20, dtype=np.float64)
    device.queue.fill(buffer, 0.1).wait(LIMIT)
    assert probe.calls["fill"] == 2
    assert probe.calls["copy"] == 17
    device.queue.fill(buffer, 0.0).wait(LIMIT)  # repeats itself: a native fill
    assert probe.calls["fill"] == 3
    assert probe.calls["copy"] == 17


def test_memory_without_bytes_is_written_whatever_its_axes_q4(device):
    """Q4: a no-op that still orders; views of no rows were refused."""
    buffer = device.allocate(4)
    for empty in (b"", memoryview(np.zeros((0, 3))), memoryview(np.zeros((3, 0), "f4"))):
        for submit in (device.queue.write, device.queue.update):
            submit(buffer, empty).wait(LIMIT)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float32, np.float64(3)),  # the mean of an array, say
        (np.int32, np.int64(3)),
        (np.int32, np.float32(3)),
        ("bfloat16", np.float32(3)),
    ],
)
def test_a_numpy_scalar_is_an_element_of_the_filled_buffer_or_refused_c1(device, dtype, value):
    """C1: its bytes would be other numbers there."""
    buffer = device.allocate(16, dtype=dtype)
    for fill in (
        lambda: device.queue.fill(buffer, value),
        lambda: device.record().fill(buffer, value),
        lambda: device.full(4, value, dtype),
    ):
        with pytest.raises(ArgumentTypeError, match="the value is of"):
            fill()
    device.queue.fill(buffer.view(np.uint8), value)  # the bytes are meant
    assert buffer.numpy().tobytes() == value.tobytes() * (16 // value.itemsize)
