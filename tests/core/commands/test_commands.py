"""Command buffers: C1, C2, C4, and their life."""

from __future__ import annotations

import gc

import pytest
from core_harness import LIMIT

from hal.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
)


def test_a_thousand_executions_are_flat(open_probe):
    """An execution leaves nothing of its own."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    with device.record() as commands:
        commands.fill(buffer, 1)

    def execute(count):
        for _ in range(count):
            last = device.queue.execute(commands)
        last.wait(LIMIT)
        gc.collect()
        ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("hal.")]
        events = probe.live()["event"]
        return len(ours) - events, events  # the pool grows with what is in flight

    execute(1000)
    objects, _ = execute(1000)
    later_objects, later_events = execute(1000)
    assert later_objects - objects < 100
    assert later_events <= device._context.max_in_flight + 64


# States, categories, groups


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hazards": "none"}, "'auto', 'manual', not 'none'"),
        ({"categories": "copy"}, "'all', 'dispatch', 'transfer', not 'copy'"),
        ({"categories": None}, "not None"),
        ({"command_buffer": 1}, "not 1"),
    ],
)
def test_settings_that_there_are_not(device, settings, words):
    with pytest.raises(InvalidArgumentError, match=words):
        device.record(**settings)


def test_groups_have_to_be_balanced(device):
    """An open group keeps a recording from ending; groups end in the reverse of their order."""
    commands = device.record()
    group = commands.group("outer")
    with group:
        inner = commands.group("inner")
        inner.__enter__()
        with pytest.raises(InvalidArgumentError, match="'outer/inner' is still open"):
            commands.end()
        with pytest.raises(InvalidArgumentError, match="'inner' is open already"):
            inner.__enter__()
        inner.__exit__(None, None, None)
        with pytest.raises(InvalidArgumentError, match="'inner' ends while 'outer' is open"):
            inner.__exit__(None, None, None)
    with pytest.raises(ArgumentTypeError, match="int"):
        commands.group(5)
    with pytest.raises(ArgumentTypeError, match="int"):
        commands.fill(device.allocate(4), 1, name=5)
    with pytest.raises(ZeroDivisionError), commands.group("left by an error"):
        raise ZeroDivisionError
    commands.end()
    with pytest.raises(InvalidArgumentError, match="ended"):
        commands.group("late")


def test_events_that_cannot_be_c1(device):
    """C1: waited for before a signal, signalled twice, of another recording, or no event."""
    commands, other = device.record(), device.record()
    event, foreign = commands.create_event(name="mine"), other.create_event()
    assert (event.name, event.signalled) == ("mine", False)
    with pytest.raises(InvalidArgumentError, match=r"nothing .* signals mine"):
        commands.wait_events(event)
    commands.signal_event(event)
    assert event.signalled
    with pytest.raises(InvalidArgumentError, match="mine is signalled; reset"):
        commands.signal_event(event)
    commands.reset_event(event)
    commands.reset_event(event)
    with pytest.raises(InvalidArgumentError, match="mine"):
        commands.wait_events(event)
    for use in (commands.signal_event, commands.wait_events, commands.reset_event):
        with pytest.raises(InvalidArgumentError, match="another recording"):
            use(foreign)
        with pytest.raises(ArgumentTypeError, match="str"):
            use("event")
    commands.end()
    for use in (
        commands.create_event,
        lambda: commands.signal_event(event),
        lambda: commands.wait_events(event),
        lambda: commands.reset_event(event),
    ):
        with pytest.raises(InvalidArgumentError, match="ended"):
            use()
    assert "mine" in repr(event)


def test_what_a_recording_says_of_itself(device):
    commands = device.record(slots=2)
    assert "0 commands, 2 slots, recording" in repr(commands)
    commands.fill(device.allocate(4), 1)
    commands.end()
    assert "1 commands, 2 slots, ended" in repr(commands)
    with pytest.raises(ZeroDivisionError), device.record() as broken:
        raise ZeroDivisionError
    assert "left by an error" in repr(broken)
