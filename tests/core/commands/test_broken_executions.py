"""Executions that break off part-way, as graphs, as streams and on the host (C4, Q5)."""

import numpy as np
import pytest
from core_harness import LIMIT, Latch
from failure_harness import FAULTS
from graph_probe import GRAPH_CALLS

import hal
from hal.errors import HalError, InvalidArgumentError, OperationError, OutOfMemoryError

CALLS = (*GRAPH_CALLS, "fill", "copy", "launch", "record_event", "create_event", "wait_event")


def run_script(device, add, mode, tables):
    """Execute one recording three times: first, the same table, another table; on two queues."""
    with device.record(slots=2, command_buffer=mode) as commands:
        one, two = commands.slots
        commands.fill(one, np.int32(4), size=16, name="clear")
        commands.barrier()
        commands.dispatch(add, grid=1, block=4, args=(one, two, 1))
        commands.barrier()
        commands.copy(two, one, size=8)
    upload = device.queues.upload
    submissions = [
        device.queue.execute(commands, bindings=tables[0]),
        device.queue.execute(commands, bindings=tables[0]),
        device.queue.execute(commands, bindings=tables[1]),
    ]
    submissions.append(upload.execute(commands, bindings=tables[1], wait=submissions[2]))
    return commands, submissions


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_at_every_native_call_of_an_execution_q5(open_probe, image, mode, fault):
    """Q5: for every n the n-th call fails: that execution and what waits for it fail, and only
    they; a later one with the same table gives the right result; nothing native is left."""

    def script(number):
        device, probe = open_probe()
        add = device.load(image)["add"]
        tables = [[device.allocate(16, dtype=np.int32) for _ in "ab"] for _ in "ab"]
        device.wait_idle(LIMIT)
        before = sum(probe.calls[name] for name in CALLS)
        if number:
            probe.fail_call(number, FAULTS[fault](), CALLS)
        commands, submissions = run_script(device, add, mode, tables)
        device.wait_idle(LIMIT)
        return device, probe, commands, tables, submissions, before

    device, probe, *_, before = script(0)
    total = sum(probe.calls[name] for name in CALLS) - before
    assert total >= 10
    hits = 0
    for number in range(1, total + 1):
        device, probe, commands, tables, submissions, _ = script(number)
        probe.heal()
        failed = [each for each in submissions if each.state == "failed"]
        assert all(each.done for each in submissions), number
        hits += bool(failed)
        for each in failed:
            assert "injected" in str(each.error), number
        if device.lost:
            assert fault == "lost"
            continue
        assert len(failed) <= (2 if submissions[2] in failed else 1), number
        # What the device got of a failed execution still runs.
        hal.wait_all([device.queue.barrier(), device.queues.upload.barrier()], LIMIT)
        for table in (tables[1], tables[0], tables[1]):
            device.queue.fill(table[1], 0)
            done = device.queue.execute(commands, bindings=table)
            assert table[1].numpy(wait=done).tolist() == [5] * 4, number
            assert table[0].numpy().tolist() == [5, 5, 4, 4], number
        del commands, done
        assert device.close(LIMIT) == ()
        assert probe.live() == {}, number
    assert hits > total // 2  # the others were made by who waits


def test_an_error_names_the_command_c4(open_probe, mode):
    """Groups, names and numbers stand in what fails at issue, and in what is refused."""
    device, probe = open_probe()
    tables = [[device.allocate(16)], [device.allocate(16)]]
    with device.record(slots=1, command_buffer=mode) as commands:
        commands.fill(commands.slots[0], 1, size=4)
        with commands.group("frame"), commands.group("blur"):
            commands.fill(commands.slots[0], 2, offset=4, size=4, name="rows")
            with pytest.raises(InvalidArgumentError, match=r"^frame/blur/bad: fill: "):
                commands.fill(tables[0][0], 2, offset=40, name="bad")
            commands.fill(commands.slots[0], 3, offset=8, size=4)
        commands.fill(commands.slots[0], 4, offset=12, size=4, name="last")
    device.queue.execute(commands, bindings=tables[0]).wait(LIMIT)
    # A refused update would be no failure.
    call, kind = {"stream": ("fill", OperationError), "graph": ("update_graph", OutOfMemoryError)}[
        mode
    ]
    for number, words in (
        (1, "command 0 of 4, fill: injected"),
        (2, "command 1 of 4, fill 'frame/blur/rows': injected"),
        (3, "command 2 of 4, fill 'frame/blur': injected"),
        (4, "command 3 of 4, fill 'last': injected"),
    ):
        probe.fail_call(number, kind("injected", native_name="E", native_code=5), (call,))
        error = device.queue.execute(commands, bindings=tables[1]).error
        assert isinstance(error, kind)
        assert words in str(error)
        assert (error.native_name, error.native_code) == ("E", 5)
        device.queue.execute(commands, bindings=tables[0]).wait(LIMIT)
    device.queue.execute(commands, bindings=tables[1]).wait(LIMIT)
    assert tables[1][0].numpy().tolist() == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4


