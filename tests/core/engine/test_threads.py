"""The threads that hal starts: how many, and what happens when the system starts no more."""

import threading
from collections import deque

import pytest
from core_harness import LIMIT, wait_until

import hal
from hal._base import sync
from hal._base.workers import Pool
from hal._engine import progress as _progress
from hal._engine.notifier import Notifier
from hal._memory.settings import MemorySettings
from hal.errors import DeadlineExceededError, OperationError

SIZE = 4096


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ([Notifier.ARMED], _progress.NET_SECONDS),
        ([Notifier.ARMED, Notifier.BEHIND], _progress._SHORT_SECONDS),
        ([Notifier.BEHIND, Notifier.IDLE], _progress._SHORT_SECONDS),
    ],
)
def test_the_progress_thread_asks_soon_for_what_no_driver_will_tell_in_time(
    monkeypatch, states, seconds
):
    """It does not sleep long because of a refused notification, or one for later work."""
    progress, bell = _progress._Progress(), sync.Doorbell()
    progress._watched = dict.fromkeys(range(len(states)))
    monkeypatch.setattr(_progress, "harvest", lambda *_: None)
    monkeypatch.setattr(_progress, "serve", lambda queue, *_: states[queue])
    pause = _progress.act(progress.turn, bell, True)  # noqa: FBT003
    assert pause == seconds
    assert len(progress._watched) == len(states) - states.count(Notifier.IDLE)


def test_a_thread_takes_its_work_back_while_the_progress_thread_takes_it_too():
    """An entry that it has seen in the inbox may be gone at the next moment, above all on 3.13t."""

    class Fleeting(deque):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            self.clear()
            return found

    progress = _progress._Progress()
    mine = ((_progress.LATER, None), sync.get_ident())
    progress._inbox = Fleeting([mine])
    step = _progress.CallStep()
    assert progress.take_back(step)
    assert not progress.take_back(step)
    assert step.work == []


@pytest.fixture
def threads(monkeypatch):
    """Helper threads of the test's own; count those that are started, and refuse more."""
    for name in ("_pool", "dispatcher", "workers"):
        mine = getattr(_progress, name)
        monkeypatch.setattr(_progress, name, Pool(mine._name, mine._limit))
    return Threads(monkeypatch)


class Threads:
    """The threads that are asked for, and how many start."""

    def __init__(self, monkeypatch):
        self.started = []
        self.refused = 0
        self.limit = 10**6
        start = threading.Thread.start

        def count(thread):
            if not thread.name.startswith("hal-"):
                return start(thread)
            if len(self.started) >= self.limit:
                self.refused += 1
                message = "can't start new thread"
                raise RuntimeError(message)
            self.started.append(thread)
            return start(thread)

        monkeypatch.setattr(threading.Thread, "start", count)

    def settle(self, name, count):
        """Wait until so many live; one that was started too many ends at once."""
        wait_until(lambda: sum(t.name == name and t.is_alive() for t in self.started) == count)


def ways(device, ran, path):
    """Return what needs a thread."""
    buffer = device.allocate(SIZE)
    return {
        "call": lambda: device.queue.call(ran.append, 1),
        "call later": lambda: device.queue.call(ran.append, 1, wait=hal.create_semaphore().at(1)),
        "file": lambda: device.queue.read(buffer, hal.File(path)),
        "alloca": lambda: device.queue.alloca(3 * SIZE),
        "callback": lambda: hal.create_semaphore(1).on_reached(1, ran.append),
    }


@pytest.mark.parametrize("way", ["call", "call later", "file", "alloca", "callback"])
def test_what_needs_a_thread_raises_if_there_is_none(device, threads, tmp_path, capfd, way):
    """The call raises and changes nothing: no part of it runs later, and other work goes on."""
    ran = []
    threads.limit = 0
    submit = ways(device, ran, tmp_path / "file")[way]
    with pytest.raises(OperationError, match="the system starts none"):
        submit()
    buffer = device.allocate(SIZE)
    assert (buffer.numpy(wait=device.queue.fill(buffer, 1), timeout=LIMIT) == 1).all()
    assert threads.refused == 1
    assert ran == []
    assert not (tmp_path / "file").exists()
    threads.limit = 10**6
    hal.create_semaphore(1).on_reached(1, lambda error: ran.append("heard"))
    device.queue.call(ran.append, "called").wait(LIMIT)
    wait_until(lambda: len(ran) == 2)
    assert sorted(ran) == ["called", "heard"]
    assert capfd.readouterr().err == ""


def test_calls_wait_for_a_thread_where_no_more_are_started(device, threads, gate):
    """Accepted calls run when a thread is free; the releasing thread gets no error."""
    threads.limit = 1
    ran, semaphore, queue = [], hal.create_semaphore(), device.create_queue(ordered=False)
    entered = threading.Event()
    blocking = queue.call(lambda: (entered.set(), gate.wait(LIMIT)))
    assert entered.wait(LIMIT)  # a thread that comes late would find two calls, and try once more
    late = queue.call(ran.append, 1, wait=semaphore.at(1))
    buffer = device.allocate(SIZE)
    device.queue.fill(buffer, 1, signal=semaphore.at(1)).wait(LIMIT)
    with pytest.raises(DeadlineExceededError):
        late.wait(0.01)
    assert ran == []
    refused = threads.refused
    device.queue.fill(buffer, 2).wait(LIMIT)
    assert threads.refused == refused, "somebody keeps trying"
    gate.set()
    hal.wait_all([blocking, late], LIMIT)
    assert ran == [1]


