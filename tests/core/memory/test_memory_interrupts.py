"""What breaks calls off loses no memory of `Queue.alloca`, and gives none out twice (M3, O3)."""

import gc
import itertools
import sys

import pytest
from child_processes import assert_quiet
from core_harness import LIMIT, Latch, collect_in_threads, wait_until
from piece_checks import check_pieces

import hal
from hal._engine import progress
from hal._engine.closing import _cancel
from hal._memory.books import Books
from hal._memory.settings import MemorySettings
from hal._memory.storage import Handle
from hal.errors import InvalidArgumentError, OperationError, ReentrantCallError

SIZE = 4096


def in_use(device):
    """Return how many allocations there are once all work has ended."""
    device.wait_idle(LIMIT)
    gc.collect()
    return device.statistics().allocations


def test_a_handle_that_a_ctrl_c_left_unmade_goes_quietly_o3():
    """O3: its `__init__` had only begun."""
    Handle.__new__(Handle).__del__()


def test_a_refused_use_holds_no_memory_m3(device):
    """M3: an operation that was refused is waited for by no dealloca."""
    done = hal.create_semaphore(5)
    buffer = device.queue.alloca(SIZE)
    with pytest.raises(InvalidArgumentError, match="cannot be signalled"):
        device.queue.fill(buffer, 1, signal=done.at(1))
    device.queue.dealloca(buffer).wait(LIMIT)
    assert in_use(device) == 0


def test_what_is_cancelled_in_part_holds_no_memory_m3(open_probe):
    """M3: memory returns when the issued part of a cancelled operation has retired."""
    device, probe = open_probe(max_in_flight=4)
    device._command_buffer = "stream"
    with device.record(slots=[("u1", SIZE)]) as commands:
        for _ in range(20):
            commands.fill(commands.slots[0], 1)
    buffer, queue, latch = device.queue.alloca(SIZE), device.create_queue(), Latch()
    buffer.allocation.wait(LIMIT)
    probe.hold(latch)
    done = queue.execute(commands, bindings=[buffer])
    assert done.state == "pending"
    progress.act(_cancel, [queue], None)  # as `close` begins
    device.queue.dealloca(buffer).wait(LIMIT)
    assert device.statistics().allocations == 1  # a part of it runs
    latch.open()
    assert queue.close(LIMIT) == ()
    assert done.state == "cancelled"
    assert in_use(device) == 0


def test_a_handler_asks_for_statistics_in_the_middle_of_others_o3(device):
    """O3, M3: memory that both could take back is taken back once."""
    told = 0
    for number in itertools.count(1):
        loose = [device.queue.alloca(size) for size in (256, SIZE, 100_000, 256, 300)]
        device.wait_idle(LIMIT)
        del loose[::2]
        left = number

        def ask(frame, event, _, loose=loose):
            nonlocal left, told
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(
                hal.__path__[0]
            ):
                left -= 1
                if not left:
                    sys.setprofile(None)
                    loose.clear()
                    try:
                        device.statistics()
                    except ReentrantCallError:
                        told += 1

        sys.setprofile(ask)
        try:
            device.statistics()
        finally:
            sys.setprofile(None)
        check_pieces(device)
        loose.clear()
        assert in_use(device) == 0
        if left > 0:
            break
    assert told


