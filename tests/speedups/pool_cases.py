"""Cases of the shortcuts for memory of the driver's pool."""

import ctypes
import gc
import random
import sys

import numpy as np
import pytest
from core_harness import wait_until
from shortcut_harness import Calls, OnlyC, fails, main, records, warm

import hal
from hal._buffers.buffer import Buffer
from hal._memory.blocks import ASYNC, Block, BlockLease
from hal._memory.storage import Transient
from hal_conformance.calls import Holds

PLAIN = {name: getattr(hal.Queue, name).__wrapped__ for name in ("alloca", "dealloca")}


def grow(device, size=1 << 20):
    """Have the pool hold `size` bytes, which no later alloca of less has to ask for."""
    warm(device)
    device.queue.dealloca(device.queue.alloca(size)).wait(30)
    device.wait_idle(30)
    assert device._heap.driver.at_hand >= size


def check_books(device):
    """Compare what is derived with what it is derived from."""
    books = device._heap.books
    with books.lock:  # other threads give memory back
        sums = books.survey()
        pooled = [block.lease.size for block in books.blocks if block.way == ASYNC and block.lease]
        assert books.pooled == sum(pooled) == sums[0].pooled
        assert [books.now[0] + books.pooled, *books.now[1:]] == [each.now for each in sums]
        assert books.held + books.pooled == sum(each.held for each in sums)
        assert books.peak >= sum(books.now) + books.pooled
        assert books.peaks[0] >= books.now[0] + books.pooled


def slots_of(thing):
    """Return the content of each slot of an object of hal's, by its name."""
    names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(thing, name, "not set") for name in names - {"__weakref__"}}


def case_a_pair_takes_no_python_m3(device):
    grow(device)
    queue, other = device.queue, device.create_queue()
    other.fill(device.allocate(64), 0).wait()
    done = hal.create_semaphore()
    before = device.statistics(reset_peak=True)
    with OnlyC():
        first = queue.alloca(1024, dtype=np.float32, signal=done.at(1))
        second = queue.alloca(64, memory="device", wait=(done.at(1),))
        queue.fill(first, 1.5)
        filled = other.fill(second, 3, wait=(second._allocation,))
        given = queue.dealloca(first, signal=[done.at(2)])
        last = other.dealloca(second, wait=given)
    assert device.statistics().bytes_peak == before.bytes_now + 1024 + 64
    last.wait(30)
    assert (first.allocation.kind, filled.kind, last.kind) == ("alloca", "fill", "dealloca")
    assert device.statistics().bytes_now == before.bytes_now
    assert done.query() == 2
    for each in (first, second):
        with pytest.raises(hal.errors.ClosedError, match="given back with dealloca"):
            queue.fill(each, 1)
    check_books(device)


def case_what_is_made_is_what_python_makes_m3(device):
    """Slot by slot, for every object that an alloca makes and a dealloca changes."""
    grow(device)
    queue, made = device.queue, []
    for alloca in (hal.Queue.alloca, PLAIN["alloca"]):
        buffer = alloca(queue, 1024, dtype=np.int16)
        storage = buffer._storage
        made.append((buffer, storage, storage._lease, storage._lease.block, buffer.allocation))
        buffer.allocation.wait(30)
    compare(*made)
    for dealloca, (buffer, *_) in zip((hal.Queue.dealloca, PLAIN["dealloca"]), made, strict=True):
        dealloca(queue, buffer).wait(30)
    compare(*made)


def compare(mine, theirs, *more):
    own = {*more, "address", "host_address", "place", "since", "_sequence", "_launched", "_event"}
    own |= {"asked", "pool"}  # of a search, and of segments: nobody asks for them again
    # Dropped some time after the end, and made by a wait that sleeps
    own |= {"_function", "_arguments", "_resources", "_dependencies", "_private", "_signals"}
    for one, two in zip(mine, theirs, strict=True):
        assert type(one) is type(two)
        have, want = slots_of(one), slots_of(two)
        for name in want.keys() - own:
            if isinstance(want[name], (Buffer, Transient, Block, BlockLease, hal.Submission)):
                have[name], want[name] = type(have[name]), type(want[name])
            assert have[name] == want[name], (type(one).__name__, name)


