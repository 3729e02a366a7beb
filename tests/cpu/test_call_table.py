"""The runtime's C functions for the commonest calls, beside the primitives."""

import ctypes
import errno

import pytest

from hal.errors import OperationError
from hal_conformance.calls import Calls, Holds, arguments_of


@pytest.fixture
def calls(lab):
    return Calls(lab.device.call_table())


def test_any_thread_may_call_them_for_all_devices(lab, other_lab):
    table = lab.device.call_table()
    assert (table.current, table.context, table.exchange_capture_mode) == (0, 0, 0)
    assert other_lab.device.call_table() == table


def test_events_order_streams_of_two_devices(lab, other_lab, calls):
    """Both ways of a record and of a wait share the events."""
    first, second = lab.stream(), other_lab.stream()
    target = lab.array([0] * 8, "u1")
    event, last = lab.device.create_event(), other_lab.device.create_event()
    with Holds(lab.device) as holds:
        holds.hold(first)
        assert calls.fill_8(target.ctypes.data, 1, 8, first) == 0
        assert calls.record_event(event, first) == 0
        assert calls.query_event(event) == calls.table.not_ready
        assert not lab.device.query_event(event)
        assert calls.wait_event(second, event, 0) == 0
        assert calls.fill_8(target.ctypes.data, 2, 4, second) == 0
        other_lab.device.record_event(last, second)
        assert calls.query_event(last) == calls.table.not_ready
    other_lab.finish()
    assert calls.query_event(event) == calls.query_event(last) == 0
    assert target.tolist() == [2] * 4 + [1] * 4
    for each in (event, last):
        lab.device.destroy_event(each)


def test_an_event_that_is_gone_is_an_error_of_both(lab, calls):
    """Where it would be waited for, or asked: nothing is enqueued."""
    stream = lab.stream()
    event = lab.event(stream)
    lab.device.destroy_event(event)
    before = lab.device._completed[stream * 16 + 8]
    statuses = [calls.wait_event(stream, event, 0), calls.query_event(event)]
    for primitive in (
        lambda: lab.device.wait_event(stream, event),
        lambda: lab.device.query_event(event),
        lambda: lab.device.adopt_event(event),
    ):
        with pytest.raises(OperationError):
            primitive()
    assert statuses == [errno.EINVAL] * 2
    assert lab.device._completed[stream * 16 + 8] == before


def test_a_handle_is_given_again_after_its_end_only(lab):
    events = [lab.device.create_event() for _ in range(100)]
    assert len(set(events)) == 100
    for event in events:
        lab.device.destroy_event(event)
    again = [lab.device.create_event() for _ in range(100)]
    assert set(again) == set(events)
    assert all(map(lab.device.query_event, again))
    for event in again:
        lab.device.destroy_event(event)


def test_what_no_function_of_the_runtime_takes_is_refused(lab, calls):
    stream = lab.stream()
    event = lab.event(stream)
    function = lab.function("__global__ void kernel(int *p) { p[0] = 1; }")
    array = lab.array([0], "i4")
    address, kept = arguments_of(ctypes.c_uint64(array.ctypes.data))
    assert calls.wait_event(stream, event, 1) == errno.EINVAL
    assert calls.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, address, address) == errno.EINVAL
    lab.finish()
    assert array[0] == 0
    assert calls.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, address, None) == 0
    del kept
    lab.finish()
    assert array[0] == 1
    lab.device.destroy_event(event)