@pytest.mark.parametrize("broken", [OperationError, KeyboardInterrupt])
def test_an_alloca_starves_beside_a_dealloca_that_breaks_off_m3(open_probe, monkeypatch, broken):
    """M3: the search saw it being issued, and relies on its end, which comes although it failed."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=4 * SIZE))
    queue, other = device.queue, device.queues.upload
    large = queue.alloca(3 * SIZE)
    queue.fill(large, 1).wait(LIMIT)
    starved = []

    def starve():
        buffer = other.alloca(3 * SIZE)
        starved.extend((buffer.allocation, other.dealloca(buffer)))

    def record(*_):
        monkeypatch.undo()
        collect_in_threads([starve])
        wait_until(lambda: not device._context.provider.is_posted)
        raise broken

    monkeypatch.setattr(queue, "_record", record)
    if broken is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            queue.dealloca(large)
    else:
        assert queue.dealloca(large).state == "failed"
    hal.wait_all(starved, LIMIT)
    assert in_use(device) == 0


@pytest.mark.parametrize("name", ["begin_use", "add"])
def test_memory_that_a_ctrl_c_leaves_uncounted_is_freed_i7(open_probe, monkeypatch, name):
    """I7, O3: one comes before the driver has made it, or before the books count it."""
    device, probe = open_probe()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(Books, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            device.queue.alloca(SIZE)
    # The thread that repairs the call drops the storage, at any time from now on.
    assert probe.calls["allocate_async"] == (name == "begin_use")
    assert in_use(device) == 0
    wait_until(lambda: device.statistics() and "async allocation" not in probe.live())
    device.trim()
    assert device.statistics().bytes_held == 0


INTERRUPTS = """
    import contextlib, gc, itertools, sys
    import hal
    from core_harness import LIMIT, open_native, wait_until
    from hal._memory.settings import MemorySettings
    from hal.errors import DeadlineExceededError, HalError
    from native_probe import Probe
    from piece_checks import check_pieces
    from interrupts import Interrupts, try_pairs

    KIND, UNIT = sys.argv[1], 1 << 20
    sys.unraisablehook = lambda _: None  # what is raised in a finaliser, Python drops
    driver = open_native()

    class World:
        def __init__(self):
            inner = driver.open_device(0, {})
            pool = {"async_allocations"} if KIND == "pool" else set()
            self.probe = Probe(inner, None, inner.features | pool)
            self.device = hal.Device("cpu", self.probe, None, MemorySettings(memory_limit=4 * UNIT))
            self.queue, self.other, self.made = self.device.queue, self.device.queues.upload, []
            several = [self.queue.alloca(size) for size in (256, 4096, 100_000, 256)]
            for each in several[::2]:
                self.queue.dealloca(each)
            self.kept = [(several[1], 11), (several[3], 13)]
            for buffer, value in self.kept:
                self.queue.fill(buffer, value)
            with self.device.record() as self.commands:
                one, two = self.commands.alloca(3000), self.commands.alloca(700)
                self.commands.fill(one, 1)
                self.commands.barrier()
                self.commands.copy(one, two, size=700)
            self.hog = self.queue.alloca(3 * UNIT) if KIND == "starve" else None
            self.device.wait_idle(LIMIT)

        def act(self):
            queue, other, made = self.queue, self.other, self.made
            if KIND == "starve":
                large = other.alloca(2 * UNIT)
                small = queue.alloca(300)
                made += other.fill(large, 5), queue.fill(small, 6), other.dealloca(large)
                made += queue.dealloca(self.hog), queue.dealloca(small)
                self.hog = None
            elif KIND == "pool":
                for size in (UNIT, 2 * UNIT, 300, 3 * UNIT):  # each in the place of the one before
                    buffer = queue.alloca(size)
                    made += queue.fill(buffer, 1, size=256), queue.dealloca(buffer)
                made.append(queue.execute(self.commands))
            else:
                for size in (3000, 256, 50_000, 100):
                    buffer = queue.alloca(size)
                    made.append(queue.fill(buffer, 1))
                    if size != 256:
                        made.append(other.fill(buffer, 2, wait=made[-1]))
                        made.append(queue.dealloca(buffer, wait=made[-1]))
                made.append(queue.execute(self.commands))
            made[-1].wait(LIMIT)
            self.device.statistics()
            if KIND != "pool":  # what it is about to free is lost until the device closes
                self.device.trim()

        def check(self, places):
            wrong = []
            # Memory on its way from the books to the driver is lost, rather than freed twice.
            lossy = any(" give" in each or "free_async" in each for each in places)

            def attempt(what, function):
                try:
                    return function()
                except DeadlineExceededError as error:
                    wrong.append(f"{what}: {error}")
                except HalError:
                    pass

            if self.hog is not None:
                attempt("hog", lambda: self.queue.dealloca(self.hog))
            for each in self.made:
                attempt("never ends", lambda: each.wait(LIMIT))
            for index in range(8):
                queue = (self.queue, self.other)[index % 2]
                self.kept.append((queue.alloca(100 + index * 997), 20 + index))
                queue.fill(*self.kept[-1])
            self.device.wait_idle(LIMIT)
            for buffer, value in self.kept:
                wrong += set(buffer.numpy(timeout=LIMIT).tolist()) - {value}
            del buffer
            self.kept = self.made = self.commands = self.hog = None
            for queue in (self.queue, self.other):
                attempt("stuck", lambda: queue.barrier().wait(LIMIT))
            gc.collect()
            try:
                wait_until(lambda: not self.device.statistics().allocations)  # a thread lets go
            except AssertionError as error:
                wrong.append(error)
            check_pieces(self.device)
            self.device.trim()
            found = self.device.statistics()
            held = found.bytes_held if KIND != "pool" or not lossy else 0
            if found.allocations or found.bytes_now or held or self.device.lost:
                wrong.append(found)
            wrong += self.device.close(LIMIT)
            live = [kind for kind in self.probe.live() if kind == "async allocation"]
            wrong += live[lossy:]
            return [*wrong, *self.probe.violations]

    def trial(first, second):
        world = World()
        with Interrupts(first, second) as interrupts, contextlib.suppress(HalError):
            world.act()
        return interrupts.places, world.check(interrupts.places)

    step = 29 if KIND == "pool" else 5
    try_pairs(trial, KIND, lambda first: (1, 2 + first * 7 % 31), step)
"""


@pytest.mark.parametrize("kind", ["reuse", "starve", "pool"])
def test_two_ctrl_c_lose_no_memory_o3(run_script, kind):
    """O3, M3: nothing hangs, contents are not mixed, all memory comes back."""
    assert_quiet(run_script(INTERRUPTS, arguments=(kind,)))
