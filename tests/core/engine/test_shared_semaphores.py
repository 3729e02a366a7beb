"""Semaphores that several processes open, who watches over them, and those that have gone (S1)."""

import fcntl
import gc
import os
import resource
import sys
import threading

import pytest
from core_harness import LIMIT, Running, wait_until

import hal
from hal._base import futex, regions
from hal._base import sharing_watch as watching
from hal._base.regions import SharedRegion
from hal._engine import progress
from hal._engine.shared_semaphore import Link
from hal.errors import (
    CancelledError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
    SemaphoreFailedError,
)
from hal.tickets import Ticket

pytestmark = pytest.mark.skipif(not futex.is_available(), reason="sharing needs Linux")


@pytest.fixture
def pair(device):
    """Return a shareable semaphore and another one of the same values, as of another process."""
    first = hal.create_semaphore(3, name="first", shareable=True)
    return first, device.open(first.share())


def raising(error):
    """Return a function that raises an error."""

    def refuse(*_, **__):
        raise error

    return refuse


def test_values_go_both_ways_s1(pair, device):
    first, second = pair
    assert second.query() == 3
    first.signal(4)
    second.wait(4, LIMIT)
    second.signal(9)
    assert first.poll(9)
    with pytest.raises(InvalidArgumentError, match="9 is the highest value"):
        first.signal(9)
    buffer = device.allocate(16)
    device.queue.fill(buffer, 1, wait=second.at(10), signal=second.at(11))
    first.signal(10)
    first.wait(11, LIMIT)
    assert (buffer.numpy() == 1).all()


class Words:
    """A region's words, of which no slice may be made."""

    def __init__(self, words):
        self._words = words

    def __getitem__(self, index):
        assert isinstance(index, int)
        return self._words[index]

    def __setitem__(self, index, value):
        self._words[index] = value


def test_shared_words_are_read_one_by_one_s1(pair):
    """On 3.13t, slices that two threads made of one view had it released (ValueError)."""
    first, second = pair
    for each in pair:
        each._link.region._words = Words(each._link.region._words)
        each._link.region._seen = -1
    first.signal(7)
    second.wait(7, LIMIT)
    assert second.query() == 7


@pytest.fixture
def following(monkeypatch):
    """Have the watching thread look at what has changed for the rest of the test.

    Returns a function that waits until it looks at a semaphore.
    """

    def wait_for(semaphore):
        wait_until(lambda: semaphore._link._followed is not None)

    monkeypatch.setattr(watching, "_FOLLOW_SECONDS", 10 * LIMIT)
    yield wait_for
    for each in list(watching.watch._followed):
        watching.watch._followed[each] = 0.0


@pytest.fixture
def reported(monkeypatch):
    """Return the errors that threads report to `sys.unraisablehook`."""
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda given: found.append(given.exc_value))
    return found


def break_(monkeypatch, link, method):
    """Have a method of one link fail."""
    real, error = getattr(Link, method), ArithmeticError("broken on purpose")

    def instead(given):
        if given is link:
            raise error
        return real(given)

    monkeypatch.setattr(Link, method, instead)
    return error


@pytest.mark.parametrize("method", ["look", "look_for_dead", "look_closely", "unfollow"])
def test_a_look_that_fails_fails_its_semaphore_alone_s5(
    device, pair, reported, monkeypatch, request, method
):
    """In every process, with the cause: the thread that looks went, and all waited for good."""
    first, second = pair
    if method in {"look_closely", "unfollow"}:
        if method == "look_closely":
            request.getfixturevalue("following")
        monkeypatch.setattr(Link, "look_for_dead", lambda _: None)
    error = break_(monkeypatch, second._link, method)
    first.signal(4)
    for each in (second, first):
        gate = device.queue.barrier(wait=each.at(9))
        with pytest.raises(OperationError, match="broken on purpose"):
            gate.wait(LIMIT)
    assert isinstance(second._failure.__cause__, ArithmeticError)
    assert set(reported) == {error}
    third = hal.create_semaphore(shareable=True)
    work = device.queue.barrier(wait=device.open(third.share()).at(1))
    third.signal(1)
    work.wait(LIMIT)


def test_the_watching_thread_goes_on_where_the_system_does_not_let_it_sleep_s1(
    device, pair, reported, monkeypatch
):
    error, sleep = OSError("no sleep on purpose"), futex.sleep

    def refuse(*_):
        monkeypatch.setattr(watching.futex, "sleep", sleep)
        raise error

    monkeypatch.setattr(watching.futex, "sleep", refuse)
    first, second = pair
    for value in (4, 5):
        work = device.queue.barrier(wait=second.at(value))
        first.signal(value)
        work.wait(LIMIT)
    wait_until(lambda: reported == [error])


