"""How recordings are run, and their native graphs: made, used again, destroyed (C4, I7)."""

import gc
import itertools
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch
from graph_probe import GRAPH_CALLS

import hal
from hal.errors import HalError, InvalidArgumentError, UnimplementedError


def count_graph_calls(probe):
    return [probe.calls[name] for name in GRAPH_CALLS]


# The choice


def lowering_of(device, count, **options):
    with device.record(**options) as commands:
        for _ in range(count):
            commands.fill(device.allocate(4), 1)
    return commands.lowering


def test_auto_takes_a_graph_where_the_backend_has_measured_that_it_pays_c4(open_probe):
    """C4: "auto" makes a graph from `graph_commands` on, but never for a one-shot recording."""
    device, probe = open_probe()
    for least in (1, 2, 4, 10):
        probe.graph_commands = least
        found = [lowering_of(device, count) for count in range(11)]
        assert found == ["stream"] * least + ["graph"] * (11 - least)
        assert lowering_of(device, 100, one_shot=True) == "stream"
        assert lowering_of(device, 100, command_buffer="stream") == "stream"
        assert lowering_of(device, 1, command_buffer="graph") == "graph"
        assert lowering_of(device, 1, command_buffer="graph", one_shot=True) == "graph"
    probe.graph_commands = 0
    assert lowering_of(device, 1000) == "stream"


def test_auto_may_take_a_graph_for_fewer_launches_c4(open_probe):
    """C4: a recording of launches only becomes a graph from `graph_launches` on."""
    device, probe = open_probe()
    kernel = device.compile("__global__ void HAL_BLOCK(1) one(int *y) { *y = 1; }")["one"]
    y = device.allocate(4, dtype=np.int32)
    probe.graph_commands, probe.graph_launches = 3, 2
    for launches, fills, lowering in ((1, 0, "stream"), (2, 0, "graph"), (1, 1, "stream")):
        with device.record() as commands:
            for _ in range(launches):
                commands.dispatch(kernel, grid=1, args=(y,))
            for _ in range(fills):
                commands.fill(y, 1)
        assert commands.lowering == lowering


def test_each_backend_says_from_when_on_a_graph_pays_c4(device):
    """C4: the measured thresholds of benchmarks/lowering.py; two commands on the CPU."""
    assert [lowering_of(device, count) for count in (1, 2, 100)] == ["stream", "graph", "graph"]


def test_graphs_where_there_are_none_are_refused_c4(open_probe, monkeypatch):
    """C4: "graph" is refused by `create_device` and `record`; "auto" replays."""
    device, probe = open_probe()
    probe.features -= {"graphs"}
    with pytest.raises(UnimplementedError, match=r"command_buffer='graph'.*'auto' or 'stream'"):
        device.record(command_buffer="graph")
    with device.record() as commands:
        for _ in range(20):
            commands.fill(device.allocate(4), 1)
    assert commands.lowering == "stream"
    with pytest.raises(InvalidArgumentError, match="'auto', 'graph', 'stream', not 'fast'"):
        device.record(command_buffer="fast")
    with pytest.raises(InvalidArgumentError, match="not 'fast'"):
        hal.create_device("cpu?command_buffer=fast")
    closed = []
    monkeypatch.setattr(probe, "close", lambda: closed.append(probe), raising=False)
    monkeypatch.setattr("hal_cpu.driver.CpuDriver.open_device", lambda *_: probe)
    with pytest.raises(UnimplementedError, match="no native graphs"):
        hal.create_device("cpu?command_buffer=graph")
    assert closed == [probe], "what was opened for nothing is closed"
    monkeypatch.undo()


# Graphs and instances


