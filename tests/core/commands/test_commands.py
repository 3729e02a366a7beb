"""Command buffers: C1, C2, C4, and their life."""

from __future__ import annotations

import functools
import gc
import itertools
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
    OperationError,
)


def test_record_execute_replay_c1(device):
    """C1: recorded once, executed many times; each run does the same."""
    counter, one = device.upload(np.zeros(8, np.uint8)), device.upload(np.zeros(8, np.uint8))
    with device.record() as commands:
        commands.fill(counter, 1, size=4)
        commands.update(counter, b"\x09\x08", offset=4)
        commands.barrier()
        commands.copy(counter, one, source_offset=3, target_offset=2, size=3)
    assert len(commands) == 3
    for _ in range(3):
        device.queue.fill(counter, 0)
        device.queue.fill(one, 0)
        device.queue.execute(commands).wait(LIMIT)
        assert counter.numpy().tolist() == [1, 1, 1, 1, 9, 8, 0, 0]
        assert one.numpy().tolist() == [0, 0, 1, 9, 8, 0, 0, 0]


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


def test_update_captures_when_it_is_recorded_c1(device):
    """C1: the bytes of the recording, not those of the execution."""
    buffer = device.allocate(4)
    array = np.array([1, 2, 3, 4], np.uint8)
    with device.record() as commands:
        commands.update(buffer, array)
    array[:] = 9
    assert buffer.numpy(wait=device.queue.execute(commands)).tolist() == [1, 2, 3, 4]


def test_a_recording_is_immutable_after_end_c1(device):
    buffer = device.allocate(4)
    commands = device.record()
    commands.fill(buffer, 1)
    commands.end()
    for change in (
        lambda: commands.fill(buffer, 2),
        lambda: commands.update(buffer, b"2"),
        lambda: commands.copy(buffer, buffer, size=1, target_offset=1),
        commands.barrier,
        commands.end,
        commands.__enter__,
    ):
        with pytest.raises(InvalidArgumentError, match="ended"):
            change()
    assert len(commands) == 1
    assert buffer.numpy(wait=device.queue.execute(commands)).tolist() == [1] * 4


def test_a_recording_that_has_not_ended_is_refused_c1(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    commands = device.record()
    commands.fill(buffer, 1)
    with pytest.raises(InvalidArgumentError, match="end"):
        device.queue.execute(commands)
    assert buffer.numpy().tolist() == [0] * 4
    commands.end()
    device.queue.execute(commands).wait(LIMIT)


def test_a_recording_left_by_an_error_is_of_no_use(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    commands = device.record()
    with pytest.raises(ZeroDivisionError), commands:
        raise ZeroDivisionError
    for use in (
        lambda: commands.fill(buffer, 1),
        commands.end,
        lambda: device.queue.execute(commands),
    ):
        with pytest.raises(HalError, match="record"):
            use()
    with pytest.raises(ClosedError):
        commands.end()
    assert buffer.numpy().tolist() == [0] * 4


def test_a_refused_command_leaves_the_recording_as_it_was(device):
    """A bad command raises where it is recorded, and the others stay."""
    buffer = device.upload(np.zeros(4, np.uint8))
    with device.record() as commands:
        commands.fill(buffer, 1)
        for bad, error in (
            (lambda: commands.fill(buffer, 1, offset=5), InvalidArgumentError),
            (lambda: commands.fill(buffer, "x"), ArgumentTypeError),
            (lambda: commands.copy(buffer, buffer, target_offset=1, size=2), InvalidArgumentError),
            (lambda: commands.update(buffer, b"12345"), InvalidArgumentError),
        ):
            with pytest.raises(error):
                bad()
    assert len(commands) == 1
    assert buffer.numpy(wait=device.queue.execute(commands)).tolist() == [1] * 4


def test_an_empty_recording_orders_and_signals_c4(device):
    with device.record() as commands:
        pass
    assert len(commands) == 0
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    submission = device.queue.execute(commands, wait=gate.at(1), signal=done.at(1))
    assert submission.state == "pending"
    gate.signal(1)
    done.wait(1, LIMIT)


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


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000])
def test_any_number_of_commands_between_barriers_c2(device, count):
    """Barriers with nothing before them, and many commands between two."""
    source, target = device.allocate(4 * count), device.allocate(4 * count)
    with device.record() as commands:
        commands.barrier()
        for index in range(count):
            commands.fill(source, np.uint32(index + 1), offset=4 * index, size=4)
        commands.barrier()
        commands.barrier()
        commands.copy(source, target)
        commands.barrier()
    result = target.numpy(np.uint32, wait=device.queue.execute(commands))
    assert result.tolist() == list(range(1, count + 1))


