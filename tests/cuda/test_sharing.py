"""Streams, events and memory of others: other devices, other libraries, and the host."""

import ctypes

import pytest

from hal._base.sync import Doorbell
from hal.errors import OperationError


def test_the_drivers_thread_takes_no_interpreter_lock_i6(lab):
    """Python goes on while a function that the driver runs does not come back."""
    wait = ctypes.cast(ctypes.CDLL(None).sem_wait, ctypes.c_void_p).value
    stream = lab.stream()
    lab.device.bind()
    for _ in range(20):
        gates = [Doorbell() for _ in range(5)]
        for gate in gates:
            lab.device.notify(stream, wait, gate.argument)
        for gate in gates:
            gate.ring()
        lab.finish()


def test_memory_that_others_have_pinned_is_taken_as_it_is_m1(native, lab):
    lab.device.bind()
    theirs = int(native.call(native.cuda.cuMemHostAlloc, 8192, 1))
    stream = lab.stream()
    address = lab.device.import_host(theirs + 16, 64)
    lab.device.fill(stream, address, 7, 1, 64)
    lab.finish()
    assert ctypes.string_at(theirs + 16, 64) == bytes([7] * 64)
    lab.device.release_host(theirs + 16)
    native.call(native.cuda.cuMemFreeHost, theirs)


def test_a_stream_of_ours_is_a_drivers_stream(native, lab):
    stream = lab.stream()
    lab.device.bind()
    handle = lab.device.export_stream(stream)
    assert native.call(native.cuda.cuStreamGetFlags, handle) == 1


def test_a_stream_that_is_none_is_refused(lab, simulator):
    simulator.fail("cuStreamIsCapturing", 1, 400)
    with pytest.raises(OperationError) as caught:
        lab.device.adopt_stream(4096)
    assert caught.value.native_code == 400


@pytest.mark.parametrize("kind", ["event", "stream"])
def test_a_handle_is_forgotten_before_another_thread_gets_the_same(lab, monkeypatch, kind):
    """The driver may give the address out again as soon as the object is destroyed."""
    from hal_cuda import _context  # noqa: PLC0415 - after the library

    known = {"event": _context._events, "stream": _context.streams}[kind]
    handle = getattr(lab.device, f"create_{kind}")()
    destroy = _context.call

    def destroy_and_create(function, *arguments):
        destroy(function, *arguments)
        known[handle] = "another thread's"

    monkeypatch.setattr(_context, "call", destroy_and_create)
    getattr(lab.device, f"destroy_{kind}")(handle)
    assert known.pop(handle) == "another thread's"
