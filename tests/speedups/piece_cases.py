"""Cases of the shortcuts for memory of segments: recent pieces."""

import gc
import itertools
import random
import sys
from unittest import mock

import numpy as np
import pytest
from pool_cases import PLAIN, collect_in_allocas, compare, keep_nothing
from pool_cases import check_books as check_blocks
from shortcut_harness import Calls, OnlyC, main, warm

import hal
from hal._memory.segment_pool import SegmentPool


def open_own(device):
    """Return a device of the same kind whose allocas take pieces, with some that are recent."""
    own = hal.create_device(f"{device.name}?async_allocations=false")
    warm(own)
    return own


def put_aside(queue, *sizes):
    """Have a queue give back pieces of these sizes, and nobody look for others since."""
    for _ in range(2):  # the first time they are searched for
        made = [queue.alloca(size) for size in sizes]
        for each in made:
            queue.dealloca(each).wait(30)


def check_books(device):
    """Compare what is derived with what it is derived from, and see that no two pieces overlap."""
    books = device._heap.books
    check_blocks(device)
    with books.lock:  # other threads give memory back
        assert books.unused == sum(each.cached for each in books.survey())
        for pool in books.pools:
            recent = [piece for pieces in pool.recent.values() for piece in pieces]
            free = [
                piece
                for each in pool._free.values()
                for same in each._by_size.values()
                for piece in same
            ]
            assert not any(piece.is_free for piece in recent)
            known = [*pool.taken, *recent, *free]
            spans = sorted((piece.address, piece.address + piece.size) for piece in known)
            assert sum(segment.size for segment in pool._segments) == sum(
                end - start for start, end in spans
            )
            assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


def case_a_pair_takes_no_python_m3(device):
    """It takes no native call either: both end with the operation before them."""
    with open_own(device) as own:
        queue, done = own.queue, hal.create_semaphore()
        put_aside(queue, 1024, 64)
        before = own.statistics(reset_peak=True)
        events = own._context.events.size
        with OnlyC():
            first = queue.alloca(1024, dtype=np.float32, signal=done.at(1))
            second = queue.alloca(64, memory="device", wait=(done.at(1),))
            filled = queue.fill(first, 1.5)
            given = queue.dealloca(first, signal=[done.at(2)])
            last = queue.dealloca(second, wait=given)
        assert filled._event is given._event is last._event
        assert own.statistics().bytes_peak == before.bytes_now + 1024 + 64
        last.wait(30)
        assert (first.allocation.kind, given.kind) == ("alloca", "dealloca")
        assert own.statistics().bytes_now == before.bytes_now
        assert own.statistics().bytes_cached == before.bytes_cached
        assert done.query() == 2
        assert own._context.events.size == events
        check_books(own)
        for _ in range(20):  # far more than are issued while launches are few
            with Calls() as calls:
                for _ in range(30):
                    queue.dealloca(queue.alloca(1024))
            assert calls.names.keys() <= {"Storage.__del__"}, calls.names
            own.wait_idle(30)


def case_a_search_that_finds_a_piece_leaves_the_recent_ones_m3(device):
    with open_own(device) as own:
        queue = own.queue
        kept = [queue.alloca(size) for size in (256, 4096, 256, 8192, 256)]
        queue.wait_idle(30)
        queue.dealloca(kept.pop(1))
        kept.append(queue.alloca(65536))  # of the rest of the segment, which is too much for it
        queue.dealloca(kept.pop(2))
        kept.append(queue.alloca(4096))
        with OnlyC():
            kept.append(queue.alloca(8192))
        check_books(own)


def case_what_is_made_is_what_python_makes_m3(device):
    """Slot by slot, for every object that an alloca makes and a dealloca changes."""
    with open_own(device) as own:
        queue, made = own.queue, []
        put_aside(queue, 1024, 1024)
        for alloca in (hal.Queue.alloca, PLAIN["alloca"]):
            buffer = alloca(queue, 1024, dtype=np.int16)
            storage = buffer._storage
            made.append((buffer, storage, storage._lease, storage._lease.block, buffer.allocation))
            buffer.allocation.wait(30)
        places = {"before", "after", "points"}
        compare(*made, *places)
        for dealloca, (buffer, *_) in zip(
            (hal.Queue.dealloca, PLAIN["dealloca"]), made, strict=True
        ):
            given = dealloca(queue, buffer)
            given.wait(30)
            piece = made[0][3] if dealloca is hal.Queue.dealloca else made[1][3]
            assert piece.points == (given,)
            assert piece.segment.pool._last[queue._id] is given
        compare(*made, *places)
        check_books(own)