@pytest.mark.parametrize("number", [1, 2])
def test_a_refused_update_makes_a_new_instance_c4(open_probe, number):
    """Where the driver changes no instance in place, the work is done all the same."""
    device, probe = open_probe()
    tables = [[device.upload(np.zeros(8, np.uint8))] for _ in range(3)]
    with device.record(slots=1, command_buffer="graph") as commands:
        commands.fill(commands.slots[0], 1, size=4)
        commands.fill(commands.slots[0], 2, offset=4, size=4)
    device.queue.execute(commands, bindings=tables[0])
    made = probe.calls["instantiate_graph"]
    probe.fail_call(number, OperationError("injected"), ("update_graph",))
    device.queue.execute(commands, bindings=tables[1]).wait(LIMIT)
    assert probe.calls["instantiate_graph"] == made + 1
    device.queue.execute(commands, bindings=tables[2]).wait(LIMIT)
    assert probe.calls["instantiate_graph"] == made + 1  # and that one is updated again
    assert [table[0].numpy().tolist() for table in tables] == [[1] * 4 + [2] * 4] * 3


HOST_CALLS = (
    *("create_stream", "fill", "launch", "copy_to_host"),
    *("synchronize_stream", "destroy_stream"),
)


def test_an_execution_on_the_host_ends_when_its_work_has_q5(open_probe, image):
    """Q5: a host execution ends when its stream is idle; then the stream is destroyed."""
    device, probe = open_probe()
    probe.features -= {"indirect_dispatch"}
    counts, target = device.upload(np.ones(3, np.uint32)), device.upload(np.zeros(4, np.uint32))
    with device.record() as commands:
        commands.dispatch(device.load(image)["ids"], grid=counts, block=1, args=(target,))
        commands.fill(target, 7, offset=8, size=4)
    device.wait_idle(LIMIT)
    destroyed = probe.calls["destroy_stream"]
    latch = Latch()
    probe.fail_call(1, lambda: probe.hold(latch), ("fill",))
    running = device.queue.execute(commands)
    with pytest.raises(HalError):
        running.wait(0.1)
    latch.open()
    running.wait(LIMIT)
    assert target.numpy().tolist() == [1, 0, 7, 0]
    assert probe.calls["destroy_stream"] == destroyed + 1


@pytest.mark.parametrize("fault", ["operation", "lost"])
def test_failing_at_every_native_call_on_the_host_q5(open_probe, image, fault):
    """Q5: an emulated execution fails, and nothing is left of its stream, or the device is lost."""

    def script(number):
        device, probe = open_probe()
        probe.features -= {"indirect_dispatch"}
        program = device.load(image)
        target = device.upload(np.zeros(16, np.uint32))
        with device.record() as commands:
            commands.fill(target, 0)
            commands.dispatch(program["choose"], grid=1, block=1, args=(target, 3))
            commands.dispatch(program["ids"], grid=target, block=1, args=(target.subspan(16, 48),))
        device.wait_idle(LIMIT)
        before = sum(probe.calls[name] for name in HOST_CALLS)
        if number:
            probe.fail_call(number, FAULTS[fault](), HOST_CALLS)
        submission = device.queue.execute(commands)
        device.wait_idle(LIMIT)
        return device, probe, commands, target, submission, before

    device, probe, *_, before = script(0)
    total = sum(probe.calls[name] for name in HOST_CALLS) - before
    assert total >= 7
    for number in range(1, total + 1):
        device, probe, commands, target, submission, _ = script(number)
        assert submission.state == "failed", number
        assert "injected" in str(submission.error), number
        probe.heal()
        if fault == "lost":
            assert device.lost, number
            continue
        if device.lost:
            continue
        device.queue.execute(commands).wait(LIMIT)
        assert target.numpy().tolist() == [3, 2, 1, 0] + [1] * 6 + [0] * 6
        assert device.close(LIMIT) == ()
        assert probe.live() == {}, number
