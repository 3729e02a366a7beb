"""What executions leave behind (C1)."""

import gc

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal._commands.lowering import CommandOrder
from hal._commands.slots import Slots
from hal._commands.temporaries import Arena
from hal.errors import CancelledError, ClosedError, InvalidArgumentError


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


@pytest.mark.parametrize("where", [None, "upload"])
def test_a_recording_that_an_error_left_says_so_and_never_runs(device, where):
    """Also one that had ended before, in one part or in several."""
    buffer = device.upload(np.zeros(4, np.uint8))
    recording = device.record()

    def fail():
        with recording:
            recording.fill(buffer, 1)
            if where:
                with recording.on(where):
                    recording.fill(buffer, 2)
            recording.end()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(InvalidArgumentError, match="left by an error; record another"):
        device.queue.execute(recording)
    device.wait_idle(LIMIT)
    assert not buffer.numpy().any()


def _interrupt(*_):
    raise KeyboardInterrupt


CHANGES = {
    "command": (Slots, "need", lambda commands, _: commands.fill(commands.slots[0], 2)),
    "barrier": (CommandOrder, "wait", lambda commands, _: commands.barrier()),
    "wait": (CommandOrder, "wait", lambda commands, event: commands.wait_events(event)),
    "signal": (
        CommandOrder,
        "join",
        lambda commands, _: commands.signal_event(commands.create_event()),
    ),
    "alloca": (Arena, "take", lambda commands, _: commands.alloca(64)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_an_interrupt_cut_short_is_refused_o3(device, monkeypatch, kind):
    """O3: a command may be known to some of the lists only, and a join to no barrier."""
    owner, method, change = CHANGES[kind]
    commands = device.record(slots=[(np.uint8, 64)])
    commands.fill(commands.slots[0], 1)
    event = commands.create_event()
    commands.signal_event(event)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            change(commands, event)
    for further in (commands.barrier, commands.end):
        with pytest.raises(ClosedError, match="left by an error; record another"):
            further()
    with pytest.raises(InvalidArgumentError, match="left by an error; record another"):
        device.queue.execute(commands, bindings=[device.allocate(64)])


def test_a_command_that_is_refused_changes_nothing_c1(device):
    """C1, M3: it does not keep the memory of an alloca, and the next one is recorded."""
    refused = device.queue.alloca(64)
    device.queue.fill(refused, 1).wait(LIMIT)
    buffer = device.allocate(64)
    with device.record() as commands:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="the offset is 1000"):
                commands.fill(refused, 1, offset=1000)
            commands.fill(buffer, 5)
    device.queue.dealloca(refused).wait(LIMIT)
    device.queue.execute(commands).wait(LIMIT)
    assert buffer.numpy().tolist() == [5] * 64


@pytest.mark.parametrize("is_bound", [True, False])
@pytest.mark.parametrize("mode", ["graph", "stream"])
def test_the_other_device_is_closed_before_a_copy_to_its_memory_is_issued_q6(
    open_probe, mode, is_bound
):
    """Q6: also where a slot stands for that memory, which the close gives back."""
    (device, _), (owner, _) = open_probe(), open_probe()
    source, target = device.upload(np.zeros(64, np.uint8)), owner.allocate(64)
    gate = hal.create_semaphore()
    with device.record(slots=[(np.uint8, 64, owner)], command_buffer=mode) as commands:
        commands.copy(source, commands.slots[0] if is_bound else target)
    pending = device.queue.execute(commands, bindings=[target], wait=gate.at(1))
    owner.close(LIMIT)
    assert pending.state == "cancelled"
    gate.signal(1)
    with pytest.raises((CancelledError, ClosedError)):
        device.queue.execute(commands, bindings=[target]).wait(LIMIT)