def test_members_are_alive_while_the_system_opens_no_file_to_tell_s5(pair):
    """A process with as many files as it may have took all others for dead."""
    kind = resource.RLIMIT_NOFILE
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (0, limits[1]))
    try:
        alive = [each._link.region.members()[0].is_alive() for each in pair]
    finally:
        resource.setrlimit(kind, limits)
    assert alive == [True, True]


def test_a_member_says_when_it_began_or_there_is_none_s5():
    """S5: with a time of 0 the others took it for dead, and failed what it was to signal."""
    region = SharedRegion.create("semaphore", 0)
    regions.began.cache_clear()
    kind = resource.RLIMIT_NOFILE
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (0, limits[1]))
    try:
        for call in (region.names, lambda: region.join(0)):
            with pytest.raises(OutOfMemoryError, match="open files"):
                call()
    finally:
        resource.setrlimit(kind, limits)
    region.join(0)
    (member,) = SharedRegion.open(Ticket(**region.names()), "semaphore", 0).members()
    assert member.is_alive()


def test_who_has_a_dead_members_place_by_now_stays_s5(monkeypatch):
    """S5: two processes that began in one tick of the system's clock differ by their numbers."""
    region = SharedRegion.create("semaphore", 0)
    other = SharedRegion.open(Ticket(**region.names()), "semaphore", 0)
    region.join(0)
    (dead,) = other.members()
    monkeypatch.setattr(other, "members", lambda: (dead._replace(process=1 << 22),))
    other.expel_dead()
    monkeypatch.undo()
    assert other.members() == (dead,)


def test_an_interrupt_after_a_region_was_made_closes_its_file_once_o3(monkeypatch):
    """O3: the number may be another file's by the second time."""
    closed, close = [], os.close

    def interrupt(frame, event, _):
        if event == "return" and frame.f_code is SharedRegion.__init__.__code__:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
    region = SharedRegion.create("semaphore", 0)
    for make in (
        lambda: SharedRegion.create("semaphore", 0),
        lambda: SharedRegion.open(Ticket(**region.names()), "semaphore", 0),
    ):
        closed.clear()
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            make()
        sys.setprofile(None)
        gc.collect()
        assert closed.count(closed[0]) == 1


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_value_is_told_though_its_semaphore_was_dropped_s1(device, request, is_followed):
    """It is the last that a process does with one: the others wait for that value."""
    first = hal.create_semaphore(shareable=True)
    second = device.open(first.share())
    if is_followed:
        following = request.getfixturevalue("following")
        first.signal(1)
        following(second)
    device.queue.barrier(signal=second.at(2)).wait(LIMIT)
    del second
    gc.collect()
    first.wait(2, LIMIT)


def test_turns_of_work_are_handed_on_by_the_watching_thread_alone_s1(
    pair, device, following, monkeypatch
):
    """The progress thread would be one more to wake, for each turn."""
    first, second = pair
    first.signal(4)
    following(second)
    second.signal(5)
    following(first)
    device.queue.barrier(wait=first.at(6), signal=first.at(7))
    second.signal(6)
    second.wait(7, LIMIT)  # what was registered before is told
    posted = []
    post = progress._progress.post
    monkeypatch.setattr(progress._progress, "post", lambda work: (posted.append(work), post(work)))
    buffer, other = device.allocate(16), device.create_queue()
    for turn in range(8, 40, 2):
        device.queue.fill(buffer, 1, wait=first.at(turn), signal=first.at(turn + 1))
        other.fill(buffer, 2, wait=second.at(turn + 1), signal=second.at(turn + 2))
    second.signal(8)
    first.wait(40, LIMIT)
    assert len(posted) <= 1  # that of the wait


def test_the_dead_are_looked_for_while_values_change_s4(pair, following, monkeypatch):
    first, second = pair
    first.signal(4)
    following(second)
    looked = threading.Event()
    monkeypatch.setattr(type(first._link), "look_for_dead", lambda _: looked.set())
    assert looked.wait(LIMIT)


def test_who_waits_is_not_joined_by_the_watching_thread_s6(pair, following):
    first, second = pair
    first.signal(4)
    following(second)
    second._link.region.set_awake(1)
    first._link.region.raise_to(5)
    assert not second._link.look_closely()
    assert second._value == 4
    second._link.region.set_awake(0)


def test_promises_in_both_are_kept_in_any_order_s1(pair, device):
    """S1: a value from elsewhere is reached though a higher one is promised here."""
    first, second = pair
    buffer = device.allocate(16)
    late = device.queue.fill(buffer, 1, wait=first.at(5), signal=first.at(10))
    waiting = device.create_queue().fill(buffer, 2, wait=first.at(4))
    second.signal(4)
    waiting.wait(LIMIT)
    assert not late.done
    second.signal(5)
    second.wait(10, LIMIT)
    late.wait(LIMIT)


