"""A rank that fails, differs or does not come fails its group, in bounded time (G3)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import hal
import hal.collectives
from hal.errors import (
    CancelledError,
    ClosedError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    OperationError,
    RendezvousError,
)
from hal_conformance.suite.collectives.members import buffer_of, failure_of, reduce
from hal_conformance.suite.support import LIMIT, in_threads

DIFFERENT: dict[str, Callable[[hal.collectives.Group], hal.Submission]] = {
    "size": lambda g: g.device.queue.all_reduce(buffer_of(g, 9), group=g),
    "dtype": lambda g: g.device.queue.all_reduce(buffer_of(g, 8, "int32"), group=g),
    "op": lambda g: g.device.queue.all_reduce(buffer_of(g), group=g, op="max"),
    "kind": lambda g: g.device.queue.group_barrier(group=g),
    "root": lambda g: g.device.queue.reduce(buffer_of(g), group=g, root=1),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_fail_g3(make_groups, what):
    """G3: on every rank, with who and what; later work of the group fails; the devices go on."""
    groups = make_groups(3)
    submissions = [reduce(groups[0]), DIFFERENT[what](groups[1])]
    for submission in submissions:
        error = failure_of(submission, CollectiveMismatchError)
        assert error.ranks == (0, 1)
        assert error.records[1]
        assert "rank 0: all_reduce #1 of 8 float32, sum" in str(error)
        assert "rank 1: " in str(error)
    failure_of(reduce(groups[2]))
    for group in groups:
        failure_of(reduce(group))
        assert group.error is not None
        group.device.queue.fill(buffer_of(group), 2).wait(LIMIT)


def test_a_rank_that_does_not_come_fails_the_others_g3(make_groups):
    """G3: at the time-out, with the rank that is missing and what each did last."""
    groups = make_groups(3, 2.0)
    hal.wait_all([reduce(group) for group in groups], LIMIT)
    for submission in [reduce(groups[0]), reduce(groups[2])]:
        error = failure_of(submission, CollectiveTimeoutError)
        assert error.ranks == (1,)
        assert len(error.records[1]) == 1
        assert len(error.records[0]) == 2


def test_the_time_of_a_wait_is_not_counted_g3(make_groups, semaphore):
    """G3: the time-out begins at the issue, so that a group may stand in line for long."""
    groups = make_groups(2, 1.5)
    submissions = [reduce(group, wait=semaphore.at(1)) for group in groups]
    with pytest.raises(hal.errors.DeadlineExceededError):
        submissions[0].wait(1.6)
    semaphore.signal(1)
    hal.wait_all(submissions, LIMIT)


def test_a_failed_wait_of_one_rank_fails_all_g3(make_groups, make_semaphore):
    """G3, S5: it fails with the wait's error, its signals too, and the others with who and why."""
    groups, broken, done = make_groups(2), make_semaphore(), make_semaphore()
    mine = reduce(groups[0], wait=broken.at(1), signal=done.at(1))
    theirs = reduce(groups[1])
    broken.fail(OperationError("broken on purpose"))
    assert "broken on purpose" in str(failure_of(mine, OperationError))
    with pytest.raises(OperationError, match="broken on purpose"):
        done.wait(1, LIMIT)
    error = failure_of(theirs)
    assert error.ranks == (0,)
    assert "broken on purpose" in str(error)


def test_a_cancelled_collective_fails_the_others_g3(make_groups, make_semaphore):
    """G3, Q7: before its issue it is cancelled; the other ranks do not wait for it."""
    groups, gate = make_groups(2), make_semaphore()
    mine = reduce(groups[0], wait=gate.at(1))
    theirs = reduce(groups[1])
    assert mine.cancel()
    failure_of(mine, CancelledError)
    assert failure_of(theirs).ranks == (0,)


def test_ranks_that_are_left_go_on_g3(make_groups):
    """G3: they make a new group of those, in the given order."""
    groups = make_groups(3, 1.0)
    failure_of(reduce(groups[0]), CollectiveTimeoutError)
    left = in_threads([partial(groups[each].rebuild, [2, 0], timeout=LIMIT) for each in (0, 2)])
    assert [group.rank for group in left] == [1, 0]
    buffers = [buffer_of(group) for group in left]
    hal.wait_all(
        [
            group.device.queue.all_reduce(buffer, group=group)
            for group, buffer in zip(left, buffers, strict=True)
        ],
        LIMIT,
    )
    assert all((buffer.numpy() == 2).all() for buffer in buffers)
    for group in left:
        group.close()


