"""Events follow a GPU's rules."""

import numpy as np


def test_never_recorded_is_complete(lab):
    event = lab.device.create_event()
    stream = lab.stream()
    assert lab.device.query_event(event)
    lab.device.wait_event(stream, event)  # waits for nothing
    lab.finish(stream)
    lab.device.destroy_event(event)


def test_recorded_on_an_idle_stream_is_complete(lab):
    assert lab.device.query_event(lab.event(lab.stream()))


def test_complete_only_after_the_work_before_it(lab):
    stream = lab.stream()
    gate = lab.gate(stream)
    event = lab.event(stream)
    assert not lab.device.query_event(event)
    gate.open()
    lab.finish(stream)
    assert lab.device.query_event(event)


def test_work_after_a_record_does_not_matter(lab):
    stream = lab.stream()
    first = lab.gate(stream)
    event = lab.event(stream)
    lab.gate(stream)
    other = lab.stream()
    lab.device.wait_event(other, event)
    first.open()
    lab.finish(other)
    assert lab.device.query_event(event)


def test_a_record_overwrites(lab):
    held, idle = lab.stream(), lab.stream()
    lab.gate(held)
    event = lab.event(held)
    assert not lab.device.query_event(event)
    lab.device.record_event(event, idle)
    assert lab.device.query_event(event)
    lab.device.record_event(event, held)
    assert not lab.device.query_event(event)


def test_a_wait_captures_the_record_at_the_call(lab):
    held, waiting, idle = lab.stream(), lab.stream(), lab.stream()
    source, target = lab.array([0], "u4"), lab.array([9], "u4")
    gate = lab.gate(held)
    lab.device.fill(held, source.ctypes.data, 5, 4, 1)
    event = lab.event(held)
    lab.device.wait_event(waiting, event)
    lab.device.record_event(event, idle)  # now complete, but not for the wait above
    lab.device.copy(waiting, target.ctypes.data, source.ctypes.data, 4)
    done = lab.event(waiting)
    assert lab.device.query_event(event)
    assert not lab.device.query_event(done)
    gate.open()
    lab.finish(waiting)
    assert target[0] == 5


def test_a_wait_does_not_follow_a_later_record(lab):
    held, waiting = lab.stream(), lab.stream()
    first = lab.gate(held)
    event = lab.event(held)
    lab.device.wait_event(waiting, event)
    lab.gate(held)
    lab.device.record_event(event, held)
    first.open()
    lab.finish(waiting)  # would never end
    assert not lab.device.query_event(event)


def test_a_stream_may_wait_for_itself(lab):
    stream = lab.stream()
    gate = lab.gate(stream)
    lab.device.wait_event(stream, lab.event(stream))
    gate.open()
    lab.finish(stream)


def test_an_event_may_go_while_it_is_waited_for(lab):
    held, waiting = lab.stream(), lab.stream()
    gate = lab.gate(held)
    event = lab.event(held)
    lab.device.wait_event(waiting, event)
    lab.device.destroy_event(event)
    done = lab.event(waiting)
    assert not lab.device.query_event(done)
    gate.open()
    lab.finish(waiting)


def test_a_destroyed_stream_leaves_complete_events(lab):
    stream = lab.device.create_stream()
    lab.device.fill(stream, lab.memory(4), 1, 4, 1)
    event = lab.event(stream)
    lab.device.destroy_stream(stream)
    assert lab.device.query_event(event)
    # The next stream takes the slot over, and must not bring the event back to life.
    again = lab.stream()
    lab.gate(again)
    assert again == stream
    assert lab.device.query_event(event)
    waiting = lab.stream()
    lab.device.wait_event(waiting, event)
    lab.finish(waiting)


def test_devices_wait_for_each_other(lab, other_lab):
    here, there = lab.stream(), other_lab.stream()
    assert lab.device.domain is other_lab.device.domain
    values = lab.array(np.zeros(2), "u4")
    gate = lab.gate(here)
    lab.device.fill(here, values.ctypes.data, 7, 4, 1)
    other_lab.device.wait_event(there, lab.event(here))
    other_lab.device.copy(there, values.ctypes.data + 4, values.ctypes.data, 4)
    assert not other_lab.device.query_event(other_lab.event(there))
    gate.open()
    other_lab.finish(there)
    assert values.tolist() == [7, 7]


def test_a_chain_across_many_streams(lab):
    streams = [lab.stream() for _ in range(20)]
    values = lab.array(np.arange(21), "u4")
    gate = lab.gate(streams[0])
    lab.device.fill(streams[0], values.ctypes.data, 77, 4, 1)
    for index, stream in enumerate(streams):
        if index:
            lab.device.wait_event(stream, lab.event(streams[index - 1]))
        at = values.ctypes.data + 4 * index
        lab.device.copy(stream, at + 4, at, 4)
    gate.open()
    lab.finish(streams[-1])
    assert (values == 77).all()