def case_random_turns_keep_the_books_and_the_contents_m3(device):
    """C and Python take turns in any mix, on three queues, with uses on others, and with views."""
    with open_own(device) as own:
        pick = random.Random(5)
        queues = [own.queue, own.create_queue(), own.create_queue(ordered=False)]
        living, taken = [], 0
        for number in range(900):
            queue = pick.choice(queues)
            alloca, dealloca = (
                getattr(hal.Queue, name) if pick.random() < 0.8 else PLAIN[name]
                for name in ("alloca", "dealloca")
            )
            if pick.random() < 0.5 or not living:
                with Calls() as calls:
                    buffer = alloca(queue, pick.choice([1, 4096, 4096, 4096, 1 << 14, 3 << 20, 0]))
                taken += "StreamOrder.take" not in calls.names
                last = queue.fill(buffer, number % 256, wait=buffer.allocation)
                living.append((buffer, number % 256, last))
            else:
                buffer, value, last = living.pop(pick.randrange(len(living)))
                if pick.random() < 0.5:
                    last = pick.choice(queues).fill(buffer, value, wait=last)
                if pick.random() < 0.3:
                    assert (buffer.numpy(wait=last, timeout=30) == value).all()
                if pick.random() < 0.8:
                    waits = [last] if pick.random() < 0.8 else []  # else once it is unused
                    dealloca(queue, buffer, wait=waits)
            check_books(own)
            if not number % 50:
                own.wait_idle(60)
        assert taken > 15
        living.clear()
        del buffer, last
        own.wait_idle(60)
        gc.collect()
        own.queue.dealloca(own.queue.alloca(1 << 21)).wait(30)
        assert own.statistics().bytes_now == 0
        check_books(own)


def case_what_is_not_recent_is_pythons_m3(device):
    with open_own(device) as own:
        queue, other, go = own.queue, own.create_queue(), hal.create_semaphore()
        put_aside(queue, 256)
        put_aside(other, 512)
        for size, on, memory in (
            (512, queue, "device"),
            (256, queue, "host"),
            (768, other, "device"),
        ):
            put_aside(queue, 256)
            with Calls() as calls:
                buffer = on.alloca(size, memory=memory)
            assert "StreamOrder.take" in calls.names, (size, calls.names)
            buffer.allocation.wait(30)
            with Calls() as calls:
                on.dealloca(buffer)
            assert ("StreamOrder.give" in calls.names) == (memory == "host"), calls.names
        used = queue.alloca(256)
        other.fill(used, 1, wait=[go.at(1), used.allocation])  # a pending use
        parted = queue.alloca(256)
        part = parted.subspan(0, 16)
        for buffer in (used, parted):
            with Calls() as calls:
                queue.dealloca(buffer)
            assert "StreamOrder.give" in calls.names, calls.names
        assert part.closed
        go.signal(1)
        own.wait_idle(30)
        check_books(own)


def case_a_limit_does_not_count_what_is_held_m1(device):
    """A piece is of memory that counts already."""
    with hal.create_device(f"{device.name}?async_allocations=false&memory_limit=4M") as own:
        warm(own)
        queue = own.queue
        put_aside(queue, 4096)
        with Calls() as calls:
            queue.dealloca(queue.alloca(4096))
        assert calls.names.keys() <= {"Storage.__del__"}, calls.names


def case_recent_pieces_serve_other_needs_m3(device):
    """They are joined for a larger need, of other queues too, and go back to the device."""
    with hal.create_device(f"{device.name}?async_allocations=false&memory_limit=2M") as own:
        warm(own)
        whole = 1 << 20
        put_aside(own.queue, whole // 4, whole // 4, whole // 2 - 256)
        own.wait_idle(30)
        other = own.create_queue()
        buffer = other.alloca(whole)
        buffer.allocation.wait(30)
        other.dealloca(buffer).wait(30)
        del buffer
        check_books(own)
        own.trim()
        assert own.statistics().bytes_cached == 0


def case_an_interrupt_leaves_recent_pieces_to_be_rebuilt_o3(device):
    """A piece that a Ctrl-C leaves in no list is found again by the next call."""
    with open_own(device) as own:
        queue = own.queue
        put_aside(queue, 4096)

        def interrupted(pool):
            pool.recent.clear()
            raise KeyboardInterrupt

        patched = mock.patch.object(SegmentPool, "_free_recent", interrupted)
        with patched, pytest.raises(KeyboardInterrupt):
            queue.alloca(8192)
        assert own._heap.books._is_broken
        with Calls() as calls:
            buffer = queue.alloca(4096)
        assert "StreamOrder.take" in calls.names
        buffer.allocation.wait(30)
        own.wait_idle(30)
        check_books(own)


def case_a_collection_in_an_alloca_finds_it_whole_i10(device):
    with open_own(device) as own:
        put_aside(own.queue, 64, 256)
        collect_in_allocas(own)
        check_books(own)


def case_nothing_of_a_pair_is_kept_q5(device):
    with open_own(device) as own:
        put_aside(own.queue, 256)
        keep_nothing(own)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
