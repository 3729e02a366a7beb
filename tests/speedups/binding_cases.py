"""Cases of the shortcut of executions with new bindings."""

import sys

import numpy as np
import pytest
from shortcut_harness import Calls, OnlyC, fails, keeps_nothing, main, warm

import hal
from hal_conformance.calls import Holds

SOURCE = """
extern "C" __global__ void HAL_BLOCK(4) add(const int *x, int *y, int n, float scale) {
  y[4 * blockIdx.x + threadIdx.x] += x[threadIdx.x] + n + (int)scale;
}
extern "C" __global__ void HAL_BLOCK(4) fold(int *y, unsigned char n, double scale) {
  y[threadIdx.x] = y[threadIdx.x] * 3 + n + (int)scale;
}
"""
SLOTS = ["i4", ("i4", 32), "scalar", "grid"]
PLAIN = hal.Queue.execute.__wrapped__


class World:
    """Recordings of some launches each, as one launch and as a graph, and buffers for them."""

    def __init__(self, device, **options):
        warm(device)
        self.device, self.queue = device, device.queue
        program = device.compile(SOURCE)
        self.kernels = program["add"], program["fold"]
        self.buffers = [device.upload(np.full(8, 10**i, np.int32)) for i in range(4)]
        self.one = self.record(1, **options)
        self.many = self.record(3, **options)
        for commands in (self.one, self.many):
            for _ in range(2):  # an instance, and what binds it anew
                self.queue.execute(commands, bindings=(*self.buffers[:2], 0, 1)).wait()
        self.wanted = [each.numpy() for each in self.buffers]

    def record(self, count, mode=None, **options):
        add, fold = self.kernels
        mode = mode or ("stream" if count == 1 else "graph")
        with self.device.record(slots=SLOTS, command_buffer=mode, **options) as commands:
            x, y, number, grid = commands.slots
            for index in range(count):
                if index != 1:
                    part = y.subspan(0, 16) if index else y
                    commands.dispatch(add, grid=1 if index else grid, args=(x, part, number, 0.0))
                else:
                    commands.dispatch(fold, grid=1, args=(y, number, number))
                commands.barrier()
        return commands

    def execute(self, commands, x, y, number, grid, execute=hal.Queue.execute):
        """Bind buffers by their numbers, a number and a grid; note what that does to the values."""
        table = (self.buffers[x], self.buffers[y], number, grid)
        for index in range(1 if commands is self.one else 3):
            if index == 1:
                self.wanted[y][:4] = self.wanted[y][:4] * 3 + 2 * int(number)
                continue
            for block in range(1 if index else grid if type(grid) is int else grid[0]):
                self.wanted[y][4 * block : 4 * block + 4] += self.wanted[x][:4] + int(number)
        return execute(self.queue, commands, bindings=table)

    def check(self):
        """Fail unless the buffers have the values that all executions lead to."""
        now = [each.numpy().tolist() for each in self.buffers]
        assert now == [each.tolist() for each in self.wanted]


def as_list(queue, commands, bindings):
    return queue.execute(commands, bindings=list(bindings))


def case_new_bindings_take_no_python_c3(device):
    world = World(device)
    tables = [(0, 1, 5, 1), (2, 3, 0, 2), (2, 3, np.uint8(7), (1, 1)), (1, 0, 7, 1), (1, 0, 7, 1)]
    for commands in (world.one, world.many):
        with OnlyC():
            for table in tables:
                world.execute(commands, *table, as_list)
                last = world.execute(commands, *table)
        last.wait(30)
    world.check()


def case_python_and_the_extension_take_turns_c4(device):
    """Each knows what the other has left in an instance, and a launch of nothing is Python's."""
    world = World(device)
    pick = np.random.default_rng(5)
    for _ in range(300):
        x, y = (int(each) for each in pick.permutation(4)[:2])
        number, grid = int(pick.integers(3)), int(pick.integers(3))
        commands = world.one if pick.integers(2) else world.many
        execute = PLAIN if pick.integers(2) else hal.Queue.execute
        world.execute(commands, x, y, number, grid, execute)
    device.wait_idle(30)
    world.check()


def case_bindings_that_take_turns_have_an_instance_each_c4(device):
    """So none of them is updated; there are up to four for a stream."""
    world = World(device)
    pool = world.many._playback._pool
    for turns, most in ((2, 2), (3, 3), (7, 4)):
        tables = [(0, 1 + number % 3, number, 1) for number in range(turns)]
        for round_ in range(6):
            with Calls() as calls:
                for table in tables:
                    world.execute(world.many, *table)
            assert round_ < 3 or not calls.names, calls.names
            device.wait_idle(30)  # so that there are events
        assert len(pool) <= most
        held = {id(each.rebinder) for each in pool._instances}
        assert len(held) == len(pool)
    if device.backend == "cuda":
        sim = fails("cuGraphExecKernelNodeSetParams", 0, device)
        before = sim.calls("cuGraphExecKernelNodeSetParams")
        for number in (6, 5, 6, 5):
            world.execute(world.many, 0, 1 + number % 3, number, 1)
        assert sim.calls("cuGraphExecKernelNodeSetParams") == before
    device.wait_idle(30)
    world.check()


