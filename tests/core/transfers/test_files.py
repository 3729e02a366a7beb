"""Files as the host side of write and read (Q4): bytes, memory, order.

What the bytes must be is said by plain Python file objects and bytearrays.
"""

import errno
import os
import random
import stat
import tracemalloc

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads
from file_harness import cause_of, failure_of, random_bytes
from native_probe import Probe

import hal
from hal._transfers import files
from hal.errors import ClosedError, InvalidArgumentError
from hal.native import MemoryType

MEMORY = ["device", "host", "managed"]


# The bytes


def test_real_chunks_and_bounded_memory_q4(device, tmp_path):
    """More than two chunks, there and back; the file is never in memory as a whole."""
    size = 2 * files.CHUNK + 12345
    content = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    content.tofile(tmp_path / "in")
    buffer = device.allocate(size)
    tracemalloc.start()
    try:
        device.queue.write(buffer, hal.File(tmp_path / "in")).wait(LIMIT)
        device.queue.read(buffer, hal.File(tmp_path / "out")).wait(LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert np.array_equal(np.fromfile(tmp_path / "out", np.uint8), content)


def test_without_a_size_it_is_the_buffers_rest_q4(device, tmp_path):
    (tmp_path / "in").write_bytes(bytes(range(100)))
    buffer = device.upload(np.zeros(32, np.uint8))
    part = buffer.subspan(8, 16)
    device.queue.write(part, hal.File(tmp_path / "in", offset=50), offset=4).wait(LIMIT)
    assert buffer.numpy().tobytes() == b"\0" * 12 + bytes(range(50, 62)) + b"\0" * 8
    device.queue.read(part, hal.File(tmp_path / "out"), offset=4).wait(LIMIT)
    assert (tmp_path / "out").read_bytes() == bytes(range(50, 62))


def test_the_system_may_move_less_than_asked_q4(device, tmp_path, monkeypatch):
    """Every call of the system moves one to three bytes."""
    counts = random.Random(3)
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, at: preadv(fd, [views[0][: counts.randint(1, 3)]], at)
    )
    monkeypatch.setattr(
        os, "pwritev", lambda fd, views, at: pwritev(fd, [views[0][: counts.randint(1, 3)]], at)
    )
    content = random_bytes(500)
    (tmp_path / "in").write_bytes(content)
    buffer = device.allocate(500)
    device.queue.write(buffer, hal.File(tmp_path / "in"))
    device.queue.read(buffer, hal.File(tmp_path / "out")).wait(LIMIT)
    assert (tmp_path / "out").read_bytes() == content


def test_an_existing_file_keeps_what_it_is_q4(device, tmp_path):
    """It is not truncated or replaced: it is the same file, with its mode; links are followed."""
    path, link = tmp_path / "data", tmp_path / "link"
    path.write_bytes(b"x" * 100)
    path.chmod(0o640)
    link.symlink_to(path)
    before = path.stat()
    buffer = device.upload(np.full(10, ord("y"), np.uint8))
    device.queue.read(buffer, hal.File(link, offset=20)).wait(LIMIT)
    after = path.stat()
    assert (before.st_ino, before.st_mode, before.st_size) == (
        after.st_ino,
        after.st_mode,
        after.st_size,
    )
    assert path.read_bytes() == b"x" * 20 + b"y" * 10 + b"x" * 70


def test_a_new_file_has_the_mode_that_the_umask_lets_q4(device, tmp_path):
    buffer = device.upload(np.zeros(4, np.uint8))
    old = os.umask(0o027)
    try:
        device.queue.read(buffer, hal.File(tmp_path / "new")).wait(LIMIT)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_files_without_a_size_of_their_own_q4(device):
    """The system makes up their contents as they are read: a device, and a file of size 0."""
    buffer = device.upload(np.ones(64, np.uint8))
    device.queue.write(buffer, hal.File("/dev/zero")).wait(LIMIT)
    assert not buffer.numpy().any()
    with open("/proc/self/status", "rb") as file:
        expected = file.read(5)
    device.queue.write(buffer, hal.File("/proc/self/status", size=5)).wait(LIMIT)
    assert buffer.numpy().tobytes()[:5] == expected


def test_zero_bytes_touch_no_file_and_still_order_c4(device, tmp_path):
    """C4: nothing is opened or made; waits and signals hold."""
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    buffer, empty = device.allocate(8), device.allocate(0)
    operations = [
        device.queue.read(buffer, hal.File(tmp_path / "a"), offset=8, wait=gate.at(1)),
        device.queue.read(empty, hal.File(tmp_path / "b")),
        device.queue.write(buffer, hal.File(tmp_path / "c", size=0)),
        device.queue.write(empty, hal.File(tmp_path, offset=7), signal=done.at(1)),
    ]
    assert [each.state for each in operations] == ["pending"] * 4
    gate.signal(1)
    done.wait(1, LIMIT)
    assert [each.state for each in operations] == ["done"] * 4
    assert list(tmp_path.iterdir()) == []


# Memory that the host does not see


