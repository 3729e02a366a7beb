"""Memory goes from a dealloca to the next alloca in the order of streams (M3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.memory.scarcity import (
    BIG,
    BLOCK,
    ROOM,
    MakeHold,
    allocation,
    cycle,
    held,
    until_issued,
)
from hal_conformance.suite.support import LIMIT, pattern

kernels = pytest.mark.feature("kernels")

from_dlpack: Any = np.from_dlpack
"""Numpy's own, whose type hints know no newer protocol than that of its first version."""


@pytest.mark.ordering
@pytest.mark.parametrize("behind", ["nothing", "a gate", "a host call"])
def test_a_hundred_cycles_take_one_block_m3(scarce, gate, make_latch, behind):
    """M3: a hundred times alloca, fill, dealloca in one queue: none fails, and one block does."""
    queue = scarce.queue
    before = scarce.statistics(reset_peak=True).bytes_now
    if behind == "a gate":
        queue.barrier(wait=gate.at(1))
    latch = make_latch(queue) if behind == "a host call" else None
    submitted = [each for number in range(100) for each in cycle(queue, BLOCK, number)]
    gate.signal(1)
    if latch is not None:
        latch.open()
    hal.wait_all(submitted, LIMIT)
    after = scarce.statistics()
    assert after.bytes_peak - before == BLOCK
    assert held(scarce) <= ROOM


@kernels
def test_one_block_goes_round_behind_a_kernel_m3(scarce, make_hold):
    """M3: the driver gets all cycles while the first waits: the host has no part in it."""
    queue = scarce.queue
    hal.wait_all(cycle(queue, 64, 0), LIMIT)
    hold = make_hold(queue)
    before = scarce.statistics(reset_peak=True).bytes_now
    submitted = [each for number in range(20) for each in cycle(queue, BIG, number)]
    until_issued(submitted[-1])
    hold.open()
    hal.wait_all(submitted, LIMIT)
    assert scarce.statistics().bytes_peak - before == BIG
    assert hold.has_seen()  # only now: its download takes bytes of its own


@kernels
def test_a_queue_that_waits_for_the_dealloca_has_the_memory_m3(scarce, make_queue, make_hold):
    """M3: no host comes between: with room for one, it is issued while the other still runs."""
    queue, other = scarce.queue, make_queue(device=scarce)
    first = queue.alloca(BIG)
    queue.fill(first, 1).wait(LIMIT)
    hold = make_hold(queue)
    queue.fill(first, 2)
    given = queue.dealloca(first)
    second = other.alloca(BIG, wait=given)
    filled = other.fill(second, 3)
    until_issued(filled)
    assert not filled.done
    hold.open()
    assert hold.has_seen()
    assert (second.numpy(wait=filled, timeout=LIMIT) == 3).all()


@kernels
def test_a_queue_that_has_waited_by_another_way_has_the_memory_m3(
    scarce, make_queue, make_hold, semaphore
):
    """M3: what counts is that its stream comes after the dealloca, by a later point of it, too."""
    queue, other = scarce.queue, make_queue(device=scarce)
    first = queue.alloca(BIG)
    queue.fill(first, 1).wait(LIMIT)
    hold = make_hold(queue)
    queue.dealloca(first)
    queue.barrier(signal=semaphore.at(1))
    other.barrier(wait=semaphore.at(1))
    second = other.alloca(BIG)
    filled = other.fill(second, 3)
    until_issued(filled)
    hold.open()
    assert hold.has_seen()
    assert (second.numpy(wait=filled, timeout=LIMIT) == 3).all()


def outlasts(scarce: hal.Device, make_hold: MakeHold, *, user: hal.Queue, taker: hal.Queue) -> None:
    """See that what `user` still reads is not what `taker` gets behind the dealloca."""
    queue = scarce.queue
    target = scarce.upload(np.zeros(BLOCK, np.uint8))
    first = queue.alloca(BLOCK)
    queue.update(first, pattern(BLOCK)).wait(LIMIT)
    address = first.address
    hold = make_hold(user)
    copied = user.copy(first, target)
    given = queue.dealloca(first)
    if user is not queue:
        given.wait(LIMIT)
    others = [taker.alloca(BLOCK) for _ in range(4)]
    hal.wait_all([taker.fill(each, 0xEE) for each in others], LIMIT)
    assert address not in [each.address for each in others]
    hold.open()
    assert hold.has_seen()
    assert np.array_equal(target.numpy(wait=copied, timeout=LIMIT), pattern(BLOCK))


@kernels
def test_a_queue_that_does_not_wait_has_other_memory_m3(scarce, make_queue, make_hold):
    """M3: what was given back behind running work is in use until that has ended."""
    outlasts(scarce, make_hold, user=scarce.queue, taker=make_queue(device=scarce))


# Uses that the dealloca is not ordered behind


@kernels
def test_a_use_on_another_queue_outlasts_the_dealloca_m3(scarce, make_queue, make_hold):
    """M3: memory that another queue's running work reads is not given to the next alloca."""
    outlasts(scarce, make_hold, user=make_queue(device=scarce), taker=scarce.queue)


@kernels
def test_a_dealloca_that_waits_for_the_use_gives_back_in_order_m3(scarce, make_queue, make_hold):
    """M3: with the other queue's use in its wait list, the dealloca needs no host either."""
    queue, other = scarce.queue, make_queue(device=scarce)
    first = queue.alloca(BIG)
    queue.fill(first, 1).wait(LIMIT)
    hold = make_hold(other)
    used = other.fill(first, 2)
    queue.dealloca(first, wait=used)
    second = queue.alloca(BIG)
    filled = queue.fill(second, 3)
    until_issued(filled)
    hold.open()
    assert hold.has_seen()
    assert (second.numpy(wait=filled, timeout=LIMIT) == 3).all()


