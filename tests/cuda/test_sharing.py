"""Streams, events and memory of others: other devices, other libraries, and the host."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from compile_requests import compiled, request

from hal._base.sync import Doorbell
from hal.errors import OperationError
from hal.native import MemoryType


def foreign():
    from hal_cuda._driver import call, cuda  # noqa: PLC0415

    return call, cuda


def test_the_host_is_told_on_the_drivers_thread_q1(lab):
    bell, stream = Doorbell(), lab.stream()
    lab.device.bind()
    lab.device.notify(stream, bell.function, bell.argument)
    lab.finish()
    assert bell.wait(10)


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


def test_time_passes_between_timers(lab):
    device, stream = lab.device, lab.stream()
    first, second = device.create_timer(), device.create_timer()
    array = lab.array(np.zeros(1 << 20, np.uint8))
    device.bind()
    device.record_timer(first, stream)
    device.fill(stream, array.ctypes.data, 1, 1, array.nbytes)
    device.record_timer(second, stream)
    lab.finish()
    seconds = device.elapsed(first, second)
    assert 0 < seconds < 10
    assert device.elapsed(second, first) == -seconds
    device.destroy_timer(first)
    device.destroy_timer(second)


def test_a_stream_of_others_is_used_and_left_alone(lab):
    call, cuda = foreign()
    device = lab.device
    device.bind()
    theirs = call(cuda.cuStreamCreate, 1)
    array = lab.array(np.zeros(64, np.uint8))
    for _ in range(2):  # twice is no error
        stream = device.adopt_stream(int(theirs))
    event = device.create_event()
    device.fill(stream, array.ctypes.data, 6, 1, 64)
    device.record_event(event, stream)
    ours = lab.stream()
    device.wait_event(ours, event)
    lab.finish()
    assert (array == 6).all()
    device.release_stream(stream)
    device.release_stream(stream)
    device.destroy_event(event)
    call(cuda.cuStreamDestroy, theirs)


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


def test_devices_use_each_others_memory(open_lab):
    first, second = open_lab(0), open_lab(1)
    again = open_lab(0)
    assert first.device.can_access_peer(again.device)
    first.device.enable_peer(again.device)
    assert first.device.can_access_peer(second.device)
    for _ in range(2):  # twice is no error
        first.device.enable_peer(second.device)
    address = second.device.allocate(64, MemoryType.DEVICE)
    stream = first.stream()
    target = first.array(np.zeros(64, np.uint8))
    first.device.bind()
    first.device.fill(stream, address, 8, 1, 64)
    first.device.copy_to_host(stream, target.ctypes.data, address, 64)
    first.finish()
    assert (target == 8).all()
    second.device.free(address, MemoryType.DEVICE)


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


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("hardware", [0, 1])
def test_copies_between_devices(open_lab, turned, hardware):
    one, two = open_lab(0), open_lab(hardware)
    data = one.array(np.arange(64, dtype=np.uint8))
    seen = two.array(np.zeros(64, np.uint8))
    source, target = (lab.device.allocate(64, MemoryType.DEVICE) for lab in (one, two))
    worker = two if turned else one
    stream = one.stream()
    one.device.bind()
    one.device.copy_from_host(stream, source, data.ctypes.data, 64)
    one.finish()
    stream = worker.stream()
    worker.device.bind()
    worker.device.copy_peer(stream, target, two.device, source, one.device, 64)
    worker.finish()
    stream = two.stream()
    two.device.bind()
    two.device.copy_to_host(stream, seen.ctypes.data, target, 64)
    two.finish()
    assert np.array_equal(seen, data)
    one.device.free(source, MemoryType.DEVICE)
    two.device.free(target, MemoryType.DEVICE)


def test_devices_wait_for_each_others_events_s3(open_lab):
    one, two = open_lab(0), open_lab(1)
    gate = Doorbell()
    hold = ctypes.cast(ctypes.CDLL(None).sem_wait, ctypes.c_void_p).value
    first, second = one.stream(), two.stream()
    event, last = one.device.create_event(), two.device.create_event()
    one.device.bind()
    one.device.notify(first, hold, gate.argument)
    one.device.record_event(event, first)
    two.device.bind()
    two.device.wait_event(second, event)
    two.device.record_event(last, second)
    assert not two.device.query_event(last)
    gate.ring()
    two.finish()
    assert two.device.query_event(last)
    one.finish()
    one.device.destroy_event(event)
    two.device.destroy_event(last)


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