def case_random_turns_keep_the_books_m3(device):
    """C and Python take turns in any mix, on three queues, with uses on others and views."""
    grow(device, 1 << 16)
    pick = random.Random(5)
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=False)]
    living = []
    for number in range(600):
        queue = pick.choice(queues)
        alloca, dealloca = (
            getattr(hal.Queue, name) if pick.random() < 0.8 else PLAIN[name]
            for name in ("alloca", "dealloca")
        )
        if pick.random() < 0.5 or not living:
            living.append(alloca(queue, pick.choice([1, 64, 4096, 1 << 14, 0])))
        else:
            buffer = living.pop(pick.randrange(len(living)))
            last = [buffer.allocation]
            if pick.random() < 0.7:
                last.append(pick.choice(queues).fill(buffer, number % 256, wait=last[0]))
            if pick.random() < 0.2:
                part = buffer.subspan(0, min(buffer.size, 1))
                last.append(pick.choice(queues).fill(part, 1, wait=last[-1]))
            if pick.random() < 0.2:
                last.pop()  # the dealloca waits for the rest only
            if pick.random() < 0.8:
                dealloca(queue, buffer, wait=last)
        check_books(device)
        if not number % 50:
            device.wait_idle(60)
    living.clear()
    del buffer
    device.wait_idle(60)
    gc.collect()
    assert device.statistics().bytes_now == 0
    check_books(device)


def case_what_the_pool_has_not_at_hand_is_pythons_m1(device):
    """Growth may take long, and is counted: again after a trim, and after a native allocation."""
    grow(device, 4096)
    queue, driver = device.queue, device._heap.driver
    first = queue.alloca(4096)
    for change in (
        lambda: None,  # all of it is in use
        device.trim,
        lambda: device.allocate(1 << 20),
    ):
        change()
        with Calls() as calls:
            second = queue.alloca(64)
        assert "StreamOrder._allocate" in calls.names, calls.names
        assert driver.at_hand == 4096 + 64
        queue.dealloca(second).wait(30)
    queue.dealloca(first).wait(30)
    limited = hal.create_device(f"{device.backend}?memory_limit=1M")
    for _ in range(3):
        with Calls() as calls:
            second = limited.queue.alloca(64)
        assert "StreamOrder._allocate" in calls.names
        limited.queue.dealloca(second).wait(30)
    limited.close()


def case_what_may_not_be_given_back_yet_is_pythons_m3(device):
    grow(device)
    queue, other, go = device.queue, device.create_queue(), hal.create_semaphore()
    cases = []
    used = queue.alloca(256)
    other.fill(used, 1, wait=[go.at(1), used.allocation])  # a pending use
    cases.append(used)
    parted = queue.alloca(256)
    part = parted.subspan(0, 16)
    cases.append(parted)
    for buffer in cases:
        with Calls() as calls:
            queue.dealloca(buffer).wait(30)
        assert "StreamOrder.give" in calls.names, calls.names
    assert part.closed
    recorded = queue.alloca(256)
    recorded.allocation.wait(30)
    with device.record() as commands:
        commands.fill(recorded, 1)
    elsewhere = queue.alloca(256)
    for call, error in (
        (lambda: queue.dealloca(recorded), hal.errors.InvalidArgumentError),
        (lambda: queue.dealloca(used), hal.errors.ClosedError),
        (lambda: queue.dealloca(device.allocate(64)), hal.errors.InvalidArgumentError),
        (lambda: queue.dealloca(elsewhere.subspan(0, 8)), hal.errors.InvalidArgumentError),
        (lambda: hal.create_device(device.backend).queue.dealloca(elsewhere), hal.HalError),
        (lambda: queue.alloca(-1), hal.errors.InvalidArgumentError),
        (lambda: queue.alloca(3, dtype=np.int16), hal.errors.InvalidArgumentError),
        (lambda: queue.alloca(64, memory="no"), hal.errors.InvalidArgumentError),
        (lambda: queue.alloca(1 << 60), hal.errors.OutOfMemoryError),
    ):
        with pytest.raises(error):
            call()
    del commands
    go.signal(1)
    device.wait_idle(30)


