"""The edges of native graphs, whose nodes run as awkwardly as these allow (C1, C2, I8)."""

import numpy as np
import pytest
from core_harness import LIMIT

from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native import EmptyNode


@pytest.fixture(params=["backward", 1, 2, 3])
def shuffled(open_probe, request):
    """A device whose graphs run in an awkward order."""
    device, probe = open_probe()
    probe.graph_order = request.param
    device._command_buffer = "graph"
    return device, probe


def test_events_order_what_they_split_c1(shuffled):
    """C1: commands before the signal come before those after the wait, through several events."""
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


def test_an_event_covers_what_an_earlier_event_covers_i8(shuffled):
    """I8: what was waited for just before the signal is part of what the signal stands for."""
    device, probe = shuffled
    one, two, both = (device.upload(np.zeros(4, np.uint8)) for _ in range(3))
    with device.record() as commands:
        early, late = commands.create_event(), commands.create_event()
        commands.fill(one, 1)
        commands.signal_event(early)
        commands.fill(two, 2)
        commands.wait_events(early)
        commands.signal_event(late)
        commands.wait_events(late)
        commands.copy(one, both, size=2)
        commands.copy(two, both, target_offset=2, size=2)
    device.queue.execute(commands).wait(LIMIT)
    assert both.numpy().tolist() == [1, 1, 2, 2]
    dependencies = next(iter(probe.graphs.values()))[1]
    for node in (len(dependencies) - 2, len(dependencies) - 1):
        before = set()
        stack = [node]
        while stack:
            new = set(dependencies[stack.pop()]) - before
            before |= new
            stack += new
        assert before >= {0, 1}


def test_an_event_orders_beside_the_bytes_c1(shuffled):
    """C1, C2: a wait orders what follows it, though its bytes come after other commands."""
    device, probe = shuffled
    one, two, three = (device.upload(np.zeros(4, np.uint8)) for _ in range(3))
    with device.record(hazards="auto") as commands:
        event = commands.create_event()
        commands.fill(one, 1)
        commands.signal_event(event)
        commands.fill(two, 2)
        commands.wait_events(event)
        commands.copy(two, three)
    device.queue.execute(commands).wait(LIMIT)
    assert three.numpy().tolist() == [2] * 4
    assert sorted(next(iter(probe.graphs.values()))[1][2]) == [0, 1]


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
        for names in ("x", 3, None):
            with pytest.raises(ArgumentTypeError, match="a list of names is needed"):
                commands.dispatch(program["add"], grid=1, block=1, args=(x, y, 1), reads=names)
    device.queue.execute(commands).wait(LIMIT)
    dependencies = next(iter(probe.graphs.values()))[1]
    assert [sorted(each) for each in dependencies] == [[], [0], [0], [1, 2]]


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
