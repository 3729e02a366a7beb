"""Imported host memory, and views that outlive what they show (M1, M2)."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, UnimplementedError
from hal_conformance.suite.support import LIMIT, pattern


def test_import_is_there_or_refused_m1(device):
    """M1: without the feature ``host_import`` an import raises, and says what to do."""
    importable = device.query_memory(memory="host", size=4096).importable
    assert importable == ("host_import" in device.features)
    if importable:
        assert device.import_array(pattern(4096)).size == 4096
        return
    with pytest.raises(UnimplementedError, match="upload"):
        device.import_array(pattern(4096))


@pytest.mark.feature("host_import")
def test_an_import_shares_the_arrays_memory_m1(device, queue):
    """M1: the device writes into the array, and reads what the host has put there."""
    array = pattern(4096).reshape(16, 256)
    buffer = device.import_array(array)
    assert (buffer.size, buffer.dtype, buffer.shape) == (4096, array.dtype, (16, 256))
    assert buffer.memory == "host"
    target = device.allocate(4096)
    queue.copy(buffer, target).wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(4096))
    queue.fill(buffer, 7).wait(LIMIT)
    assert (array == 7).all()
    array[:] = 9
    queue.copy(buffer, target).wait(LIMIT)
    assert (target.numpy(timeout=LIMIT) == 9).all()


@pytest.mark.feature("host_import")
def test_an_import_ends_and_begins_again_m1(device, queue):
    """M1: without `release`, an array can be imported again once its buffer is gone."""
    array = pattern(4096)
    for value in range(20):
        buffer = device.import_array(array)
        queue.fill(buffer, value).wait(LIMIT)
        assert (array == value).all()
        buffer.close()
        del buffer
        gc.collect()


@pytest.mark.feature("host_import")
def test_release_is_called_once_at_the_end_m1(device, queue, gate):
    """M1: not while a buffer, a part, a view or unended work is there; then once."""
    array, calls, released = pattern(4096), [], threading.Event()

    def release():
        calls.append(threading.get_ident())
        released.set()

    buffer = device.import_array(array, release=release)
    part, view = buffer.subspan(0, 64), buffer.map()
    ran = queue.fill(part, 5, wait=gate.at(1))
    buffer.close()
    del buffer
    gc.collect()
    assert not calls
    del part, view
    gc.collect()
    device.trim(1 << 40)
    assert not calls
    gate.signal(1)
    ran.wait(LIMIT)
    del ran
    for _ in range(int(LIMIT * 10)):
        device.trim(1 << 40)  # M1: retires what has ended
        if released.wait(0.1):
            break
    assert len(calls) == 1
    assert calls != [threading.get_ident()]
    assert (array[:64] == 5).all()
    again = device.import_array(array)
    queue.fill(again, 6).wait(LIMIT)
    assert len(calls) == 1


@pytest.mark.feature("host_import")
def test_an_import_keeps_its_array_m1(device, queue):
    """M1: the array lives as long as the buffer, and no longer."""
    array = pattern(4096)
    gone = weakref.ref(array)
    buffer = device.import_array(array)
    del array
    gc.collect()
    assert gone() is not None
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(4096))
    buffer.close()
    del buffer
    for _ in range(1000):
        gc.collect()
        device.trim(1 << 40)
        if gone() is None:
            break
        queue.barrier().wait(LIMIT)
    assert gone() is None


@pytest.mark.feature("host_import")
def test_a_read_only_array_m1(device, queue):
    """M1: a read-only array gives a buffer of access "read"."""
    array = pattern(4096)
    array.flags.writeable = False
    buffer = device.import_array(array)
    assert buffer.access == "read"
    for write in (lambda: queue.fill(buffer, 1), buffer.map):
        with pytest.raises(InvalidArgumentError):
            write()
    assert not buffer.map("read").flags.writeable
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(4096))


@pytest.mark.feature("host_import")
def test_closing_the_device_releases_m1(open_device):
    """M1: what is still imported is released when the device is closed."""
    device, released = open_device(), threading.Event()
    buffer = device.import_array(pattern(4096), release=released.set)
    device.close(LIMIT)
    assert released.wait(LIMIT)
    assert buffer.size == 4096


BAD: dict[str, Any] = {
    "a list": (ArgumentTypeError, "list", [1, 2, 3]),
    "bytes": (ArgumentTypeError, "bytes", b"123"),
    "gaps": (InvalidArgumentError, "C-contiguous", np.zeros((8, 8))[:, ::2]),
    "turned axes": (InvalidArgumentError, "C-contiguous", np.zeros((8, 4)).T),
    "no bytes": (InvalidArgumentError, "one byte", np.zeros(0)),
    "Python objects": (ArgumentTypeError, "objects", np.array([None, None])),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_imported_is_refused_m1(device, what):
    """M1: what is no contiguous array raises, on every device."""
    kind, match, array = BAD[what]
    with pytest.raises(kind, match=match):
        device.import_array(array)
    with pytest.raises(ArgumentTypeError, match="release"):
        device.import_array(np.zeros(4), release=7)


# Views


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_a_view_outlives_its_device_m2(open_device, memory):
    """M2: a view never dangles: not after its device was closed, either."""
    device = open_device()
    buffer = device.allocate(4096, memory=memory)
    view = buffer.map()
    view[:] = pattern(4096)
    device.close(LIMIT)
    assert np.array_equal(view, pattern(4096))
    view[:] = 1
    with pytest.raises(ClosedError):
        buffer.map()


def test_two_views_are_one_memory_m2(device, queue):
    """M2: views of a buffer and of its parts show each other's writes, and the device's."""
    buffer = device.allocate(64, memory="host")
    queue.fill(buffer, 0).wait(LIMIT)
    whole, part = buffer.map(), buffer.subspan(16, 16).map()
    part[:] = 3
    assert whole[16:32].tolist() == [3] * 16
    queue.fill(buffer, 4, offset=16, size=8).wait(LIMIT)
    assert part.tolist() == [4] * 8 + [3] * 8