def case_what_a_dealloca_leaves_is_given_back_once_unused_m3(device):
    """Also if something holds the storage still when C has found that the dealloca has ended."""
    buffer = warm(device)
    queue, other, go = device.queue, device.create_queue(), hal.create_semaphore()
    used = queue.alloca(256)
    storage = used._storage
    pending = other.fill(used, 1, wait=[go.at(1), used.allocation])
    given = queue.dealloca(used)
    while not given._retired:  # nobody asks for it: the queue retires now and then
        queue.fill(buffer, 0)
    go.signal(1)
    pending.wait(30)
    queue.dealloca(queue.alloca(64)).wait(30)
    assert storage._lease is None
    check_books(device)


def case_a_call_to_the_pool_that_fails_changes_nothing_m1(device):
    """Python repeats it: what is for want of memory there starves, and anything else fails."""
    grow(device)
    queue, other = device.queue, device.create_queue()
    with Holds(device._native) as holds:
        holds.hold(
            queue._stream
        )  # another queue's wait needs an event: work that is over needs none
        for function in ("cuMemAllocFromPoolAsync", "cuEventRecord"):
            sim = fails(function, 1, device)
            buffer = queue.alloca(256)
            filled = queue.fill(buffer, 4)
            other.barrier(wait=[filled])
            assert not sim.fail_none()
            check_books(device)
            sim = fails("cuMemFreeAsync" if function[2] == "M" else function, 1, device)
            other.barrier(wait=[queue.dealloca(buffer)])
            assert not sim.fail_none()
            check_books(device)
    device.wait_idle(30)
    assert device.statistics().bytes_now == 0
    fails("cuMemAllocFromPoolAsync", 2, device)
    failed = queue.alloca(256)
    with pytest.raises(hal.errors.OperationError):
        failed.allocation.wait(30)
    queue.dealloca(failed).wait(30)
    check_books(device)


def case_the_event_behind_a_pair_is_put_off_m3(device):
    """The event of the next work serves, if nobody sees that the pair ends only then."""
    grow(device)
    filled = warm(device)
    queue = device.create_queue()  # it harvests, and so records an event, at its 64th submission

    def turn(kept):
        buffer = queue.alloca(256)
        queue.fill(buffer, 1)
        kept.append(queue.dealloca(buffer))

    assert records(lambda: [turn([]) for _ in range(8)]) == 2, "with one for 8 operations"
    kept = []
    assert records(lambda: [turn(kept) for _ in range(8)]) == 7
    assert records(lambda: kept[-1].wait(30)) <= 1, "the stream is asked first"
    assert records(lambda: queue.fill(filled, 1)) == 0
    apart = queue.alloca(256)
    assert records(lambda: queue.fill(filled, 1)) == 1, "others may wait for the alloca alone"
    queue.dealloca(apart)
    queue.stream_handle  # noqa: B018 - from now on work of others may stand in between
    assert records(lambda: turn([])) == 3


def case_a_long_row_of_pairs_takes_no_python_q1(device):
    """With one event for all of them nobody would know of room before the last has ended."""
    grow(device)
    driver, queue, kept = ctypes.CDLL("libcuda.so.1"), device.queue, []
    with Calls() as calls:
        for number in range(256):
            kept.append(queue.alloca(64))
            queue.dealloca(kept[-1])
            if not number % 16:
                assert not driver.cuCtxSynchronize()
    assert calls.names.keys() <= {"Storage.__del__"}, calls.names