def case_queues_have_instances_of_their_own_c4(device):
    world = World(device)
    queues = [device.queue, device.create_queue(), device.create_queue()]
    targets = [device.upload(np.zeros(8, np.int32)) for _ in queues]
    for number in range(60):
        for queue, target in zip(queues, targets, strict=True):
            queue.execute(world.many, bindings=(world.buffers[0], target, number % 2, 1))
    device.wait_idle(30)
    assert len({tuple(each.numpy().tolist()) for each in targets}) == 1


def case_what_does_not_fit_is_refused_as_before_c3(device):
    world, beside = World(device, hazards="auto"), hal.create_device("cpu")
    x, y = world.buffers[:2]
    closed = device.allocate(32, dtype=np.int32)
    closed.close()
    read_only = device.allocate(32, dtype=np.int32, usage=hal.BufferUsage.TRANSFER_SOURCE)
    for commands in (world.one, world.many):
        for table in (
            (),
            (x, y, 1),
            (x, y, 1, 1, 1),
            (x, y.subspan(0, 4), 1, 1),
            (x, device.allocate(33).subspan(1, 32), 1, 1),
            (x, y.view(np.float32), 1, 1),
            (x, y, 1.5, 1),
            (x, y, 256, 2**31),
            (x, y, x, 1),
            (x, y, 1, x),
            (1, y, 1, 1),
            (x, closed, 1, 1),
            (x, read_only, 1, 1),
            (x, beside.upload(np.zeros(8, np.int32)), 1, 1),
            (y, y, 1, 1),
            (y.subspan(0, 16), y, 1, 1),
        ):
            told = []
            for execute in (PLAIN, hal.Queue.execute):
                try:
                    execute(world.queue, commands, bindings=table)
                except hal.HalError as error:
                    told.append((type(error), str(error)))
                else:
                    told.append(None)
            assert told[0] == told[1]
            # One launch has no order that bindings could break.
            assert told[0] is not None or (commands is world.one and table[0] is not x)
    beside.close()
    device.wait_idle(30)


def case_bytes_used_directly_are_apart_c2(device):
    world, direct = World(device), device.upload(np.zeros(8, np.int32))
    add, _ = world.kernels
    with device.record(slots=1, hazards="auto", command_buffer="graph") as commands:
        commands.dispatch(add, grid=1, args=(world.buffers[0], commands.slots[0], 1, 0.0))
        commands.dispatch(add, grid=1, args=(direct, world.buffers[1], 1, 0.0))
    for _ in range(3):
        world.queue.execute(commands, bindings=(world.buffers[2],)).wait()
    for refused in (direct, world.buffers[1], world.buffers[0]):
        with pytest.raises(hal.errors.InvalidArgumentError, match="shares bytes"):
            world.queue.execute(commands, bindings=(refused,))


def case_memory_of_an_alloca_is_bound_and_noted_m3(device):
    world, queue = World(device), device.queue
    temporary = queue.alloca(32, dtype=np.int32)
    temporary.allocation.wait()
    queue.fill(temporary, 2)
    with OnlyC():
        last = queue.execute(world.many, bindings=(world.buffers[0], temporary, 1, 1))
    assert temporary._storage.uses[-1] is last
    queue.dealloca(temporary)
    device.wait_idle(30)


def case_buffers_live_until_it_has_ended_and_no_longer_q5(device):
    world = World(device)
    queue = device.queue
    held = [world.buffers[0]._storage, world.one, world.many, world.kernels[0]]

    def run(count):
        for number in range(count):
            for commands in (world.one, world.many):
                table = world.buffers[number % 2], world.buffers[1 - number % 2], 1, 1
                queue.execute(commands, bindings=table)

    keeps_nothing(run, held, device, 100, 1000)
    target = device.upload(np.zeros(8, np.int32))
    with Holds(device._native) as holds:
        holds.hold(queue._stream)
        with OnlyC():
            queue.execute(world.many, bindings=(world.buffers[0], target, 0, 1))
        storage, alone = target._storage, object()
        target.close()
        assert sys.getrefcount(storage) == sys.getrefcount(alone) + 1  # in the operation
    device.wait_idle(30)


def case_a_refused_update_is_repeated_c4(device):
    """Where the first, the second or each update fails: the software driver only."""
    if device.backend != "cuda":
        return
    world, function = World(device), "cuGraphExecKernelNodeSetParams"
    tables = [(0, 1, 1, 1), (2, 3, 2, 2)] * 2
    for fail in (1, 2, 3):
        for table in tables:
            sim = fails(function, 0, device)
            sim.fail(function, fail, 999)
            world.execute(world.many, *table).wait(30)
            assert not sim.fail_none()
    fails(function, 6, device)  # the driver takes none: Python makes a new instance
    world.execute(world.many, 0, 1, 1, 1).wait(30)
    sim.fail_none()
    world.check()


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
