"""Streams, events and memory of others: other devices, other libraries, and the host."""

import ctypes

import numpy as np
import pytest
from compile_requests import compiled, request

from hal._base.sync import Doorbell
from hal.errors import OperationError


def foreign():
    from hal_cuda._driver import call, cuda  # noqa: PLC0415

    return call, cuda


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


def test_memory_that_others_have_pinned_is_taken_as_it_is_m1(lab):
    call, cuda = foreign()
    lab.device.bind()
    theirs = int(call(cuda.cuMemHostAlloc, 8192, 1))
    stream = lab.stream()
    address = lab.device.import_host(theirs + 16, 64)
    lab.device.fill(stream, address, 7, 1, 64)
    lab.finish()
    assert ctypes.string_at(theirs + 16, 64) == bytes([7] * 64)
    lab.device.release_host(theirs + 16)
    call(cuda.cuMemFreeHost, theirs)


@pytest.mark.parametrize(("handle", "stream"), [(0, 1), (1, 1), (2, 2)])
def test_default_streams_have_numbers(lab, handle, stream):
    array = lab.array(np.zeros(64, np.uint8))
    lab.device.bind()
    assert lab.device.adopt_stream(handle) == stream
    lab.device.fill(stream, array.ctypes.data, 6, 1, 64)
    lab.device.synchronize_stream(stream)
    assert (array == 6).all()
    lab.device.release_stream(stream)


def test_a_stream_of_ours_is_a_drivers_stream(lab):
    call, cuda = foreign()
    stream = lab.stream()
    lab.device.bind()
    assert call(cuda.cuStreamGetFlags, lab.device.export_stream(stream)) == 1


def test_an_event_of_others_is_waited_for_and_recorded(lab):
    call, cuda = foreign()
    device = lab.device
    device.bind()
    theirs = call(cuda.cuEventCreate, 2)
    event, stream = device.adopt_event(int(theirs)), lab.stream()
    device.record_event(event, stream)
    device.wait_event(lab.stream(), event)
    lab.finish()
    assert call(cuda.cuEventQuery, theirs) is None
    device.release_event(event)
    call(cuda.cuEventDestroy, theirs)


def test_a_kernel_uses_an_enabled_peers_pool_m3(open_lab):
    """What was allocated there before the access was given, and what comes after."""
    one, two = open_lab(0), open_lab(1)
    theirs, ours = two.stream(), one.stream()
    two.device.bind()
    memory = [two.device.allocate_async(theirs, 256)]
    one.device.bind()
    one.device.enable_peer(two.device)
    two.device.bind()
    memory.append(two.device.allocate_async(theirs, 256))
    for address in memory:
        two.device.fill(theirs, address, 5, 4, 64)
    two.finish()
    seen = one.array(np.zeros(64, np.int32))
    one.device.bind()
    source = "__global__ void more(int *x) { x[threadIdx.x] += 7; }"
    module = one.device.load_module(compiled(one.device, request(source)))
    function = one.device.get_function(module, "more")
    for address in memory:
        at = one.parameters(ctypes.c_uint64(address))
        one.device.launch(ours, function, (1, 1, 1), (64, 1, 1), 0, at)
        one.device.copy_peer(ours, seen.ctypes.data, one.device, address, two.device, 256)
        one.finish()
        assert (seen == 12).all()
    one.device.unload_module(module)
    two.device.bind()
    for address in memory:
        two.device.free_async(theirs, address)
    two.finish()


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
