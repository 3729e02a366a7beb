"""Recordings with collectives: what they refuse, and how they fail (C1, G1, G3)."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    ClosedError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    OperationError,
)
from hal_conformance.suite.collectives.members import buffer_of, failure_of, reduce
from hal_conformance.suite.support import LIMIT

Group = hal.collectives.Group


def record(group: Group, buffer: hal.Buffer, op: str = "sum") -> hal.CommandBuffer:
    """Record an all-reduce of twos, with a command before and one behind it."""
    with group.device.record() as commands:
        commands.fill(buffer, 2.0)
        commands.barrier()
        commands.all_reduce(buffer, group=group, op=op)
        commands.barrier()
        commands.copy(buffer, group.device.empty(8, np.float32))
    return commands


def test_executions_stand_in_the_order_of_the_group_g1(make_groups, gate):
    """G1: behind what was submitted before, also on another queue, and before what comes later."""
    groups = make_groups(2)
    ends = []
    for group in groups:
        device, second = group.device, group.device.queues.upload
        buffer = device.upload(np.full(4, 1.0 + group.rank, np.float32))
        with device.record() as commands:
            commands.all_reduce(buffer, group=group, op="max")
        before = second.all_reduce(buffer, group=group, wait=gate.at(1))
        done = device.queue.execute(commands)
        ends.append((before, done, second.all_reduce(buffer, group=group), buffer))
    for group in groups:  # an execution that waited for nothing has read its buffer by then
        group.device.queues.download.call(lambda: None).wait(LIMIT)
    for _, done, after, _ in ends:
        assert not done.done
        assert not after.done
    gate.signal(1)
    for before, done, after, buffer in ends:
        hal.wait_all([before, done, after], LIMIT)
        assert (buffer.numpy() == 6).all()  # 1 + 2, the greatest of 3 and 3, 3 + 3


def test_a_recorded_batch_is_one_launch_g1(make_groups):
    """G1: so two ranks may send to each other, also if others wait for each of the operations."""
    groups = make_groups(2, 2.0)
    works = []
    for group in groups:
        given, taken = buffer_of(group), group.device.zeros(8, np.float32)
        last = group.device.zeros(8, np.float32)
        with group.device.record() as commands:
            commands.fill(given, group.rank + 1.0)
            commands.barrier()
            with group.batch():
                commands.send(given, group=group, peer=1 - group.rank)
                commands.receive(taken, group=group, peer=1 - group.rank)
            commands.barrier()
            with commands.on("upload"):
                commands.copy(taken, last)
        works.append((group.device.queue.execute(commands), last, 2.0 - group.rank))
    for work, last, expected in works:
        work.wait(LIMIT)
        assert (last.numpy() == expected).all()


def test_ranks_whose_recordings_differ_fail_g3(make_groups):
    """G3: the execution fails on each rank with who and what, and later ones at once."""
    groups = make_groups(2)
    recordings = [
        record(group, buffer_of(group), op=op)
        for group, op in zip(groups, ("sum", "max"), strict=True)
    ]
    works = [
        group.device.queue.execute(commands)
        for group, commands in zip(groups, recordings, strict=True)
    ]
    for work in works:
        error = failure_of(work, CollectiveMismatchError)
        assert "rank 0: all_reduce #1 of 8 float32, sum" in str(error)
        assert "rank 1: all_reduce #1 of 8 float32, max" in str(error)
    for group, commands in zip(groups, recordings, strict=True):
        failure_of(group.device.queue.execute(commands))
        group.device.queue.fill(buffer_of(group), 2).wait(LIMIT)


def test_a_rank_that_executes_nothing_fails_the_others_g3(make_groups):
    """G3: at the time-out; what was recorded before the collective has run, and nothing behind."""
    groups = make_groups(2, 1.0)
    buffer, last = buffer_of(groups[0]), buffer_of(groups[0])
    with groups[0].device.record() as commands:
        commands.fill(buffer, 2.0)
        commands.barrier()
        commands.group_barrier(group=groups[0])
        commands.barrier()
        commands.fill(last, 2.0)
    error = failure_of(groups[0].device.queue.execute(commands), CollectiveTimeoutError)
    assert error.ranks == (1,)
    assert (buffer.numpy() == 2).all()
    assert (last.numpy() == 1).all()


def test_an_execution_that_is_not_issued_fails_the_others_g3(make_groups, make_semaphore):
    """G3, S5, Q7: a failed wait and a cancel break the group, as those of an operation do."""
    for fails in (True, False):
        groups, gate = make_groups(2), make_semaphore()
        mine = groups[0].device.queue.execute(
            record(groups[0], buffer_of(groups[0])), wait=gate.at(1)
        )
        theirs = groups[1].device.queue.execute(record(groups[1], buffer_of(groups[1])))
        if fails:
            gate.fail(OperationError("broken on purpose"))
            failure_of(mine, OperationError)
        else:
            assert mine.cancel()
            failure_of(mine, CancelledError)
        assert failure_of(theirs).ranks == (0,)


def test_a_refused_execution_changes_nothing_g1(make_groups, semaphore):
    """G1, S1: neither the order of the group nor a one-shot recording; a closed group refuses."""
    groups = make_groups(2)
    with groups[0].device.record(one_shot=True) as commands:
        for _ in range(3):
            commands.all_reduce(buffer_of(groups[0]), group=groups[0])
    semaphore.signal(5)
    with pytest.raises(InvalidArgumentError):
        groups[0].device.queue.execute(commands, signal=semaphore.at(5))
    works = [reduce(groups[1]) for _ in range(3)]
    hal.wait_all([*works, groups[0].device.queue.execute(commands)], LIMIT)
    hal.wait_all([reduce(group) for group in groups], LIMIT)
    other = record(groups[1], buffer_of(groups[1]))
    groups[1].close()
    with pytest.raises(ClosedError):
        groups[1].device.queue.execute(other)


def test_bad_collectives_are_not_recorded_g1(make_groups):
    """G1, C1: at the call, and the recording goes on."""
    groups = make_groups(2)
    group, device = groups[0], groups[0].device
    four, whole = buffer_of(group, 4), buffer_of(group, 8)
    with device.record(slots=[np.float32, (np.float32, 16)]) as commands:
        free, sized = commands.slots
        refused = [
            lambda: commands.all_reduce(free, group=group),
            lambda: commands.all_reduce(sized, whole, group=group),
            lambda: commands.all_reduce(four, group=groups[1]),
            lambda: commands.all_reduce(four, group=group, op="xor"),
            lambda: commands.all_to_all(sized, sized, group=group),
            lambda: commands.broadcast(four, group=group, root=2),
        ]
        for call in refused:
            with pytest.raises(InvalidArgumentError):
                call()
        with pytest.raises(ArgumentTypeError):
            commands.all_reduce(np.ones(4), group=group)
        with group.batch():
            commands.all_reduce(four, group=group)
            commands.fill(whole, 0)
            with pytest.raises(InvalidArgumentError, match="next to each other"):
                commands.all_reduce(four, group=group)
        commands.all_reduce(sized, four, group=group)
    with (
        device.record(categories="dispatch") as only,
        pytest.raises(InvalidArgumentError, match="categories='all'"),
    ):
        only.group_barrier(group=group)
    assert len(commands) == 3


def test_slots_that_overlap_are_refused_g1(make_groups):
    """G1, C3: when they are bound, unless they are in place; nothing is submitted."""
    groups = make_groups(2)
    works = []
    for group in groups:
        with group.device.record(slots=[(np.float32, 16), (np.float32, 32)]) as commands:
            commands.all_gather(*commands.slots, group=group)
        whole, queue = buffer_of(group, 8), group.device.queue
        with pytest.raises(InvalidArgumentError, match="source and target overlap"):
            queue.execute(commands, bindings=[whole[2:6], whole])
        mine = whole[group.rank * 4 : group.rank * 4 + 4]
        queue.fill(mine, group.rank + 5.0)
        works.append((queue.execute(commands, bindings=[mine, whole]), whole))
    for work, whole in works:
        work.wait(LIMIT)
        assert whole.numpy().tolist() == [5.0] * 4 + [6.0] * 4
