"""Cases of the objects that are made of those that have ended (`recycle.c`)."""

import gc
import sys
import weakref
from unittest import mock

from child_processes import assert_quiet, run_command
from core_harness import wait_until
from shortcut_harness import main, warm

import hal
from hal._memory.storage import Storage


def case_the_next_object_is_made_of_the_last_one(device):
    warm(device)
    semaphore = device.create_semaphore()
    place = id(semaphore.at(1))
    assert id(semaphore.at(2)) == place
    made = hal.Timepoint.__new__(hal.Timepoint)  # nothing of the last one shows
    assert id(made) == place
    assert not hasattr(made, "_value")
    assert gc.is_tracked(made)


def case_weak_references_end_with_each_of_them(device):
    warm(device)
    queue, ended = device.queue, []
    buffer = device.allocate(256)
    for number in range(50):
        submission = queue.fill(buffer, 1)
        watch = weakref.ref(submission, ended.append)
        submission.wait(30)
        queue.wait_idle(30)
        del submission
        wait_until(lambda watch=watch: ended == [watch])  # on another thread, maybe
        assert watch() is None, number
        ended.clear()


def drop_each(device, spoil):
    """Drop memory of allocas, each after it was given to `spoil`; it comes back every time."""
    warm(device)
    queue = device.queue
    for _ in range(50):
        buffer = queue.alloca(4096)
        buffer.allocation.wait(30)
        assert device.statistics().bytes_now
        spoil(buffer._storage)
        del buffer
        queue.wait_idle(30)
        gc.collect()
        assert device.statistics().bytes_now == 0


def case_memory_comes_back_from_each_of_them(device):
    """A finaliser runs once for an object that Python knows to be finalised."""
    drop_each(device, lambda _: None)


def case_memory_comes_back_from_those_that_the_collector_finds(device):
    def enclose(storage):
        circle = [storage]
        storage.asked = circle
        circle.append(circle)

    drop_each(device, enclose)


def case_a_subclass_has_its_own(device):
    ended = []

    class Named(hal.Buffer):
        def __init__(self, name):
            self.name = name

        def __del__(self):
            ended.append(self.name)

    places = set()
    for name in range(100):
        named = Named(name)
        named._storage = device.allocate(256)
        places.add(id(named))
        del named
    assert ended == list(range(100))
    plain = device.allocate(256)
    assert type(plain) is hal.Buffer
    assert not hasattr(plain, "__dict__")


def case_one_that_is_shown_by_its_finaliser_lives_on(device):
    warm(device)
    queue = device.queue
    buffer = queue.alloca(4096)
    buffer.allocation.wait(30)
    queue.wait_idle(30)
    kept = []
    plain = Storage.__del__

    def show(storage):
        kept.append(storage)
        plain(storage)

    with mock.patch.object(Storage, "__del__", show):
        del buffer
        assert len(kept) == 1
        assert kept[0].size == 4096
    kept.clear()  # it is not finalised again, and nothing is made of it
    case_memory_comes_back_from_each_of_them(device)


def case_a_long_chain_ends_without_a_deep_stack(device):
    warm(device)
    submission = None
    buffer = device.allocate(256)
    for _ in range(100_000):
        following = hal.Submission.__new__(hal.Submission)
        following._shared = submission
        submission = following
    watch = weakref.ref(submission)
    del submission, following
    assert watch() is None
    device.queue.fill(buffer, 1).wait(30)


AGAIN = """
import sys
import hal
device = hal.create_device("cpu")
buffer, semaphore = device.allocate(64), hal.create_semaphore()
ended = [semaphore.at(value) for value in range(50)] + [device.queue.fill(buffer, 1)]
device.wait_idle(30)
for name in [name for name in sys.modules if name.partition(".")[0] == "hal"]:
    del sys.modules[name]
import hal as other
assert other.Timepoint is not hal.Timepoint
del ended, buffer
assert type(other.create_semaphore().at(1)) is other.Timepoint
assert type(semaphore.at(1)) is hal.Timepoint
"""


def case_objects_of_classes_that_are_imported_again_end_as_before(device):
    """A tool that reloads a program does so: classes of both imports are alive."""
    assert_quiet(run_command([sys.executable, "-c", AGAIN]))


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
