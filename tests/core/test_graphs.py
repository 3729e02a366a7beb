"""How recordings are run: native graphs, stream replay, and grids in memory (C4, I7, I8)."""

from __future__ import annotations

import functools
import gc
import itertools
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch, collect_in_threads
from graph_probe import GRAPH_CALLS

import hal
from hal.errors import (
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal.native import EmptyNode

SOURCE = """
__global__ void add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
__global__ void ids(unsigned *out) {
  out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] += 1;
}
__global__ void choose(unsigned *counts, unsigned x) {
  counts[0] = x; counts[1] = 2; counts[2] = 1;
}
"""

MODES = ("stream", "graph")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def image():
    """The bytes of the program, compiled once."""
    with hal.create_device("cpu") as device:
        return device.compile(SOURCE, filename="graphs.cpp").image


def count_graph_calls(probe):
    return [probe.calls[name] for name in GRAPH_CALLS]


# The choice


def test_the_way_is_chosen_by_device_and_recording_c4():
    for spec, expected in (
        ("cpu", ["graph", "graph", "stream"]),
        ("cpu?command_buffer=auto", ["graph", "graph", "stream"]),
        ("cpu?command_buffer=graph", ["graph", "graph", "stream"]),
        ("cpu?command_buffer=stream", ["stream", "graph", "stream"]),
    ):
        with hal.create_device(spec) as device:
            found = []
            for command_buffer in (None, "graph", "stream"):
                with device.record(command_buffer=command_buffer) as commands:
                    assert commands.lowering is None
                    for index in range(8):
                        commands.fill(device.allocate(4), index)
                found.append(commands.lowering)
            assert found == expected


def lowering_of(device, count, **options):
    with device.record(**options) as commands:
        for _ in range(count):
            commands.fill(device.allocate(4), 1)
    return commands.lowering


def test_auto_takes_a_graph_where_the_backend_has_measured_that_it_pays_c4(open_probe):
    """C4: from `graph_commands` on, and never for a recording that runs once."""
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


def test_each_backend_says_from_when_on_a_graph_pays_c4(device):
    """C4: what benchmarks/lowering.py found; on the CPU, four commands."""
    assert [lowering_of(device, count) for count in (1, 3, 4, 100)] == [
        *["stream"] * 2,
        *["graph"] * 2,
    ]


def test_graphs_where_there_are_none_are_refused_c4(open_probe, monkeypatch):
    """C4: by name, at `create_device` and at `record`; "auto" does without."""
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
    """C4: in place, not by a rebuild; the same table updates nothing."""
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


def test_an_instance_lives_as_long_as_whoever_took_it_i7(open_probe):
    """I7: the execution that made it has retired, the recording is gone, another one runs it."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    latch = Latch()
    with device.record(command_buffer="graph") as commands:
        commands.fill(buffer, 1)
    device.queue.execute(commands).wait(LIMIT)
    probe.hold(latch)
    running = device.queue.execute(commands)
    del commands
    gc.collect()
    device.statistics()
    assert probe.live()["instance"] == 1
    latch.open()
    running.wait(LIMIT)
    gc.collect()
    device.statistics()
    assert "instance" not in probe.live()


def test_the_instance_with_the_right_bindings_comes_first_c4(open_probe):
    """C4: of those that may be used."""
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


def test_zero_sizes_and_empty_grids_make_no_nodes_c4(open_probe, image, mode):
    """C4: nor calls; a recording of nothing else still orders and signals."""
    device, probe = open_probe()
    ids = device.load(image)["ids"]
    buffer = device.upload(np.zeros(8, np.uint32))
    with device.record(command_buffer=mode, slots=1) as commands:
        commands.fill(buffer, 1, size=0)
        commands.barrier()
        commands.copy(buffer, commands.slots[0], size=0)
        for grid in (0, (0, 1), (1, 0, 1), (0, 0, 0)):
            commands.dispatch(ids, grid=grid, block=1, args=(buffer,))
        commands.barrier()
        commands.update(commands.slots[0], b"")
    assert len(commands) == 0
    before = sum(probe.calls[name] for name in ("fill", "copy", "launch", *GRAPH_CALLS))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    submission = device.queue.execute(
        commands, bindings=[buffer], wait=gate.at(1), signal=done.at(1)
    )
    assert submission.state == "pending"
    gate.signal(1)
    done.wait(1, LIMIT)
    after = sum(probe.calls[name] for name in ("fill", "copy", "launch", *GRAPH_CALLS))
    assert after == before
    assert not buffer.numpy().any()


# Order: with the nodes in the most awkward order that the edges allow


@pytest.fixture(params=["backward", 1, 2, 3])
def shuffled(open_probe, request):
    """A device whose graphs run in an awkward order."""
    device, probe = open_probe()
    probe.graph_order = request.param
    device._command_buffer = "graph"
    return device, probe


def test_barriers_order_what_edges_must_i8(shuffled):
    """I8: barriers with nothing before them, and doubled ones; each phase copies the last."""
    device, _ = shuffled
    cells = [device.upload(np.full(8, each, np.uint8)) for each in range(6)]
    with device.record() as commands:
        commands.barrier()
        for source, target in itertools.pairwise(cells):
            for index in range(8):
                commands.copy(source, target, source_offset=index, target_offset=index, size=1)
            commands.barrier()
            commands.barrier()
    device.queue.execute(commands).wait(LIMIT)
    assert [cell.numpy().tolist() for cell in cells] == [[0] * 8] * 6


def test_events_order_what_they_split_c1(shuffled):
    """C1: what is before the signal with what is after the wait, through several of them."""
    device, probe = shuffled
    one, two, three, free = (device.upload(np.zeros(4, np.uint8)) for _ in range(4))
    with device.record() as commands:
        early, late = commands.create_event(), commands.create_event(name="late")
        commands.fill(one, 1)
        commands.signal_event(early)
        commands.fill(two, 2)
        commands.signal_event(late)
        commands.fill(free, 9)
        commands.wait_events(early)
        commands.copy(one, three, size=2)
        commands.wait_events(early, late)
        commands.copy(two, three, target_offset=2, size=2)
        commands.reset_event(early)
        commands.signal_event(early)
        commands.wait_events(early)
        commands.copy(three, one)
        commands.fill(free, 8, size=1)
    device.queue.execute(commands).wait(LIMIT)
    assert one.numpy().tolist() == three.numpy().tolist() == [1, 1, 2, 2]
    assert free.numpy().tolist() == [8, 9, 9, 9]
    dependencies = next(iter(probe.graphs.values()))[1]
    assert dependencies[:3] == ((), (), ())
    assert dependencies[3] == (0,)


def test_derived_order_is_enough_c2(shuffled, image):
    """C2: a chain through kernels, copies, fills and updates, forks and joins, with no barrier."""
    device, probe = shuffled
    add = device.load(image)["add"]
    a, b, c, d = (device.upload(np.zeros(8, np.int32)) for _ in range(4))
    with device.record(hazards="auto") as commands:
        commands.fill(a, 1)
        commands.dispatch(add, grid=1, block=8, args=(a, b, 10))
        commands.dispatch(add, grid=1, block=8, args=(a, c, 20))
        commands.fill(a, 5)  # after both have read
        commands.copy(b, d, size=16)
        commands.copy(c, d, source_offset=16, target_offset=16, size=16)
        commands.update(b, np.full(8, 7, np.int32))
        commands.dispatch(add, grid=1, block=8, args=(d, c, 100))
    nodes = len(commands)
    device.queue.execute(commands).wait(LIMIT)
    assert a.numpy().tolist() == [5] * 8
    assert b.numpy().tolist() == [7] * 8
    assert c.numpy().tolist() == [111] * 4 + [121] * 4
    assert d.numpy().tolist() == [11] * 4 + [21] * 4
    recorded, dependencies, _ = next(iter(probe.graphs.values()))
    assert len(recorded) == nodes, "no empty nodes"
    # 0 -> 1, 2; 1, 2 -> 3; 1 -> 4; 2 -> 5; 4 -> 6; 4, 5 -> 7
    assert [sorted(each) for each in dependencies] == [
        [], [0], [0], [1, 2], [1], [2], [4], [4, 5]
    ]  # fmt: skip


def test_reads_and_writes_may_be_narrowed_c2(open_probe, image):
    """C2: two kernels that only read, by their types or as `dispatch` says, may run at once."""
    device, probe = open_probe()
    program = device.load(image)
    x, y, z = (device.upload(np.zeros(8, np.uint32)) for _ in range(3))
    with device.record(hazards="auto", command_buffer="graph") as commands:
        commands.fill(x, 0)  # 0
        commands.dispatch(program["add"], grid=1, block=1, args=(x, y, 1))  # 1: reads x
        commands.dispatch(program["ids"], grid=1, block=1, args=(x,), reads=["out"])  # 2
        commands.dispatch(program["add"], grid=1, block=1, args=(x, z, 1), writes=["x"])  # 3
        for names, words in ((["nothing"], "'nothing'"), (["amount"], "'amount'")):
            for what in ("reads", "writes"):
                with pytest.raises(InvalidArgumentError, match=f"{what} names {words}"):
                    commands.dispatch(
                        program["add"], grid=1, block=1, args=(x, y, 1), **{what: names}
                    )
        with pytest.raises(TypeError, match="list of parameters' names"):
            commands.dispatch(program["add"], grid=1, block=1, args=(x, y, 1), reads="x")
    device.queue.execute(commands).wait(LIMIT)
    dependencies = next(iter(probe.graphs.values()))[1]
    assert [sorted(each) for each in dependencies] == [[], [0], [0], [1, 2]]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 1000, 20_000])
@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_any_number_of_commands_c4(device, mode, hazards, count):
    """C4: wide, then joined; the same result from both."""
    source, target = device.allocate(4 * count), device.allocate(4 * count)
    with device.record(command_buffer=mode, hazards=hazards) as commands:
        for index in range(count):
            commands.fill(source, np.uint32(index + 1), offset=4 * index, size=4)
        if hazards == "manual":
            commands.barrier()
        commands.copy(source, target)
    assert len(commands) == count + 1
    for _ in range(2):
        device.queue.fill(target, 0)
        done = device.queue.execute(commands)
    result = target.numpy(np.uint32, wait=done, timeout=3 * LIMIT)
    assert (result == np.arange(1, count + 1, dtype=np.uint32)).all()


def test_every_empty_node_joins_several_i8(open_probe):
    """I8: one for each barrier that has several commands on both sides, and no other."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    with device.record(command_buffer="graph") as commands:
        for count in (3, 3, 1, 3, 1, 1, 2):
            for index in range(count):
                commands.fill(buffer, 1, offset=index, size=1)
            commands.barrier()
    device.queue.execute(commands).wait(LIMIT)
    nodes = next(iter(probe.graphs.values()))[0]
    assert [index for index, node in enumerate(nodes) if isinstance(node, EmptyNode)] == [3]


# Life


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
    device.statistics()
    assert probe.live()["instance"] == 4
    latch.open(4)
    hal.wait_all(submissions, LIMIT)
    for target in targets:
        assert target.numpy().tolist() == list(range(256))
    del submissions
    gc.collect()
    device.wait_idle(LIMIT)
    device.statistics()
    assert "instance" not in probe.live()
    assert "graph" not in probe.live()


def test_a_recording_is_dropped_while_others_execute_it(device, mode):
    """Threads execute a recording to which the last name goes meanwhile."""
    buffers = [device.upload(np.zeros(64, np.uint8)) for _ in range(4)]
    with device.record(slots=1, command_buffer=mode) as commands:
        for index in range(64):
            commands.fill(commands.slots[0], 7, offset=index, size=1)
    box = [commands]
    del commands
    ready = threading.Barrier(5, timeout=LIMIT)

    def run(buffer):
        mine = box[0]
        ready.wait()
        done = [device.queue.execute(mine, bindings=[buffer]) for _ in range(30)]
        del mine
        hal.wait_all(done, LIMIT)

    def drop():
        ready.wait()
        box.clear()
        for _ in range(20):
            gc.collect()

    collect_in_threads([drop, *(functools.partial(run, buffer) for buffer in buffers)])
    for buffer in buffers:
        assert buffer.numpy().tolist() == [7] * 64


def test_instances_are_destroyed_with_the_device_i7(open_probe):
    """I7: although recordings are alive, executed and not; nothing is left but what was closed."""
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
    device.statistics()
    before = probe.callers["destroy_graph_instance", threading.get_ident()]
    del commands
    gc.collect()
    assert probe.callers["destroy_graph_instance", threading.get_ident()] == before
    device.statistics()
    assert "instance" not in probe.live()


# Failure

FAULTS = {
    "operation": lambda: OperationError("injected", native_code=7),
    "memory": lambda: OutOfMemoryError("injected"),
    "foreign": lambda: RuntimeError("injected"),
    "lost": lambda: DeviceLostError("injected"),
}

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
    call, kind = {
        "stream": ("fill", OperationError),
        "graph": ("update_graph", OutOfMemoryError),
    }[mode]
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


# Grids in memory

WAYS = ("stream", "graph", "host")


@pytest.fixture(params=WAYS)
def indirect(open_probe, image, request):
    """A device that launches over grids in memory in one of the ways, its probe and kernels."""
    device, probe = open_probe()
    way = request.param
    if way == "host":
        probe.features -= {"indirect_dispatch"}
    else:
        device._command_buffer = way
    return device, probe, device.load(image), way


def test_a_grid_in_memory_c1(indirect):
    """C1: from a buffer, a part of one, and a slot; written before, or by a kernel of the same."""
    device, _, program, way = indirect
    grids = device.upload(np.array([9, 2, 3, 1, 0, 0, 0, 9], np.uint32))
    counted = [device.upload(np.zeros(32, np.uint32)) for _ in range(3)]
    made = device.allocate(12)
    with device.record(slots=2) as commands:
        out, counts = commands.slots
        commands.dispatch(program["ids"], grid=grids.subspan(4, 12), block=1, args=(counted[0],))
        commands.dispatch(program["choose"], grid=1, block=1, args=(made, 4))
        commands.barrier()
        commands.dispatch(program["ids"], grid=made, block=1, args=(counted[1],))
        commands.dispatch(program["ids"], grid=counts, block=1, args=(out,))
        commands.dispatch(program["ids"], grid=counts.subspan(4), block=1, args=(out,))
    assert commands.lowering == way
    for count in range(1, 4):
        given = device.upload(np.array([3, 1, 2, 5], np.uint32))
        target = device.upload(np.zeros(32, np.uint32))
        done = device.queue.execute(commands, bindings=[target, given])
        assert target.numpy(wait=done).tolist() == [2] * 6 + [1] * 4 + [0] * 22
        assert counted[0].numpy().tolist() == [count] * 6 + [0] * 26
        assert counted[1].numpy().tolist() == [count] * 8 + [0] * 24


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_an_empty_grid_in_memory_launches_nothing_c4(indirect, grid):
    device, _, program, _ = indirect
    counts = device.upload(np.array(grid, np.uint32))
    target = device.upload(np.zeros(4, np.uint32))
    with device.record() as commands:
        commands.dispatch(program["ids"], grid=counts, block=1, args=(target,))
    device.queue.execute(commands).wait(LIMIT)
    device.queue.dispatch(program["ids"], grid=counts, block=1, args=(target,)).wait(LIMIT)
    assert not target.numpy().any()


def test_a_queue_dispatches_over_a_grid_in_memory_c1(indirect):
    """C1: in the queue's order, after and before others, and behind waits."""
    device, _, program, _ = indirect
    counts = device.upload(np.array([9, 9, 9], np.uint32))
    target, copied = (device.upload(np.zeros(16, np.uint32)) for _ in range(2))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    device.queue.update(counts, np.array([2, 2, 2], np.uint32), wait=gate.at(1))
    first = device.queue.dispatch(program["ids"], grid=counts, block=1, args=(target,))
    device.queue.update(counts, np.array([3, 1, 1], np.uint32))
    device.queue.dispatch(program["ids"], grid=counts, block=1, args=(target,))
    device.queue.copy(target, copied, signal=done.at(1))
    assert first.state == "pending"
    gate.signal(1)
    done.wait(1, LIMIT)
    assert copied.numpy().tolist() == [2] * 3 + [1] * 5 + [0] * 8


def test_a_grid_without_an_address_yet_m3(indirect):
    """M3: grid and arguments from `alloca`, resolved when the dispatch is issued."""
    device, _, program, _ = indirect
    gate = hal.create_semaphore()
    counts = device.queue.alloca(12, wait=gate.at(1))
    target = device.queue.alloca(64, dtype=np.uint32)
    device.queue.update(counts, np.array([3, 1, 1], np.uint32))
    device.queue.fill(target, 0)
    done = device.queue.dispatch(program["ids"], grid=counts, block=1, args=(target,))
    gate.signal(1)
    assert target.numpy(wait=done).tolist() == [1] * 3 + [0] * 13
    never = hal.create_semaphore()
    late = device.queues.upload.alloca(64, wait=never.at(1))
    for grid, args in ((late, (target,)), (counts, (late,)), (1, (late,))):
        failing = device.queue.dispatch(program["ids"], grid=grid, block=1, args=args)
        with pytest.raises(OperationError, match="alloca"):
            failing.wait(LIMIT)
    never.signal(1)


def test_grids_in_memory_that_cannot_be_c1(indirect):
    device, _, program, way = indirect
    ids, target = program["ids"], device.allocate(64)
    memory = device.upload(np.zeros(8, np.uint32))
    with device.record(slots=[(np.uint32, 8)]) as commands:
        for grid in (memory.subspan(0, 8), memory.subspan(2, 12), commands.slots[0]):
            for dispatch in (commands.dispatch, device.queue.dispatch):
                with pytest.raises(
                    (InvalidArgumentError, TypeError), match=r"12 bytes|a grid|grid"
                ):
                    dispatch(ids, grid=grid, block=1, args=(target,))
    no_grid = device.allocate(12, usage=hal.BufferUsage.DISPATCH)
    with pytest.raises(InvalidArgumentError, match="INDIRECT"):
        device.queue.dispatch(ids, grid=no_grid, block=1, args=(target,))
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="INDIRECT"):
        commands.dispatch(ids, grid=no_grid, block=1, args=(target,))
    if way == "host":
        device.queue.update(memory, np.array([1, 70_000, 1], np.uint32))
        failing = device.queue.dispatch(ids, grid=memory, block=1, args=(target,))
        with pytest.raises(OperationError, match="70000 blocks along y"):
            failing.wait(LIMIT)


HOST_CALLS = (
    *("create_stream", "fill", "launch", "copy_to_host"),
    *("synchronize_stream", "destroy_stream"),
)


def test_an_execution_on_the_host_ends_when_its_work_has_q5(open_probe, image):
    """Q5: not before its stream is idle, which is destroyed then."""
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