@pytest.fixture
def open_discrete(open_probe, monkeypatch):
    """Open probes whose device memory the host cannot see, as on most accelerators."""
    host_pointer = Probe.host_pointer

    def hide(self, address, memory):
        visible = host_pointer(self, address, memory)
        return None if memory is MemoryType.DEVICE else visible

    monkeypatch.setattr(Probe, "host_pointer", hide)
    return open_probe


def test_chunked_transfers_of_many_threads_m1(open_discrete, tmp_path):
    """M1: none waits for another for ever, none gets another's bytes."""
    device, probe = open_discrete()
    size = 3 << 20

    def work(index):
        queue, content = device.create_queue(), random_bytes(size, index)
        (tmp_path / f"in-{index}").write_bytes(content)
        buffer = device.allocate(size)
        for _ in range(3):
            queue.write(buffer, hal.File(tmp_path / f"in-{index}"))
            queue.read(buffer, hal.File(tmp_path / f"out-{index}"))
        queue.barrier().wait(LIMIT)
        return (tmp_path / f"out-{index}").read_bytes() == content

    assert collect_in_threads([lambda index=index: work(index) for index in range(6)]) == [True] * 6
    assert device.close(LIMIT) == ()
    assert probe.live() == {}


@pytest.mark.parametrize("what", ["write", "read"])
@pytest.mark.parametrize("name", ["native", "system"])
def test_a_chunked_transfer_that_breaks_off_m1(open_discrete, tmp_path, monkeypatch, what, name):
    """Part-way, by the device or by the file: it fails, and the next one works."""
    device, probe = open_discrete()
    size = 9 << 20
    path = tmp_path / "data"
    path.write_bytes(bytes(size))
    buffer = device.upload(np.zeros(size, np.uint8))
    submit, call = getattr(device.queue, what), "preadv" if what == "write" else "pwritev"
    if name == "native":
        copy = "copy_from_host" if what == "write" else "copy_to_host"
        probe.fail_call(2, names=(copy,))
        assert "injected" in str(failure_of(submit(buffer, hal.File(path))))
    else:
        real = getattr(os, call)

        def fail(fd, views, at):
            if at > size // 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd, views, at)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            error = failure_of(submit(buffer, hal.File(path)))
        assert cause_of(error).errno == errno.EIO
    assert not device.lost
    for _ in range(3):
        submit(buffer, hal.File(path)).wait(LIMIT)


def test_memory_without_an_address_yet_m3(open_probe, tmp_path):
    """M3: a transfer into memory of a pending alloca runs after the alloca's issue."""
    device, _ = open_probe()
    (tmp_path / "in").write_bytes(b"12345678")
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(8, wait=gate.at(1))
    other = device.create_queue(ordered=False)
    with pytest.raises(InvalidArgumentError):
        _ = buffer.address
    written = other.write(buffer, hal.File(tmp_path / "in"), wait=buffer.allocation)
    out = other.read(buffer, hal.File(tmp_path / "out"), wait=written)
    early = other.read(buffer, hal.File(tmp_path / "early"))
    assert "alloca" in str(failure_of(early))
    assert not (tmp_path / "early").exists()
    gate.signal(1)
    out.wait(LIMIT)
    assert (tmp_path / "out").read_bytes() == b"12345678"
    device.queue.dealloca(buffer)
    with pytest.raises(ClosedError):
        other.read(buffer, hal.File(tmp_path / "late"))


def test_a_buffers_rights_hold_for_files_m1(device, tmp_path):
    """M1: usage and access are checked during the call, as for arrays."""
    usage = hal.BufferUsage
    for settings, what in (
        ({"access": "read"}, "write"),
        ({"access": "write"}, "read"),
        ({"usage": usage.ALL & ~usage.TRANSFER_TARGET}, "write"),
        ({"usage": usage.ALL & ~usage.TRANSFER_SOURCE}, "read"),
    ):
        buffer = device.allocate(8, **settings)
        with pytest.raises(InvalidArgumentError, match=what):
            getattr(device.queue, what)(buffer, hal.File(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


# Order


@pytest.mark.parametrize("kind", ["same device", "another device", "another domain"])
def test_a_file_operation_waits_until_it_is_reached(device, open_probe, latch, tmp_path, kind):
    """M1: recorded is not enough, since no stream runs it; and its signal means that it is done."""
    other, probe = open_probe(domain=object() if kind == "another domain" else None)
    here = other if kind == "same device" else device
    source, target = other.upload(np.zeros(8, np.uint8)), here.upload(np.ones(8, np.uint8))
    (tmp_path / "in").write_bytes(b"12345678")
    done = hal.create_semaphore()
    probe.hold(latch)
    held = other.queues.upload.fill(source, 3)
    queue = here.create_queue(ordered=False)
    out = queue.read(target, hal.File(tmp_path / "out"), wait=held)
    back = queue.write(target, hal.File(tmp_path / "in"), wait=out, signal=done.at(1))
    copied = here.queues.download.fill(target, 9, size=4, wait=done.at(1))
    queue.call(list).wait(LIMIT)
    assert (out.state, back.state, copied.state) == ("pending", "pending", "pending")
    assert not (tmp_path / "out").exists()
    latch.open()
    assert target.numpy(wait=copied).tobytes() == b"\x09" * 4 + b"5678"
    assert (tmp_path / "out").read_bytes() == b"\x01" * 8
