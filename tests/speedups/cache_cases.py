"""Cases of the shortcut for memory of the cache."""

import gc
import random
import signal
import sys
from functools import partial

import numpy as np
import pytest
from core_harness import handled_by
from pool_cases import check_books, slots_of
from shortcut_harness import Calls, in_threads, main, warm

import hal
from hal._memory.heap import Heap

PLAIN = Heap.allocate.__wrapped__
REST = {"Device.allocate", "DeviceCore._live", "check_allocation", "check_rights", "as_flag"}
REST |= {"Extent.__init__", "Storage.__del__", "Reaper.doom", "as_text", "check_memory"}


def case_memory_of_the_cache_takes_no_engine_m1(device):
    warm(device)
    device.allocate(5000)
    assert Heap.allocate is not PLAIN
    with Calls() as calls:
        buffer = device.allocate(5000)
        del buffer
        buffer = device.allocate(5001)
    assert not set(calls.names) - REST, calls.names
    assert buffer.size == 5001
    check_books(device)


def case_what_is_made_is_what_python_makes_m1(device):
    heap = device._heap
    for size in (1, 2048, 2049, 5000, 1 << 16, (1 << 16) + 1, 3 << 20):
        made = [device.allocate(size), device.allocate(size)]
        del made
        one, two = Heap.allocate(heap, size, 0), PLAIN(heap, size, 0)
        for mine, theirs in ((one, two), (one._lease, two._lease)):
            have, want = slots_of(mine), slots_of(theirs)
            own = {"_lease", "address", "host_address", "block", "since"}
            assert {each: have[each] for each in have.keys() - own} == {
                each: want[each] for each in want.keys() - own
            }
        block = one._lease.block
        assert block.lease is one._lease
        assert (one.address, one.host_address) == (block.address, block.host_address)
        assert block.size == two._lease.block.size
        assert one._lease.since <= two._lease.since + 0.1
    check_books(device)


def case_random_turns_keep_the_books_m1(device):
    """C and Python take turns, with memory of every kind, allocas, views and a trim in between."""
    pick, living, heap = random.Random(7), [], device._heap
    for number in range(3000):
        way, size = pick.randrange(20), 1 << pick.randrange(4, 18)
        if way == 0:
            living.append(device.allocate(size, memory="host"))
        elif way == 1:
            living.append(device.queue.alloca(size))
        elif way == 2:
            living.append(device.upload(np.full(size, number % 256, np.uint8)))
            assert living[-1].numpy()[-1] == number % 256
        elif way < 10:
            living.append(Heap.allocate(heap, size + pick.randrange(8), 0))
        elif way < 13:
            living.append(PLAIN(heap, size, 0))
        elif way == 13 and not number % 7:
            device.trim(1 << 18)
        for _ in range(min(pick.randrange(3), len(living))):
            living.pop(pick.randrange(len(living)))
        if not number % 100:
            check_books(device)
    living.clear()
    device.wait_idle(30)
    gc.collect()
    device.trim()
    check_books(device)
    assert device.statistics().bytes_now == 0


def case_more_than_a_few_that_have_ended_are_pythons_m1(device):
    warm(device)
    for count in (1, 8, 9, 300):
        made = [device.allocate(4096) for _ in range(count)]
        addresses = {each._storage.address for each in made}
        del made
        again = device.allocate(4096)
        assert again._storage.address in addresses
        check_books(device)


def case_threads_share_the_cache_m1(device):
    def work(index):
        for number in range(400):
            value = (index * 31 + number) % 256
            buffer = device.upload(np.full(1000 + index, value, np.uint8))
            assert set(buffer.numpy().tolist()) == {value}

    in_threads(*(partial(work, index) for index in range(4)))
    check_books(device)


def case_a_handler_within_an_allocation_is_refused_m1(device):
    """Whether or not the cache has a block: the answer must not depend on that."""
    warm(device)
    heap, refused = device._heap, []

    def handle(*_):
        with pytest.raises(hal.errors.ReentrantCallError):
            Heap.allocate(heap, 4096, 0)
        refused.append(True)

    device.allocate(4096)
    for lock in heap._locks:
        with handled_by(handle), lock:
            signal.raise_signal(signal.SIGALRM)
    assert len(refused) == len(heap._locks)


def case_a_closed_device_gives_none_m1(device):
    own = hal.create_device(device.name)
    own.allocate(4096)
    heap = own._heap
    own.close()
    with pytest.raises(hal.errors.ClosedError):
        Heap.allocate(heap, 4096, 0)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
