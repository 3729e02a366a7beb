"""What goes wrong with files, what is refused of them, and what close does (Q4, Q6)."""

import errno
import os
import threading

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads, wait_until
from file_harness import cause_of, failure_of

import hal
from hal.errors import CancelledError, DeviceLostError, InvalidArgumentError


@pytest.mark.parametrize("name", ["EACCES", "EROFS", "EMFILE"])
@pytest.mark.parametrize("what", ["write", "read"])
def test_a_file_that_may_not_be_opened_q4(device, tmp_path, monkeypatch, what, name):
    path = tmp_path / "data"
    path.write_bytes(b"12345678")
    number = getattr(errno, name)
    real = os.open

    def refuse(target, *arguments, **options):
        if target == str(path):
            raise OSError(number, os.strerror(number), target)
        return real(target, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    buffer = device.allocate(8)
    error = failure_of(getattr(device.queue, what)(buffer, hal.File(path)))
    assert name in str(error)
    assert cause_of(error).errno == number


@pytest.mark.parametrize("there", [0, 1, 9])
@pytest.mark.parametrize("offset", [0, 1, 10, 1000])
def test_a_short_file_fails_before_anything_is_written_q4(device, tmp_path, there, offset):
    path = tmp_path / "short"
    path.write_bytes(b"z" * there)
    buffer, done = device.upload(np.arange(16, dtype=np.uint8)), hal.create_semaphore()
    file = hal.File(path, offset=offset, size=10)
    error = failure_of(device.queue.write(buffer, file, signal=done.at(1)), done.at(1))
    for part in (str(path), "10 bytes", f"offset {offset}", "0 were moved"):
        assert part in str(error)
    if there:
        assert f"{there} bytes" in str(error)
    assert buffer.numpy().tolist() == list(range(16))


def test_a_file_that_is_cut_off_meanwhile_q4(device, tmp_path, small_chunks, monkeypatch):
    """It ends while it is read: the operation fails and says how far it came."""
    path = tmp_path / "data"
    path.write_bytes(b"z" * 100)
    preadv = os.preadv

    def cut(fd, views, at):
        if at == 21:
            os.truncate(path, 15)
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "preadv", cut)
    buffer = device.upload(np.zeros(100, np.uint8))
    error = failure_of(device.queue.write(buffer, hal.File(path)))
    assert "21 were moved" in str(error)
    assert "ends at 21" in str(error)
    assert buffer.numpy().tobytes() == b"z" * 21 + b"\0" * 79


@pytest.mark.parametrize("what", ["write", "read"])
def test_an_error_in_the_middle_q4(device, tmp_path, small_chunks, monkeypatch, what):
    """A disk that breaks or fills up part-way; the file is closed all the same."""
    path = tmp_path / "data"
    path.write_bytes(b"z" * 100)
    name = "preadv" if what == "write" else "pwritev"
    real, opened, closed = getattr(os, name), [], []

    def fail(fd, views, at):
        opened.append(fd)
        if at >= 14:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, views, at)

    close = os.close
    monkeypatch.setattr(os, name, fail)
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
    error = failure_of(getattr(device.queue, what)(device.allocate(100), hal.File(path)))
    assert "14 were moved" in str(error)
    assert "EIO" in str(error)
    assert set(opened) <= set(closed)