def test_a_recording_runs_on_several_queues_at_once_c1(device):
    """C1: submitted 50 times on several queues from several threads, then dropped."""
    source = device.upload(np.arange(256, dtype=np.uint8))
    targets = [device.upload(np.zeros(256, np.uint8)) for _ in range(4)]
    with device.record() as commands:
        for target in targets:
            commands.copy(source, target)
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]

    def submit(queue, commands=commands):
        return [queue.execute(commands) for _ in range(50)]

    functions = [functools.partial(submit, queue) for queue in queues]
    submissions = itertools.chain.from_iterable(collect_in_threads(functions))
    del commands, functions, submit
    gc.collect()
    hal.wait_all(submissions, LIMIT)
    for target in targets:
        assert target.numpy().tolist() == list(range(256))


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


def test_execute_checks_what_it_is_given(device, second_device):
    with device.record() as commands:
        pass
    with pytest.raises(InvalidArgumentError, match="record"):
        second_device.queue.execute(commands)
    with pytest.raises(ArgumentTypeError, match="str"):
        device.queue.execute("commands")
    with pytest.raises(ArgumentTypeError, match="list"):
        device.queue.execute([commands])
    buffer = second_device.allocate(4)
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="belongs"):
        commands.fill(buffer, 1)


def test_execution_waits_and_fails_like_any_operation(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    with device.record() as commands:
        commands.fill(buffer, 1)
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    failing = device.queue.execute(commands, wait=gate.at(1), signal=done.at(1))
    gate.fail(OperationError("no"))
    with pytest.raises(OperationError):
        failing.wait(LIMIT)
    with pytest.raises(OperationError):
        done.wait(1, LIMIT)
    assert buffer.numpy().tolist() == [0] * 4


def test_two_recordings_at_the_same_time_do_not_mix(device):
    one, two = device.upload(np.zeros(4, np.uint8)), device.upload(np.zeros(4, np.uint8))
    ready = threading.Barrier(2, timeout=LIMIT)

    def record(buffer, value):
        with device.record() as commands:
            ready.wait()
            for index in range(4):
                commands.fill(buffer, value, offset=index, size=1)
        return commands

    first, second = collect_in_threads([lambda: record(one, 1), lambda: record(two, 2)])
    device.queue.execute(first).wait(LIMIT)
    assert (one.numpy().tolist(), two.numpy().tolist()) == ([1] * 4, [0] * 4)
    device.queue.execute(second).wait(LIMIT)
    assert two.numpy().tolist() == [2] * 4


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


@pytest.mark.parametrize("category", ["all", "transfer", "dispatch"])
def test_a_recording_takes_only_its_category_c1(device, category):
    """C1: others are refused, and leave it as it was; barriers and events belong to all."""
    buffer = device.upload(np.zeros(4, np.uint8))
    kernel = device.compile("__global__ void f(unsigned char *x) { x[0] = 7; }")["f"]
    with device.record(categories=category) as commands:
        for verb, record in (
            ("transfer", lambda: commands.fill(buffer, 1)),
            ("transfer", lambda: commands.update(buffer, b"1")),
            ("transfer", lambda: commands.copy(buffer, buffer, target_offset=2, size=2)),
            ("dispatch", lambda: commands.dispatch(kernel, grid=1, block=1, args=(buffer,))),
        ):
            if category in {"all", verb}:
                record()
            else:
                with pytest.raises(InvalidArgumentError, match=f"takes {category} commands only"):
                    record()
            commands.barrier()
        event = commands.create_event()
        commands.signal_event(event)
        commands.wait_events(event)
    assert len(commands) == {"all": 4, "transfer": 3, "dispatch": 1}[category]
    device.queue.execute(commands).wait(LIMIT)


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


def test_the_defaults_of_a_kernel_are_a_recordings_too_c5(device):
    """C5: block and shared memory of the entry point, unless the dispatch says its own."""
    program = device.compile(
        "__global__ void HAL_BLOCK(4) count(int *x) { if (threadIdx.x == 0) x[0] = blockDim.x; }"
        "__global__ void without(int *x) {}"
    )
    buffer = device.upload(np.zeros(1, np.int32))
    for block, expected in ((None, 4), (2, 2)):
        with device.record() as commands:
            commands.dispatch(program["count"], grid=1, block=block, args=(buffer,))
            with pytest.raises(ArgumentTypeError, match="no block was given"):
                commands.dispatch(program["without"], grid=1, args=(buffer,))
        assert buffer.numpy(wait=device.queue.execute(commands)).tolist() == [expected]