def test_a_graph_is_made_at_the_first_execution_c4(open_probe):
    """C4: recording and ending make no native call, an execution makes each object once."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    before = sum(probe.calls.values())
    with device.record(command_buffer="graph") as commands:
        for offset in range(4):
            commands.fill(buffer, offset + 1, offset=offset, size=1)
    assert sum(probe.calls.values()) == before
    for _ in range(3):
        device.queue.execute(commands).wait(LIMIT)
    assert count_graph_calls(probe) == [1, 1, 0, 3]
    assert probe.calls["fill"] == 0
    assert buffer.numpy()[:4].tolist() == [1, 2, 3, 4]


def test_new_bindings_update_only_the_nodes_that_use_them_c4(open_probe, image):
    """C4: nodes are updated in place, not by a rebuild; an unchanged table updates none."""
    device, probe = open_probe()
    add = device.load(image)["add"]
    direct = device.upload(np.arange(4, dtype=np.int32))
    with device.record(slots=2, command_buffer="graph") as commands:
        one, two = commands.slots
        commands.fill(one, 3, size=4)  # node 0
        commands.barrier()
        commands.dispatch(add, grid=1, block=4, args=(direct, two, 5))  # 1
        commands.copy(direct, one, size=4, target_offset=8)  # 2
        commands.update(one, b"abcd", offset=12)  # 3
        commands.fill(device.allocate(4), 9)  # 4
    tables = [[device.upload(np.zeros(4, np.int32)) for _ in "ab"] for _ in "abc"]
    mixed = [tables[0][0], tables[1][1]]
    device.queue.execute(commands, bindings=tables[0]).wait(LIMIT)
    for table, updated in (
        (tables[0], set()),
        (tables[1], {0, 1, 2, 3}),
        (tables[1], set()),
        (mixed, {0, 2, 3}),
        ({0: tables[0][0], 1: tables[2][1]}, {1}),
    ):
        probe.updates.clear()
        device.queue.execute(commands, bindings=table).wait(LIMIT)
        assert sorted(index for _, index in probe.updates) == sorted(updated)
    assert count_graph_calls(probe)[:2] == [1, 1]
    assert tables[2][1].numpy().tolist() == [5, 6, 7, 8]


def test_an_instance_is_reused_on_its_stream_and_once_retired_c4(open_probe):
    """C4: while it runs only its last stream launches it; another one makes its own."""
    device, probe = open_probe()
    first, second = device.create_queue(), device.create_queue()
    buffer = device.allocate(4)
    latch = Latch()
    with device.record(command_buffer="graph") as commands:
        commands.fill(buffer, 1)
    probe.hold(latch)
    running = [first.execute(commands) for _ in range(3)]
    assert count_graph_calls(probe)[1] == 1
    running.append(second.execute(commands))
    assert count_graph_calls(probe)[1] == 2
    latch.open()
    hal.wait_all(running, LIMIT)
    third = device.create_queue()
    for queue in (third, second, first, third):
        queue.execute(commands).wait(LIMIT)
    assert count_graph_calls(probe)[1] == 2
    for queue in (first, second):
        probe.hold(latch)
        running.append(queue.execute(commands))
    running.append(third.execute(commands))
    assert count_graph_calls(probe)[1] == 3
    latch.open(2)
    hal.wait_all(running, LIMIT)


def test_the_instance_with_the_right_bindings_comes_first_c4(open_probe):
    """C4: of the usable instances, the one with matching bindings is chosen."""
    device, probe = open_probe()
    queues = [device.create_queue(), device.create_queue()]
    tables = [[device.allocate(4)], [device.allocate(4)]]
    with device.record(slots=1, command_buffer="graph") as commands:
        commands.fill(commands.slots[0], 1, size=4)
    latch = Latch()
    for queue, table in zip(queues, tables, strict=True):
        probe.hold(latch)
        queue.execute(commands, bindings=table)
    latch.open(2)
    device.wait_idle(LIMIT)
    assert count_graph_calls(probe) == [2, 2, 0, 2]
    for queue, table in itertools.product(queues, tables):
        queue.execute(commands, bindings=table).wait(LIMIT)
    assert count_graph_calls(probe) == [2, 2, 0, 6]


# How long they live


def test_instances_live_until_the_last_execution_has_retired_i7(open_probe):
    """I7: 50 executions on several queues, then dropped while they run; the probe looks."""
    device, probe = open_probe()
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]
    targets = [device.upload(np.zeros(256, np.uint8)) for _ in queues]
    latch = Latch()
    with device.record(slots=1, command_buffer="graph") as commands:
        for index in range(256):
            commands.fill(commands.slots[0], index, offset=index, size=1)
    for _ in queues:
        probe.hold(latch)
    pairs = list(zip(queues, targets, strict=True))
    submissions = [
        queue.execute(commands, bindings=[target]) for _ in range(50) for queue, target in pairs
    ]
    del commands
    gc.collect()
    device.trim(1 << 40)
    assert probe.live()["instance"] == 4
    latch.open(4)
    hal.wait_all(submissions, LIMIT)
    for target in targets:
        assert target.numpy().tolist() == list(range(256))
    del submissions
    gc.collect()
    device.wait_idle(LIMIT)
    device.trim(1 << 40)
    assert "instance" not in probe.live()
    assert "graph" not in probe.live()


def test_instances_are_destroyed_with_the_device_i7(open_probe):
    """I7: closing the device destroys instances of live recordings, too."""
    device, probe = open_probe()
    recordings = []
    for index in range(3):
        with device.record(command_buffer="graph") as commands:
            commands.fill(device.allocate(4), 1)
        recordings.append(commands)
        if index:
            device.queue.execute(commands).wait(LIMIT)
    assert probe.live()["instance"] == 2
    assert device.close(LIMIT) == ()
    assert probe.live() == {}
    with pytest.raises(HalError, match="closed"):
        device.queue.execute(recordings[1])


def test_finalisers_make_no_native_call_i10(open_probe):
    """I10: dropping a recording only notes what is to be destroyed."""
    device, probe = open_probe()
    with device.record(command_buffer="graph") as commands:
        commands.fill(device.allocate(4), 1)
    device.queue.execute(commands).wait(LIMIT)
    device.trim(1 << 40)
    before = probe.callers["destroy_graph_instance", threading.get_ident()]
    del commands
    gc.collect()
    assert probe.callers["destroy_graph_instance", threading.get_ident()] == before
    device.trim(1 << 40)
    assert "instance" not in probe.live()
