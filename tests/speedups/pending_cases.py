"""Cases of executions with bindings that stand in line, and are issued, by C alone.

The conformance suite has the same rules for both engines (`command_buffers/test_pending_slots.py`).
"""

import sys

import numpy as np
import pytest
from binding_cases import PLAIN, World
from core_harness import wait_until
from shortcut_harness import OnlyC, fails, in_threads, keeps_nothing, main

import hal
from hal.errors import ClosedError, InvalidArgumentError, SemaphoreFailedError

TABLES = [(0, 1, 5, 1), (2, 3, 0, 2), (2, 3, 7, (1, 1)), (1, 0, 7, 1), (3, 1, 9, 2), (0, 1, 5, 1)]


class Pending(World):
    """Those recordings and one of three launches on the stream, executed when `go` is signalled."""

    def __init__(self, device, **options):
        super().__init__(device, **options)
        self.three = self.record(3, mode="stream")
        for _ in range(2):
            self.execute(self.three, 0, 1, 0, 1).wait()
        self.all = (self.one, self.many, self.three)
        self.go, self.value = hal.create_semaphore(name="go"), 0

    def later(self, commands, *table):
        """Have an execution wait for the next value."""
        return self.execute(commands, *table, execute=self._wait)

    def _wait(self, queue, commands, bindings):
        return queue.execute(commands, bindings=bindings, wait=self.go.at(self.value + 1))

    def signal(self):
        self.value += 1
        self.go.signal(self.value)


def case_bindings_stand_in_line_and_are_issued_in_c_c3(device):
    """No two tables mix; one launch, a graph, and several launches on the stream."""
    world = Pending(device)
    for commands in world.all:
        with OnlyC():
            for table in TABLES:
                last = world.later(commands, *table)
        assert last.state == "pending"
        with OnlyC():
            world.signal()
        last.wait(30)
        world.check()


def case_the_payload_is_that_of_python_c3(device):
    """The function, its arguments and the table, field by field."""
    world = Pending(device)
    table = (*world.buffers[:2], np.uint8(7), (2, 1))
    for commands in world.all:
        made = [
            execute(world.queue, commands, bindings=table, wait=world.go.at(1))
            for execute in (PLAIN, hal.Queue.execute)
        ]
        functions = [each._function for each in made]
        if commands is world.many:
            assert functions[0] == functions[1]
            tables = [each._arguments[1] for each in made]
            leases = [each._arguments[2] for each in made]
            assert made[0]._arguments[0] is made[1]._arguments[0]
            assert leases[0] is not leases[1]
            assert [each.instance for each in leases] == [None, None]
            assert leases[1] in made[1]._resources
        else:
            slots = ("left", "is_starved", "_done", "visits", "_playback", "replica")
            for slot in slots:
                assert getattr(functions[0], slot) == getattr(functions[1], slot)
            tables = [each.table for each in functions]
        assert tables[0] == tables[1]
        assert [*map(type, tables[0])] == [*map(type, tables[1])]
        assert all(each.cancel() for each in made)


def case_what_does_not_fit_is_refused_when_it_is_submitted_c3(device):
    world = Pending(device)
    x, y = world.buffers[:2]
    for commands in world.all:
        for table in ((x, y, 1), (x, y.subspan(0, 4), 1, 1), (x, y, x, 1), (x, y, 1, 2**31)):
            told = []
            for execute in (PLAIN, hal.Queue.execute):
                with pytest.raises(hal.HalError) as caught:
                    execute(world.queue, commands, bindings=table, wait=world.go.at(1))
                told.append((type(caught.value), str(caught.value)))
            assert told[0] == told[1]
    assert not world.queue._backlog
    assert world.go._recorded is None


def case_an_empty_grid_is_pythons_c4(device):
    world = Pending(device)
    for commands in world.all:
        for grid in (1, 0, 2, 0):
            last = world.later(commands, 0, 1, 1, grid)
        world.signal()
        last.wait(30)
        world.check()


def case_buffers_live_until_it_has_ended_q5(device):
    """They are in the operation, and come back with it; nothing is kept for long."""
    world = Pending(device)
    held = [world.buffers[0]._storage, *world.all, world.kernels[0]]

    def run(count):
        for number in range(count):
            for commands in world.all:
                world.later(commands, number % 2, 1 - number % 2, 1, 1)
            if not number % 20:
                world.signal()
                device.wait_idle(30)  # or the pool of events grows
        world.signal()

    keeps_nothing(run, held, device, 100, 1000)
    for commands in world.all:
        target = device.upload(np.zeros(8, np.int32))
        with OnlyC():
            last = world._wait(world.queue, commands, (world.buffers[0], target, 0, 1))
        storage, alone = target._storage, object()
        target.close()
        assert sys.getrefcount(storage) == sys.getrefcount(alone) + 1  # in the operation
        world.signal()
        last.wait(30)
        wait_until(lambda held=[storage]: sys.getrefcount(held[0]) == 3)  # here, too