def test_failures_go_both_ways_s4(device):
    first = hal.create_semaphore(shareable=True)
    second = device.open(first.share())
    second.fail(CancelledError("the user left"))
    with pytest.raises(CancelledError, match="the user left"):
        first.wait(1, LIMIT)
    first = hal.create_semaphore(shareable=True)
    second = device.open(first.share())
    first.fail(ZeroDivisionError("x" * 5000))
    with pytest.raises(SemaphoreFailedError, match="ZeroDivisionError"):
        second.wait(1, LIMIT)
    with pytest.raises(SemaphoreFailedError):
        device.open(first.share()).query()


def test_operations_that_fail_tell_the_others_s4(device):
    first = hal.create_semaphore(shareable=True)
    second = device.open(first.share())

    def refuse():
        raise OperationError("no such file")

    device.queue.call(refuse, signal=first.at(1))
    with pytest.raises(OperationError, match="no such file"):
        second.wait(1, LIMIT)


def test_who_is_gone_gives_its_place_back_s3(device):
    first = hal.create_semaphore(shareable=True)
    others = [device.open(first.share()) for _ in range(31)]
    with pytest.raises(InvalidArgumentError, match="at most 32"):
        device.open(first.share())
    others[7].signal(5)
    del others
    gc.collect()
    first._link._watch.ring(first._link.region)
    last = None
    while last is None:  # the watching thread has to come by first
        try:
            last = device.open(first.share())
        except InvalidArgumentError:
            first._link._watch.ring(first._link.region)
    assert last.query() == 5


def test_a_handler_that_shares_leaves_the_lock_to_what_it_interrupted_o3():
    """O3: a call that comes in the middle of another gives up nothing."""
    region = SharedRegion.create("semaphore", 0)
    with open(f"/proc/self/fd/{region.fd}", "rb") as other:  # as another process has it
        with region._locked():
            region.shut()  # as a handler would
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_handler_that_opens_what_is_being_opened_waits_for_nobody_o3():
    """O3: each opening has a lock of the file by itself, and the handler waited for its own."""
    region = SharedRegion.create("semaphore", 0)
    other = SharedRegion.open(Ticket(**region.names()), "semaphore", 0)

    def nest():
        with region._locked():
            with other._locked():  # as a handler would
                region.shut()
            with open(f"/proc/self/fd/{region.fd}", "rb") as third, pytest.raises(BlockingIOError):
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)

    Running(nest).result()
    with other._locked(), region._locked():
        pass


def test_what_is_common_has_one_writer_in_a_process_too_s4():
    region, entered = SharedRegion.create("semaphore", 0), threading.Event()

    def write():
        with region._locked():
            entered.set()

    writer = threading.Thread(target=write)
    with region._locked():
        writer.start()
        assert not entered.wait(0.05)  # one that comes later finds nothing wrong
    writer.join(LIMIT)
    assert entered.is_set()


def test_callbacks_and_any_waits_see_values_of_others_s8(pair):
    first, second = pair
    reached = hal.create_semaphore()
    first.on_reached(4, lambda error: reached.signal(1))
    second.signal(4)
    reached.wait(1, LIMIT)
    never = hal.create_semaphore()
    second.signal(5)
    assert hal.wait_any([never.at(1), first.at(5)], LIMIT) == 1


def test_a_handler_that_shares_while_the_bell_is_hung_up_waits_for_nobody_o3(monkeypatch):
    """O3: it has one hung up, and the call that it has interrupted takes that."""
    watch, create, inner = watching.SharingWatch(), SharedRegion.create, []

    def interrupted(*arguments):
        made = create(*arguments)
        if not inner:
            inner.append(None)
            inner[0] = watch.bell()
        return made

    monkeypatch.setattr(SharedRegion, "create", interrupted)
    assert Running(watch.bell).result() == inner[0] == watch.bell()
    bell, watch._bell = watch._bell, None  # the thread ends
    watch._ring(bell)


def test_a_ctrl_c_as_the_watching_thread_starts_leaves_no_bell_without_one_o3(monkeypatch):
    """O3: nobody would ever look at what other processes do."""
    watch, started = watching.SharingWatch(), []

    def start(name, function):
        started.append(name)
        if len(started) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.sync, "start_thread", start)
    with pytest.raises(KeyboardInterrupt):
        watch.bell()
    watch.bell()
    assert len(started) == 2


def test_a_bell_that_could_not_be_opened_is_opened_later_s1(pair, monkeypatch):
    """S1: after one ring without a file to spare no other of the process was heard at once."""
    region, watch = pair[0]._link.region, watching.SharingWatch()
    (member,) = region.members()
    with monkeypatch.context() as patched:
        refused = raising(InvalidArgumentError("too many open files"))
        patched.setattr(SharedRegion, "open_file", refused)
        assert watch._bell_of(member) is None
    assert watch._bell_of(member) is watch._bell_of(member) is not None
