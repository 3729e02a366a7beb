"""Command buffers: C1, C2, C4, and their life."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    HalError,
    InvalidArgumentError,
)


def test_recording_runs_nothing_c1(open_probe):
    """While it is recorded there is no native call."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    before = sum(probe.calls.values())
    commands = device.record()
    commands.fill(buffer, 1)
    commands.update(buffer, b"1234")
    commands.copy(buffer, buffer, target_offset=32, size=16)
    commands.barrier()
    commands.end()
    assert sum(probe.calls.values()) == before


def test_commands_of_no_size_are_left_out_c4(open_probe):
    """C4: no native call for them, and the rest is right."""
    device, probe = open_probe()
    buffer = device.upload(np.zeros(8, np.uint8))
    with device.record() as commands:
        commands.fill(buffer, 1, size=0)
        commands.barrier()
        commands.barrier()
        commands.copy(buffer, buffer, size=0)
        commands.fill(buffer, 2, size=4)
        commands.update(buffer, b"", offset=8)
    before = probe.calls["fill"], probe.calls["copy"], probe.calls["copy_from_host"]
    device.queue.execute(commands).wait(LIMIT)
    after = probe.calls["fill"], probe.calls["copy"], probe.calls["copy_from_host"]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 0]
    assert buffer.numpy().tolist() == [2] * 4 + [0] * 4


def test_a_recording_keeps_its_buffers_c1(open_probe):
    """C1: names may go, buffers may be closed, before it is ever executed."""
    device, _ = open_probe()
    source, target = device.upload(np.full(16, 7, np.uint8)), device.allocate(16)
    with device.record() as commands:
        commands.copy(source, target)
    source.close()
    del source
    gc.collect()
    assert device.statistics().allocations == 2
    for _ in range(2):
        assert target.numpy(wait=device.queue.execute(commands)).tolist() == [7] * 16
    del commands
    gc.collect()
    device.wait_idle(LIMIT)
    assert device.statistics().allocations == 1


def test_recordings_that_were_never_executed_leave_nothing(open_probe):
    device, _ = open_probe()
    for end in (True, False):
        commands = device.record()
        commands.fill(device.allocate(16), 1)
        if end:
            commands.end()
        del commands
    gc.collect()
    assert device.statistics().allocations == 0


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


def test_a_one_shot_recording_runs_once_c1(device):
    """C1: the second execution is refused, from whichever thread; a refused one does not count."""
    counter = device.upload(np.zeros(4, np.uint8))
    with device.record(one_shot=True, slots=1) as commands:
        commands.fill(commands.slots[0], 1, size=4)
    assert commands.one_shot
    semaphore = hal.create_semaphore(5)
    for refused in (
        lambda: device.queue.execute(commands),
        lambda: device.queue.execute(commands, bindings=[counter], signal=semaphore.at(5)),
        lambda: device.queue.execute(commands, bindings=[counter], wait="x"),
    ):
        with pytest.raises(HalError):
            refused()
    ready = threading.Barrier(4, timeout=LIMIT)

    def execute():
        ready.wait()
        try:
            return device.queue.execute(commands, bindings=[counter])
        except ClosedError as error:
            return str(error)

    results = collect_in_threads([execute] * 4)
    texts = [each for each in results if isinstance(each, str)]
    assert len(texts) == 3
    assert "one-shot" in texts[0]
    hal.wait_all([each for each in results if not isinstance(each, str)], LIMIT)
    assert counter.numpy().tolist() == [1] * 4


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