def test_a_write_that_moves_nothing_does_not_loop_q4(device, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    error = failure_of(device.queue.read(device.allocate(8), hal.File(tmp_path / "out")))
    assert "ENOSPC" in str(error)


def test_a_file_system_that_complains_as_it_is_closed_q4(device, tmp_path, monkeypatch):
    """Some tell only then that a write has failed; and a first error is not hidden by it."""
    close = os.close

    def complain(fd):
        close(fd)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", complain)
    buffer = device.allocate(8)
    error = failure_of(device.queue.read(buffer, hal.File(tmp_path / "out")))
    assert "EDQUOT" in str(error)
    error = failure_of(device.queue.read(buffer, hal.File("/dev/full")))
    assert "ENOSPC" in str(error)
    monkeypatch.undo()


def test_no_file_stays_open(device, tmp_path):
    (tmp_path / "in").write_bytes(b"x" * 8)
    buffer = device.allocate(16)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        device.queue.write(buffer, hal.File(tmp_path / "in", size=8))
        device.queue.write(buffer, hal.File(tmp_path / "in"))  # too short
        device.queue.write(buffer, hal.File(tmp_path))
        device.queue.read(buffer, hal.File(tmp_path / "out"))
        device.queue.read(buffer, hal.File("/dev/full"))
    device.wait_idle(LIMIT)
    # Other threads of hal's open a file for a moment, to see whether a process still runs.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


# What is refused during the call


def test_a_file_says_what_it_is(tmp_path, monkeypatch):
    """Text, bytes and path objects; a relative path is of the directory where it was made."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    files = [hal.File(path, offset=1, size=2) for path in ("a", b"a", os.fsencode("a"))]
    monkeypatch.chdir(tmp_path)
    for file in files:
        assert (file.path, file.offset, file.size) == (str(tmp_path / "inner" / "a"), 1, 2)
        assert repr(file) == f"File({file.path!r}, offset=1, size=2)"
    assert hal.File(tmp_path / "b").path == str(tmp_path / "b")
    assert hal.File("b").size is None
    with pytest.raises(AttributeError):
        files[0].offset = 5
    (tmp_path / "inner" / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "inner" / "gone")
    (tmp_path / "inner" / "gone").rmdir()
    assert hal.File("/b").path == "/b"
    with pytest.raises(InvalidArgumentError, match=r"File: 'b' is relative, .*No such file"):
        hal.File("b")


# Close, and lost devices


@pytest.fixture
def slow_disk(monkeypatch, gate):
    """Hold every read of a file up until the gate is set; returns an event: one has begun."""
    begun, preadv = threading.Event(), os.preadv

    def wait(fd, views, at):
        begun.set()
        assert gate.wait(LIMIT)
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "preadv", wait)
    return begun


def test_close_waits_for_a_running_transfer_q6(open_probe, tmp_path, slow_disk, gate):
    device, _ = open_probe()
    (tmp_path / "in").write_bytes(b"12345678")
    running = device.queue.write(device.allocate(8), hal.File(tmp_path / "in"))
    pending = device.queue.barrier()
    assert slow_disk.wait(LIMIT)

    def release():
        with pytest.raises(CancelledError):
            pending.wait(LIMIT)
        gate.set()

    told, _ = collect_in_threads([lambda: device.close(LIMIT), release])
    assert told == ()
    assert running.state == "done"


def test_close_abandons_a_transfer_that_never_ends_q6(open_probe, tmp_path, slow_disk, gate):
    """Q6: close names it, and does not free memory that a system call still fills."""
    device, probe = open_probe()
    (tmp_path / "in").write_bytes(b"12345678")
    running = device.queue.write(device.allocate(8), hal.File(tmp_path / "in"))
    assert slow_disk.wait(LIMIT)
    told = device.close(0.1)
    assert any(f"write on {device.queue.name}" in line for line in told)
    with pytest.raises(DeviceLostError):
        running.wait(LIMIT)
    assert probe.live()["allocation"] == 1
    gate.set()


def test_a_lost_device_fails_a_running_transfer_s5(open_probe, tmp_path, slow_disk, gate):
    device, probe = open_probe()
    (tmp_path / "in").write_bytes(b"12345678")
    buffer = device.allocate(8)
    running = device.queue.write(buffer, hal.File(tmp_path / "in"))
    assert slow_disk.wait(LIMIT)
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queues.upload.fill(device.allocate(8), 1)
    with pytest.raises(DeviceLostError, match="gone"):
        running.wait(LIMIT)
    gate.set()
    device.wait_idle(LIMIT)