def case_it_ends_without_its_issue_s5_q7(device):
    """Its wait fails, it is cancelled, or its queue is closed: its buffers are free at once."""
    world = Pending(device)
    before = world.buffers[0].numpy().tolist()
    closing = device.create_queue()
    for commands in world.all:
        for end in ("fail", "cancel", "close"):
            go, target = hal.create_semaphore(), device.upload(np.zeros(8, np.int32))
            queue = closing if end == "close" else world.queue
            storage = target._storage
            bindings = (world.buffers[0], target, 1, 1)
            for _ in range(2):
                queue.execute(commands, bindings=(*world.buffers[:2], 0, 1)).wait()
            left = queue.execute(commands, bindings=bindings, wait=go.at(1))
            del target, bindings
            if end == "fail":
                go.fail(ValueError("on purpose"))
                with pytest.raises(SemaphoreFailedError, match="on purpose"):
                    left.wait(30)
            elif end == "cancel":
                assert left.cancel()
            else:
                closing.close()
                closing = device.create_queue()
            assert left.state == ("failed" if end == "fail" else "cancelled")
            wait_until(lambda held=[storage]: sys.getrefcount(held[0]) == 3)  # here, too
    assert world.buffers[0].numpy().tolist() == before


def case_a_one_shot_is_executed_once_c1(device):
    """Also if it waits; a refused submission does not use it up."""
    world, target = Pending(device), device.upload(np.zeros(8, np.int32))
    for mode in ("stream", "graph"):
        with device.record(slots=1, one_shot=True, command_buffer=mode) as commands:
            slot = commands.slots[0]
            commands.dispatch(world.kernels[1], grid=1, args=(slot, 2, 0.0))
        with pytest.raises(InvalidArgumentError):
            world.queue.execute(commands, wait=world.go.at(world.value + 1))
        last = world._wait(world.queue, commands, [target])
        with pytest.raises(ClosedError):
            world._wait(world.queue, commands, [target])
        world.signal()
        last.wait(30)
    assert target.numpy().tolist() == [8] * 4 + [0] * 4


def case_pending_bindings_that_take_turns_have_an_instance_each_c4(device):
    world = Pending(device)
    pool = world.many._playback._pool
    for turns, most in ((2, 2), (7, 4)):
        tables = [(0, 1 + number % 3, number, 1) for number in range(turns)]
        for _ in range(5):
            with OnlyC():
                for table in tables:
                    last = world.later(world.many, *table)
            world.signal()
            last.wait(30)
        assert len(pool) <= most
    with OnlyC():
        for table in tables[:4]:
            last = world.later(world.many, *table)
        world.signal()
    last.wait(30)
    world.check()


def case_a_refused_call_is_repeated_at_the_issue_c4(device):
    """Of a graph's nodes, of the graph, or of the stream: the software driver only."""
    if device.backend != "cuda":
        return
    world = Pending(device)
    functions = {
        world.one: ["cuLaunchKernel"],
        world.three: ["cuLaunchKernel"],
        world.many: ["cuGraphExecKernelNodeSetParams", "cuGraphLaunch"],
    }
    number = 0
    for commands, names in functions.items():
        for name in names:
            for fail in (1, 2, 3):
                for _ in range(3):  # none twice: Python launches those that take turns
                    number += 1
                    last = world.later(commands, 0, 1, number, 1)
                sim = fails(name, 0, device)
                sim.fail(name, fail, 999)
                world.signal()
                last.wait(30)
                sim.fail_none()
                world.check()


def case_a_refused_launch_of_several_is_repeated_c4(device):
    """The first, the second or the third, without a wait: those before it are not made again."""
    if device.backend != "cuda":
        return
    world = Pending(device)
    for fail in (1, 2, 3):
        for table in TABLES:
            sim = fails("cuLaunchKernel", 0, device)
            sim.fail("cuLaunchKernel", fail, 999)
            world.execute(world.three, *table).wait(30)
            assert not sim.fail_none()
    world.check()


def case_threads_bind_one_recording_on_full_streams_c3(device):
    """Where the locks are let go: what one thread's launches read no other thread writes."""
    world = Pending(device)
    count, rounds = 3, 150
    queues = [device.create_queue() for _ in range(count)]
    targets = [device.upload(np.zeros(8, np.int32)) for _ in range(count)]
    source = device.upload(np.zeros(8, np.int32))

    def work(index):
        for number in range(rounds):
            for commands in world.all:
                table = (source, targets[index], (index + number) % 7, 1)
                queues[index].execute(commands, bindings=table)

    for queue in queues:
        assert queue.stream_handle  # others may fill its stream
    in_threads(*[lambda index=index: work(index) for index in range(count)])
    device.wait_idle(60)
    for index, target in enumerate(targets):
        wanted = np.int32(0)
        with np.errstate(over="ignore"):
            for number in range(rounds):
                given = np.int32((index + number) % 7)
                wanted += given
                for _ in range(2):
                    wanted = (wanted + given) * np.int32(3) + np.int32(2) * given + given
        assert target.numpy().tolist() == [wanted] * 4 + [0] * 4


def case_python_and_the_extension_take_turns_with_pending_ones_c4(device):
    world = Pending(device)
    pick = np.random.default_rng(7)
    for _ in range(300):
        x, y = (int(each) for each in pick.permutation(4)[:2])
        table = (x, y, int(pick.integers(3)), int(pick.integers(3)))
        commands = world.all[pick.integers(3)]
        kind = pick.integers(4)
        if kind == 3:
            world.signal()
        elif kind == 2:
            world.later(commands, *table)
        else:
            world.execute(commands, *table, PLAIN if kind else hal.Queue.execute)
    world.signal()
    device.wait_idle(30)
    world.check()


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
