"""Events follow a GPU's rules."""

from hal._base.sync import Doorbell


def test_never_recorded_is_complete(lab):
    event = lab.device.create_event()
    stream = lab.stream()
    assert lab.device.query_event(event)
    lab.device.wait_event(stream, event)  # waits for nothing
    lab.finish(stream)
    lab.device.destroy_event(event)


def test_a_function_is_called_when_an_event_is_complete(lab):
    """In any order of the calls, at once for what is complete, and by no thread of Python's."""
    stream, held = lab.stream(), []
    for _ in range(3):
        gate = lab.gate(stream)
        held.append((gate, lab.event(stream), Doorbell()))
    for _, event, bell in reversed(held):
        assert lab.device.notify_event(event, bell.function, bell.argument)
    for number, (gate, _, bell) in enumerate(held):
        gate.open()
        assert bell.wait(30)
        assert not any(later.wait(0) for _, _, later in held[number + 1 :])
    for event in (held[0][1], lab.device.create_event()):
        assert lab.device.notify_event(event, bell.function, bell.argument)
        assert bell.wait(0)


def test_a_record_overwrites(lab):
    held, idle = lab.stream(), lab.stream()
    lab.gate(held)
    event = lab.event(held)
    assert not lab.device.query_event(event)
    lab.device.record_event(event, idle)
    assert lab.device.query_event(event)
    lab.device.record_event(event, held)
    assert not lab.device.query_event(event)


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