@pytest.mark.ordering
def test_a_pending_use_on_another_queue_outlasts_the_dealloca_m3(scarce, make_queue, gate):
    """M3: a use that was submitted before the dealloca, and is issued after it, has the memory."""
    queue, other = scarce.queue, make_queue(device=scarce)
    target = scarce.upload(np.zeros(BLOCK, np.uint8))
    first = queue.alloca(BLOCK)
    queue.update(first, pattern(BLOCK)).wait(LIMIT)
    copied = other.copy(first, target, wait=gate.at(1))
    queue.dealloca(first).wait(LIMIT)
    for _ in range(4):
        hal.wait_all(cycle(queue, BLOCK, 0xEE), LIMIT)
    gate.signal(1)
    assert np.array_equal(target.numpy(wait=copied, timeout=LIMIT), pattern(BLOCK))


@pytest.mark.feature("peer_access")
def test_a_use_of_another_device_outlasts_the_dealloca_m3(scarce, open_device, gate):
    """M3: so does a copy that another device's queue makes."""
    guest, queue = open_device(), scarce.queue
    first, target = queue.alloca(BLOCK), guest.upload(np.zeros(BLOCK, np.uint8))
    queue.update(first, pattern(BLOCK)).wait(LIMIT)
    copied = guest.queue.copy(first, target, wait=gate.at(1))
    queue.dealloca(first).wait(LIMIT)
    for _ in range(4):
        hal.wait_all(cycle(queue, BLOCK, 0xEE), LIMIT)
    gate.signal(1)
    assert np.array_equal(target.numpy(wait=copied, timeout=LIMIT), pattern(BLOCK))


@pytest.mark.parametrize("export", ["map", "dlpack"])
def test_what_the_host_sees_outlasts_the_dealloca_m2(scarce, export):
    """M2, M3: a view, or a tensor over it, keeps the memory, which comes back with its end."""
    queue = scarce.queue
    first = queue.alloca(BIG, memory="host")
    queue.update(first.subspan(0, BLOCK), pattern(BLOCK)).wait(LIMIT)
    view = first.map()[:BLOCK] if export == "map" else from_dlpack(first)[:BLOCK]
    queue.dealloca(first).wait(LIMIT)
    hal.wait_all(cycle(queue, BLOCK, 0xEE, "host"), LIMIT)
    assert np.array_equal(view, pattern(BLOCK))
    del view
    again = queue.alloca(BIG, memory="host")
    queue.fill(again, 7).wait(LIMIT)
    assert (again.numpy(timeout=LIMIT) == 7).all()


# Sizes, and contents


@pytest.mark.ordering
def test_blocks_are_split_and_merged_m3(scarce):
    """M3: what one alloca had is several others', and theirs together one's again."""
    queue, submitted = scarce.queue, []
    out = scarce.upload(np.zeros(6 * 3, np.uint8))
    for turn in range(3):
        submitted += cycle(queue, BIG, turn)
        parts = [queue.alloca(BLOCK) for _ in range(6)]
        submitted += [allocation(part) for part in parts]
        for number, part in enumerate(parts):
            queue.fill(part, 100 + 6 * turn + number)
        for number, part in enumerate(parts):
            queue.copy(part, out, source_offset=BLOCK - 1, target_offset=6 * turn + number, size=1)
        # In another order than that of their addresses, whatever that is
        submitted += [queue.dealloca(parts[number]) for number in (3, 0, 5, 1, 4, 2)]
    hal.wait_all(submitted, LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == list(range(100, 118))


@pytest.mark.ordering
def test_contents_are_never_mixed_m3(scarce, make_queue):
    """M3: temporaries of all sizes on three queues, three at a time in each, keep their bytes."""
    rounds, width = 40, 64
    queues = [scarce.queue, make_queue(device=scarce), make_queue(device=scarce, ordered=False)]
    out = scarce.upload(np.zeros(3 * rounds * width, np.uint8))
    last = []
    numbers = np.random.default_rng(1)
    live: list[list[tuple[int, hal.Buffer, hal.Submission]]] = [[], [], []]

    def end(which):
        number, buffer, filled = live[which].pop(0)
        place = (number * 3 + which) * width
        queue = queues[which]
        copied = queue.copy(
            buffer,
            out,
            source_offset=buffer.size - width,
            target_offset=place,
            size=width,
            wait=filled,
        )
        last.append(queue.dealloca(buffer, wait=copied))

    for number in range(rounds):
        for which, queue in enumerate(queues):
            buffer = queue.alloca(int(numbers.integers(width, 1 << 17)))
            value = (number * 3 + which) % 251 + 1
            live[which].append((number, buffer, queue.fill(buffer, value, wait=allocation(buffer))))
            if len(live[which]) == 3:
                end(which)
    for which in (0, 1, 2):
        while live[which]:
            end(which)
    hal.wait_all(last, LIMIT)
    seen = out.numpy(timeout=LIMIT).reshape(-1, width)
    assert np.array_equal(seen, np.arange(3 * rounds).reshape(-1, 1) % 251 + 1 + 0 * seen)
    assert held(scarce) <= ROOM