def case_whoever_needs_an_event_that_was_put_off_has_it_recorded_i1(device):
    grow(device)
    queue, other = device.queue, device.create_queue()
    buffer = warm(device)
    other.fill(buffer, 1).wait(30)
    python = hal.Queue.fill.__wrapped__
    done = hal.create_semaphore()
    plain = {
        "a wait of another stream": lambda made: other.fill(buffer, 1, wait=made),
        "the same in Python": lambda made: python(other, buffer, 1, wait=made),
        "work of Python's": lambda made: python(queue, buffer, 1),
    }
    for index, (name, need) in enumerate(plain.items()):
        made = queue.alloca(256, signal=done.at(index + 1))
        assert made.allocation._event.due is queue, name
        need(made.allocation)
        assert made.allocation._event.due is None, name
        queue.dealloca(made)
        assert queue._ring[-1]._event.due is queue, name
        sim = fails("cuEventRecord", 1, device)  # it is recorded anew
        need(queue._ring[-1])
        device.wait_idle(30)
        assert not sim.fail_none(), name
        check_books(device)
    assert done.query() == len(plain)


def case_a_collection_in_an_alloca_finds_it_whole_i10(device):
    grow(device)
    collect_in_allocas(device)
    check_books(device)


def collect_in_allocas(device):
    """Collect wherever an alloca makes objects; a finaliser allocates, too.

    From Python 3.12 on a collection may come at any call of a Python function, also under a lock.
    """
    ended, refused = [], []

    class Node:
        def __init__(self):
            self.itself = self

        def __del__(self):
            try:
                buffer = device.queue.alloca(64)
            except hal.errors.ReentrantCallError as error:
                refused.append(error)
            else:
                ended.append(device.queue.dealloca(buffer))

    gc.set_threshold(3)
    for number in range(500):
        Node()
        buffer = device.queue.alloca(256)
        filled = device.queue.fill(buffer, number % 256)
        device.queue.dealloca(buffer, wait=filled)
    gc.set_threshold(700)
    gc.collect()
    device.wait_idle(60)
    assert len(ended) + len(refused) == 500
    assert not refused or (sys.version_info >= (3, 12) and len(refused) < 100)
    assert device.statistics().bytes_now == 0


def case_nothing_of_a_pair_is_kept_q5(device):
    grow(device)
    keep_nothing(device)


def keep_nothing(device):
    """Count references and objects around thousands of pairs."""

    def run(count):
        for _ in range(count):
            buffer = device.queue.alloca(256)
            device.queue.fill(buffer, 1)
            device.queue.dealloca(buffer)
            del buffer
        device.wait_idle(60)

    def counts():
        gc.collect()
        own = [sys.getrefcount(each) for each in (device._heap, device.queue)]
        shared = [sys.getrefcount(each) for each in (hal.MemoryType.DEVICE, np.dtype(np.uint8))]
        return own, shared, [len(gc.get_objects())]

    def is_flat():
        own, shared, objects = (
            [now - then for now, then in zip(after, before, strict=True)]
            for after, before in zip(counts(), first, strict=True)
        )
        # Of the blocks and storages that have ended, 1,024 each are kept to make others of; the
        # objects that are more are events.
        return max(own) < 20 and max(shared) <= 2 * 1024 and objects[0] < 1500

    run(300)
    run(300)
    first = counts()
    run(3000)
    wait_until(is_flat)  # what a thread of ours has retired it drops a moment later


def case_an_alloca_without_memory_for_its_objects_is_whole_m3(device):
    """Whichever object cannot be made, the block is in the books, and takes no other with it."""
    try:
        import _testcapi  # noqa: PLC0415 - not every Python comes with it
    except ImportError:
        return
    grow(device)
    queue, books = device.queue, device._heap.books
    for missing in range(8):
        for count in (4, 8):
            kept = []
            while len(books.blocks) < count:
                kept.append(queue.alloca(4096))
            books.blocks = list(books.blocks)  # full, so that the next block makes it longer
            _testcapi.set_nomemory(missing, missing + 1)
            try:
                buffer = queue.alloca(4096)
            finally:
                _testcapi.remove_mem_hooks()
            assert buffer._storage._lease.block in books.blocks, missing
            for each in (buffer, *kept):
                queue.dealloca(each)
            queue.wait_idle(30)
            check_books(device)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