def test_a_device_is_not_opened_without_its_thread(run_script):
    """Waiting for work needs the progress thread, so opening a device without it raises."""
    result = run_script("""
        import threading, hal
        start = threading.Thread.start

        def refuse(_):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse
        try:
            hal.create_device("cpu")
        except hal.HalError as error:
            assert "thread" in str(error), error
        else:
            raise AssertionError("no thread, and no error")
        semaphore = hal.create_semaphore()
        semaphore.signal(1)
        semaphore.wait(1)
        threading.Thread.start = start
        with hal.create_device("cpu") as device:
            device.queue.call(list).wait(30)
    """)
    assert result.returncode == 0, result.stderr


def test_blocking_calls_are_submitted_at_once_and_their_threads_are_bounded_q1(device, threads):
    """Q1: thousands of calls that block need no more threads than there are at the most."""
    queue, gate = device.create_queue(ordered=False), hal.create_semaphore()
    calls = [queue.call(gate.wait, 1, LIMIT) for _ in range(1500)]
    threads.settle("hal-host-call", 256)
    gate.signal(1)
    hal.wait_all(calls, 3 * LIMIT)


def test_calls_that_need_each_other_get_a_thread_each(device):
    """A hundred calls meet at a barrier, so that each needs a thread."""
    queue, barrier = device.create_queue(ordered=False), threading.Barrier(100, timeout=LIMIT)
    hal.wait_all([queue.call(barrier.wait) for _ in range(100)], 2 * LIMIT)


def test_a_call_that_comes_while_a_thread_is_started_gets_one_q4(monkeypatch, gate):
    """Q4: the new thread may be in its first call before the thread that started it goes on."""
    pool, entered, ran = Pool("hal-test", 2), threading.Event(), threading.Event()
    start = sync.start_thread

    def start_late(name, work):
        monkeypatch.setattr(sync, "start_thread", start)
        start(name, work)
        assert entered.wait(LIMIT)
        pool.run(ran.set)

    monkeypatch.setattr(sync, "start_thread", start_late)
    pool.run(lambda: (entered.set(), gate.wait()))
    assert ran.wait(LIMIT)


def test_a_thread_too_many_ends_at_once(monkeypatch):
    """A caller may start one before the last one has counted itself."""
    pool, started = Pool("hal-test", 1), []

    def start_later(name, work):
        started.append(threading.Thread(target=work, daemon=True))

    monkeypatch.setattr(sync, "start_thread", start_later)
    for _ in range(2):
        pool.run(list)
    for thread in started:
        thread.start()
    wait_until(lambda: [thread.is_alive() for thread in started].count(True) == 1)


def test_blocked_calls_hold_up_no_work_of_ours(device, threads, gate, tmp_path, monkeypatch):
    """All threads for calls block: files, allocations and frees go on."""
    monkeypatch.setattr(_progress._pool, "_limit", 2)
    queue = device.create_queue(ordered=False)
    calls = [queue.call(gate.wait, LIMIT) for _ in range(4)]
    buffer = queue.alloca(SIZE)
    written = device.queue.fill(buffer, 7, wait=buffer.allocation)
    device.queue.read(buffer, hal.File(tmp_path / "file"), wait=written).wait(LIMIT)
    assert (tmp_path / "file").read_bytes() == bytes([7]) * SIZE
    threads.settle("hal-host-call", 2)
    gate.set()
    hal.wait_all(calls, LIMIT)


def test_allocations_that_wait_take_no_thread_m3(open_probe, threads):
    """M3: an alloca needs a thread only after the work that it is ordered behind."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=SIZE))
    gate, queue = hal.create_semaphore(), device.create_queue(ordered=False)
    one = queue.alloca(SIZE)
    one.allocation.wait(LIMIT)
    ended = queue.dealloca(one, wait=gate.at(1))
    waiting = []
    for _ in range(200):
        buffer = queue.alloca(SIZE, wait=ended)
        waiting.append(buffer)
        ended = queue.dealloca(buffer, wait=buffer.allocation)
    wait_until(lambda: not _progress.workers._tasks and not _progress.workers._busy)
    assert {buffer.allocation.state for buffer in waiting} == {"pending"}
    assert len(threads.started) <= 64
    gate.signal(1)
    for buffer in waiting:
        buffer.allocation.wait(LIMIT)
    ended.wait(LIMIT)


def test_idle_threads_end_but_for_one(device, threads, monkeypatch):
    """The last one stays: what was accepted finds a thread."""
    monkeypatch.setattr("hal._base.workers._IDLE_SECONDS", 0.01)
    queue, barrier = device.create_queue(ordered=False), threading.Barrier(5, timeout=LIMIT)
    hal.wait_all([queue.call(barrier.wait) for _ in range(5)], LIMIT)
    wait_until(lambda: _progress._pool._count == 1)
    threads.limit = 0
    for _ in range(3):
        queue.call(list).wait(LIMIT)