def test_a_closed_group_is_refused_g3(make_groups, make_semaphore):
    """G3: what was not issued is cancelled, and others do not wait for who has closed it."""
    groups, gate = make_groups(2), make_semaphore()
    pending = reduce(groups[0], wait=gate.at(1))
    waiting = reduce(groups[1])
    groups[0].close(LIMIT)
    groups[0].close(LIMIT)
    failure_of(pending, CancelledError)
    assert failure_of(waiting).ranks == (0,)
    with pytest.raises(ClosedError):
        reduce(groups[0])
    with pytest.raises(ClosedError), groups[0].batch():
        pass


def test_no_rendezvous_is_waited_for_without_end_g4(device, second_device):
    """G4: the error says who has not come; a device that comes twice is refused."""
    with pytest.raises(RendezvousError) as caught:
        hal.collectives.join(
            device, rank=0, size=3, rendezvous="nobody", provider="embedded", timeout=0.05
        )
    assert caught.value.ranks == (1, 2)
    with pytest.raises(InvalidArgumentError, match="twice, as rank 0 and as rank 2"):
        hal.collectives.join_all([device, second_device, device])


def test_bad_arguments_are_refused_g1(make_groups, device):
    """G1: at the call; nothing is submitted, and the group goes on."""
    groups = make_groups(2)
    queue, group = device.queue, groups[0]
    one, four, whole = buffer_of(group, 1), buffer_of(group, 4), buffer_of(group, 8)
    refused = [
        lambda: queue.all_reduce(four, whole, group=group),
        lambda: queue.all_reduce(four, group=group, op="xor"),
        lambda: queue.all_reduce(four, group=groups[1]),
        lambda: queue.all_reduce(whole[:4], whole[1:5], group=group),
        lambda: queue.all_reduce(buffer_of(groups[1]), group=group),
        lambda: queue.broadcast(four, group=group, root=2),
        lambda: queue.broadcast(four, group=group, root=-1),
        lambda: queue.all_gather(four, four, group=group),
        lambda: queue.all_gather(whole[2:6], whole, group=group),
        lambda: queue.reduce_scatter(whole, one, group=group),
        lambda: queue.all_to_all(one, buffer_of(group, 1), group=group),
        lambda: queue.all_to_all(whole, whole, group=group),
        lambda: queue.send(four, group=group, peer=0),
        lambda: queue.all_reduce(buffer_of(group, 2, "int32"), group=group, op="average"),
    ]
    for call in refused:
        with pytest.raises(InvalidArgumentError):
            call()
    mistyped = [
        lambda: queue.all_reduce(np.ones(4), group=group),
        lambda: queue.all_reduce(four, group=device),
        lambda: queue.all_reduce(buffer_of(group, 4, "complex64"), group=group),
        lambda: queue.all_reduce(four, buffer_of(group, 4, "int32"), group=group),
    ]
    for call in mistyped:
        with pytest.raises(hal.errors.ArgumentTypeError):
            call()
    hal.wait_all([reduce(each) for each in groups], LIMIT)


def test_buffers_live_until_the_end_q5(make_groups):
    """Q5, M2: dropped buffers of collectives in flight are kept, and then given back."""
    groups = make_groups(2)
    gc.collect()
    before = groups[0].device.statistics().bytes_now
    target = buffer_of(groups[1])
    waiting = groups[0].device.queue.broadcast(buffer_of(groups[0]), group=groups[0])
    gc.collect()
    assert groups[0].device.statistics().bytes_now > before
    groups[1].device.queue.fill(target, 0)
    groups[1].device.queue.broadcast(target, group=groups[1]).wait(LIMIT)
    waiting.wait(LIMIT)
    assert (target.numpy() == 1).all()
    gc.collect()
    assert groups[0].device.statistics().bytes_now == before


def test_a_barrier_waits_for_all_g1(make_groups, gate):
    """G1: nobody's ends before the last rank has come, behind whatever that waits for."""
    groups = make_groups(3)
    late = groups[1].device.queue.group_barrier(group=groups[1], wait=gate.at(1))
    early = [groups[each].device.queue.group_barrier(group=groups[each]) for each in (0, 2)]
    for each in early:
        with pytest.raises(hal.errors.DeadlineExceededError):
            each.wait(0.05)
    gate.signal(1)
    hal.wait_all([*early, late], LIMIT)


def test_a_batch_that_is_left_submits_nothing_g1(make_groups):
    """G1: its handle fails, and the group goes on; a batch is on one queue."""
    groups = make_groups(2)
    queue, second = groups[0].device.queue, groups[0].device.queues.upload
    left = []
    with (  # noqa: PT012
        pytest.raises(InvalidArgumentError, match="one launch on one queue"),
        groups[0].batch(),
    ):
        left.append(queue.all_reduce(buffer_of(groups[0]), group=groups[0]))
        second.all_reduce(buffer_of(groups[0]), group=groups[0])
    failure_of(left[0], OperationError)
    hal.wait_all([reduce(each) for each in groups], LIMIT)
