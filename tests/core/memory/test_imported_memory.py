"""Host memory that buffers use in place (M1)."""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, wait_until
from interrupts import Interrupts

import hal
from hal._transfers.transfers import SMALL
from hal.errors import DeviceLostError, InvalidArgumentError, OperationError, UnimplementedError


class Tracked(np.ndarray):
    pass


def test_close_lets_go_of_what_the_dispatcher_was_to_let_go_of_m1(open_probe):
    """M1: close releases imported arrays although earlier callbacks are slow."""
    device, _ = open_probe()
    array = np.zeros(4096, np.uint8).view(Tracked)
    reference, busy, gate = weakref.ref(array), threading.Event(), threading.Event()
    semaphore = hal.create_semaphore()
    semaphore.on_reached(1, lambda _: (busy.set(), gate.wait(LIMIT)))
    semaphore.signal(1)
    assert busy.wait(LIMIT)
    try:
        device.import_array(array).close()
        del array
        wait_until(lambda: not device._heap.books.imports)
        assert reference() is not None
        device.close(LIMIT)
        assert reference() is None
    finally:
        gate.set()


def test_fills_of_an_import_at_an_odd_address_m1(device):
    """M1: a wide pattern needs an address that is a multiple of it, wherever the array begins."""
    array = np.zeros(64, np.uint8)
    odd = array[1 - array.ctypes.data % 4 :][:32]
    buffer = device.import_array(odd)
    with pytest.raises(InvalidArgumentError, match="multiples of 4"):
        device.queue.fill(buffer, b"abcd")
    with pytest.raises(InvalidArgumentError, match="multiples of 2"):
        device.queue.fill(buffer, b"ab", offset=4, size=8)
    device.queue.fill(buffer, 7).wait(LIMIT)
    assert (odd == 7).all()


def test_an_import_that_fails_releases_nothing_m1(open_probe):
    device, probe = open_probe()
    array, told = np.zeros(64, np.uint8), []
    for error in (OperationError, DeviceLostError):
        probe.fail_call(1, error("injected"), ("import_host",))
        if error is OperationError:  # after which it tries once more
            probe.fail_call(2, error("injected again"), ("import_host",))
        with pytest.raises(error, match="injected"):
            device.import_array(array, release=lambda: told.append(1))
    assert told == []
    without, _ = open_probe(without={"host_import"})
    with pytest.raises(UnimplementedError, match=r"upload\(\)"):
        without.import_array(array)


def test_an_import_stays_while_abandoned_work_may_use_it_q6(open_probe, latch):
    """Q6: the device may still write to it, so nothing releases it, not even the close."""
    device, probe = open_probe()
    array, told = np.zeros(64, np.uint8), []
    buffer = device.import_array(array, release=lambda: told.append(1))
    alive = weakref.ref(array)
    probe.hold(latch)
    device.queue.fill(buffer, 7)
    assert device.close(0.05), "the fill hangs"
    del array, buffer, device
    gc.collect()
    hal.create_semaphore().on_reached(0, lambda _: told.append("later"))
    wait_until(lambda: told)
    assert told == ["later"]
    assert alive() is not None
    assert probe.calls["release_host"] == 0


def test_an_array_that_is_imported_in_part_is_copied_as_any_other_m1(open_blocking):
    """M1: no native call is given memory beyond the import, at either end of it."""
    device, probe = open_blocking()
    size = SMALL + 4096
    whole = np.arange(3 * size, dtype=np.uint8)
    owner = device.import_array(whole[size : 2 * size])
    target = device.allocate(size)
    for start in (size, size + 1, 2 * size - 1, size - 1):
        copies = probe.calls["copy"]
        part = whole[start : start + size]
        device.queue.write(target, part).wait(LIMIT)
        assert (target.numpy(timeout=LIMIT) == part).all()
        assert probe.calls["copy"] - copies == (1 if start == size else 0)
    owner.close()


def test_an_import_of_a_lost_device_ends_without_a_native_call_s5(open_probe):
    device, probe = open_probe()
    told = []
    buffer = device.import_array(np.zeros(64, np.uint8), release=lambda: told.append(1))
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queue.fill(buffer, 1)
    del buffer
    wait_until(lambda: told)
    device.close(LIMIT)
    assert probe.calls["release_host"] == 0
    assert told == [1]


def test_a_release_that_raises_is_reported(open_probe, monkeypatch):
    """And ends nothing of ours."""
    device, probe = open_probe()
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    device.import_array(np.zeros(64, np.uint8), release=lambda: 1 / 0).close()
    wait_until(lambda: seen)
    assert seen[0].exc_type is ZeroDivisionError
    assert probe.calls["release_host"] == 1
    device.queue.barrier().wait(LIMIT)


def test_a_ctrl_c_loses_no_import_but_one_that_the_driver_has_just_made_o3(device):
    """O3: at every call of ours. The array can be imported again."""
    lost = []
    for number in itertools.count(1):
        array = np.zeros(4096)
        with Interrupts(number) as interrupts:
            device.import_array(array)
        try:
            device.import_array(array)
        except OperationError:
            lost += interrupts.places
        if not interrupts.places:
            break
    assert number > 20
    assert len(lost) <= 1, lost  # between the native call's return and the note of it
