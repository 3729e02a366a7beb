"""The end: Q6 (close, interpreter exit, fork) and Ctrl-C."""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import threading
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from core_harness import LIMIT, Probe, collect_in_threads, open_native

import hal
from hal.errors import (
    CancelledError,
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    OperationError,
)

HERE = str(Path(__file__).parent)


def assert_quiet(result):
    """Fail unless the child ended well and had nothing to say on stderr."""
    if result.returncode or result.stderr:
        pytest.fail(f"the child ended with {result.returncode}:\n{result.stdout}{result.stderr}")


# Close


@pytest.mark.parametrize("what", ["device", "queue"])
def test_close_cancels_what_is_not_issued_q6(device, what):
    """Q6: never-satisfiable operations and what depends on them are cancelled."""
    opened = hal.create_device("cpu", max_in_flight=2)
    queue = opened.queue
    never, done = hal.create_semaphore(), hal.create_semaphore()
    buffer = opened.allocate(4)
    submissions = [
        queue.fill(buffer, 1, wait=never.at(1), signal=done.at(1)),
        queue.call(list, wait=never.at(1)),
        queue.barrier(),
    ]
    elsewhere = device.queue.barrier(wait=submissions[2])
    assert (opened if what == "device" else queue).close(LIMIT) == ()
    for each in submissions:
        assert each.state == "cancelled"
        with pytest.raises(CancelledError, match=queue.name):
            each.wait(LIMIT)
    with pytest.raises(CancelledError):
        done.wait(1, LIMIT)
    with pytest.raises(CancelledError):
        elsewhere.wait(LIMIT)
    assert never.query() == 0, "what it waited for is not touched"
    never.signal(1)
    assert not opened.lost
    opened.close(LIMIT)


def test_close_waits_for_what_is_issued_q6(open_probe, latch):
    """Q6: running and ready operations end well."""
    device, probe = open_probe()
    buffer = device.allocate(4, memory="host")
    view = buffer.map()
    done = hal.create_semaphore()
    probe.hold(latch)
    running = device.queue.fill(buffer, 1)
    ready = device.queue.fill(buffer, 2, signal=done.at(1))
    closing = threading.Event()

    def close():
        closing.set()
        return device.close(LIMIT)

    def release():
        assert closing.wait(LIMIT)
        with pytest.raises(DeadlineExceededError):
            running.wait(0.05)
        latch.open()

    told, _ = collect_in_threads([close, release])
    assert len(told) == 1, "the view"
    assert (running.state, ready.state) == ("done", "done")
    assert done.query() == 1
    assert view.tolist() == [2] * 4


def test_close_waits_for_running_calls_q6(device, gate):
    """Q6: a host function that runs is waited for, one that stands in line is cancelled."""
    queue = device.create_queue()
    started = threading.Event()

    def call():
        started.set()
        assert gate.wait(LIMIT)

    running = queue.call(call)
    waiting = queue.call(list)
    assert started.wait(LIMIT)
    closing = threading.Event()

    def close():
        closing.set()
        return queue.close(LIMIT)

    def release():
        assert closing.wait(LIMIT)
        with pytest.raises(CancelledError):
            waiting.wait(LIMIT)
        gate.set()

    told, _ = collect_in_threads([close, release])
    assert told == ()
    assert running.state == "done"


@pytest.mark.parametrize("what", ["device", "queue"])
def test_close_that_runs_out_of_time_q6(open_probe, latch, what):
    """Q6: the device is marked lost, the rest fails, what was abandoned is told; it returns."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    running = device.queues.upload.fill(buffer, 1, size=4, signal=semaphore.at(1))
    start = time.monotonic()
    told = (device if what == "device" else device.queues.upload).close(0.1)
    assert 0.1 <= time.monotonic() - start < LIMIT / 2
    assert [f"fill on {device.queues.upload.name}" in line for line in told] == [True]
    assert device.lost
    assert running.state == "failed"
    for waitable in (running, semaphore.at(1)):
        with pytest.raises(DeviceLostError, match="fill on"):
            hal.wait_all([waitable], LIMIT)
    latch.open()
    assert device.close(LIMIT) == ()


def test_close_of_a_call_that_never_ends_q6(open_probe, gate):
    """Q6: the same for a host function: it cannot be stopped, but close returns and says so."""
    device, _ = open_probe()
    started = threading.Event()

    def call():
        started.set()
        gate.wait(LIMIT)

    running = device.queue.call(call)
    assert started.wait(LIMIT)
    told = device.close(0.1)
    assert len(told) == 1
    assert "call on" in told[0]
    assert running.state == "failed"
    gate.set()


def test_abandoned_work_keeps_its_host_arrays_q5(open_probe, latch):
    """Q5: after a time-out the work goes on; what it reads and writes is never given back."""
    device, probe = open_probe()
    buffer = device.upload(np.full(1 << 16, 3, np.uint8))

    class Tracked(np.ndarray):
        pass

    array = np.zeros(1 << 16, np.uint8).view(Tracked)
    reference = weakref.ref(array)
    probe.hold(latch)
    device.queue.read(buffer, array)
    assert device.close(0.05) != ()
    assert device.lost
    del array, buffer
    gc.collect()
    assert reference() is not None
    latch.open()


def test_close_twice_and_by_with_q6(open_probe):
    """Q6: the second close does nothing; leaving `with` closes; so does an error inside."""
    device, probe = open_probe()
    assert not device.closed
    with device as entered:
        assert entered is device
        with device.create_queue() as queue:
            queue.barrier()
        assert queue.closed
    assert device.closed
    assert device.close(LIMIT) == ()
    assert device.close() == ()
    assert queue.close(LIMIT) == ()
    assert probe.calls["close"] == 1
    with pytest.raises(ZeroDivisionError), hal.create_device("cpu") as other:
        raise ZeroDivisionError
    assert other.closed
    with pytest.raises(ClosedError), device:
        pass


def test_close_from_several_threads_q6(open_probe):
    """Q6: of four closes at the same time one does it; nothing is given back twice."""
    for _ in range(10):
        device, probe = open_probe()
        buffer = device.allocate(64)
        for _ in range(20):
            device.queue.fill(buffer, 1)
        together = threading.Barrier(4, timeout=LIMIT)

        def close(device=device, together=together):
            together.wait()
            return device.close(LIMIT)

        assert collect_in_threads([close] * 4) == [()] * 4
        wait = threading.Event()
        while not probe.closed:
            assert not wait.wait(0.001)


def test_close_while_others_submit_q6(open_probe):
    """Q6: submitters see `ClosedError`; every operation that was taken ends; nothing is left."""
    for _ in range(5):
        device, probe = open_probe(max_in_flight=2)
        buffer = device.allocate(64)
        taken = []
        started = threading.Barrier(4, timeout=LIMIT)

        def submit(device=device, buffer=buffer, taken=taken, started=started):
            started.wait()
            with contextlib.suppress(ClosedError):
                while True:
                    taken.append(device.queue.fill(buffer, 1))

        def close(device=device, taken=taken, started=started):
            started.wait()
            while len(taken) < 20:
                pass
            return device.close(LIMIT)

        assert collect_in_threads([submit] * 3 + [close])[3] == ()
        for each in taken:
            assert each.done
            assert each.state in {"done", "cancelled"}
        assert probe.live() == {}


CLOSED_CALLS = {
    "fill": lambda device, buffer, queue: queue.fill(buffer, 1),
    "update": lambda device, buffer, queue: queue.update(buffer, b"1"),
    "copy": lambda device, buffer, queue: queue.copy(buffer, buffer, size=1, target_offset=2),
    "call": lambda device, buffer, queue: queue.call(list),
    "barrier": lambda device, buffer, queue: queue.barrier(),
    "read": lambda device, buffer, queue: queue.read(buffer, np.zeros(2, np.uint8)),
}
CLOSED_DEVICE_CALLS = {
    "allocate": lambda device, buffer: device.allocate(4),
    "upload": lambda device, buffer: device.upload(np.zeros(4)),
    "create_queue": lambda device, buffer: device.create_queue(),
    "record": lambda device, buffer: device.record(),
    "compile": lambda device, buffer: device.compile("extern"),
    "load": lambda device, buffer: device.load(b"image"),
    "statistics": lambda device, buffer: device.statistics(),
    "numpy": lambda device, buffer: buffer.numpy(),
}


@pytest.mark.parametrize("name", CLOSED_CALLS)
def test_a_closed_queue_refuses_work_q6(device, name):
    """The error names the queue and what to do; other queues go on."""
    buffer = device.allocate(4)
    queue = device.create_queue(name="gone")
    queue.close(LIMIT)
    with pytest.raises(ClosedError, match=r"gone.*create"):
        CLOSED_CALLS[name](device, buffer, queue)
    CLOSED_CALLS[name](device, buffer, device.queue).wait(LIMIT)


@pytest.mark.parametrize("name", [*CLOSED_CALLS, *CLOSED_DEVICE_CALLS])
def test_a_closed_device_refuses_everything_q6(name):
    opened = hal.create_device("cpu")
    buffer, queue = opened.allocate(4), opened.queue
    opened.close(LIMIT)
    arguments = (opened, buffer, queue) if name in CLOSED_CALLS else (opened, buffer)
    with pytest.raises(ClosedError, match="closed"):
        {**CLOSED_CALLS, **CLOSED_DEVICE_CALLS}[name](*arguments)


def test_harmless_calls_on_a_closed_device():
    """Names, descriptions and idle waits still answer."""
    opened = hal.create_device("cpu")
    opened.close(LIMIT)
    assert opened.closed
    assert not opened.lost
    assert opened.name == "cpu:0"
    assert opened.info.name
    assert "closed" in repr(opened)
    opened.wait_idle(LIMIT)
    opened.queue.wait_idle(LIMIT)
    opened.queue.flush()
    opened.create_semaphore()


# Interpreter exit

EXIT_PREFIX = """
    import sys, threading
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    import hal
    device = hal.create_device("cpu")
    queue = device.queue
    x = device.upload(np.zeros(1 << 20, np.uint8))
"""

AT_EXIT = {
    "idle": "",
    "running": """
        for _ in range(300):
            queue.fill(x, 1)
    """,
    "never satisfied": """
        gate = hal.create_semaphore()
        for _ in range(300):
            queue.fill(x, 1, wait=gate.at(1))
            device.queues.upload.call(print, "never", wait=gate.at(1))
    """,
    "backlog": """
        small = hal.create_device("cpu", max_in_flight=2)
        y = small.allocate(1 << 20)
        for index in range(300):
            small.queue.fill(y, index % 256)
    """,
    "callbacks": """
        s = hal.create_semaphore()
        for value in range(1, 300):
            s.on_reached(value, lambda _: None)
            queue.fill(x, 1, signal=s.at(value))
    """,
    "waiting thread": """
        s = hal.create_semaphore()
        def wait(waitable):
            try:
                hal.wait_all(waitable)
            except hal.HalError:
                pass
        for waitable in (s.at(1), queue.barrier(wait=s.at(1))):
            threading.Thread(target=wait, args=(waitable,), daemon=True).start()
    """,
    "live view": """
        view = x.map()
        queue.fill(x, 1)
    """,
    "host call": """
        queue.call(threading.Event().wait, 0.2)
        queue.call(list)
    """,
    "in a cycle": """
        class Holder: pass
        h = Holder(); h.self = h; h.all = (device, queue, x, hal.create_semaphore())
        queue.fill(x, 1)
        del device, queue, x, h
    """,
    "error": """
        queue.fill(x, 1)
        sys.exit(0)
    """,
    "submitting thread": """
        def submit():
            try:
                while True:
                    queue.fill(x, 1, size=16)
            except hal.HalError:
                pass
        threading.Thread(target=submit, daemon=True).start()
    """,
}


@pytest.mark.parametrize("what", AT_EXIT)
def test_interpreter_exit_with_work_in_flight_q6(run_script, what):
    """Q6: one hook closes every device: the process ends by itself, with nothing to say."""
    lines = AT_EXIT[what].replace("\n    ", "\n")
    start = time.monotonic()
    assert_quiet(run_script(EXIT_PREFIX + lines, arguments=(HERE,)))
    assert time.monotonic() - start < 2 * LIMIT


EXIT_HOOK = """
    import atexit, sys
    sys.path.insert(0, sys.argv[1])

    def look():  # registered before hal's own hook, and so called after it
        for device, probe in opened:
            print(device.closed, device.lost, probe.live(), probe.violations)
        print(pending.state, running.state, view[:2].tolist())

    atexit.register(look)
    import hal
    from core_harness import Probe, open_native

    driver = open_native()
    opened = []
    for _ in range(2):
        probe = Probe(driver.open_device(0, {}))
        opened.append((hal.Device("cpu", probe, None), probe))
    device, other = opened[0][0], opened[1][0]
    buffer = device.allocate(1 << 20)
    running = device.queue.fill(buffer, 1)
    pending = device.queues.upload.barrier(wait=hal.create_semaphore().at(1))
    view = other.allocate(64).map()
    other.queue.call(list)
"""


def test_the_exit_hook_closes_every_device_q6(run_script):
    """Q6: one hook: all is given back at exit, but for what a view still shows (M2)."""
    result = run_script(EXIT_HOOK, arguments=(HERE,))
    assert_quiet(result)
    first, second, states = result.stdout.splitlines()
    assert first == "True False {} []"
    assert second == "True False {'allocation': 1} []"
    assert states.startswith("cancelled done [")


# Fork

FORK = """
    import os, sys, threading, traceback
    import numpy as np
    import hal

    device = hal.create_device("cpu")
    queue = device.queue
    buffer = device.upload(np.arange(16, dtype=np.uint8))
    semaphore = hal.create_semaphore(3)
    waiting = hal.create_semaphore()
    waiting.on_reached(1, lambda _: None)
    handle = waiting.on_reached(2, lambda _: None)
    pending = queue.barrier(wait=waiting.at(1))
    done = device.queues.upload.barrier()
    done.wait(10)
    fence = hal.Fence([semaphore.at(1)])
    timepoint = semaphore.at(1)
    with device.record() as commands:
        commands.fill(buffer, 1)
    recording = device.record()
    array = np.zeros(16, np.uint8)

    calls = {
        "hal.create_device": lambda: hal.create_device("cpu"),
        "hal.create_semaphore": lambda: hal.create_semaphore(),
        "hal.devices": lambda: hal.devices(),
        "hal.wait_all": lambda: hal.wait_all([timepoint], 1),
        "hal.wait_all bare": lambda: hal.wait_all(timepoint, 1),
        "hal.wait_any": lambda: hal.wait_any([timepoint], 1),
        "hal.wait_any submission": lambda: hal.wait_any([done], 1),
        "hal.Fence": lambda: hal.Fence([timepoint]),
        "semaphore.query": lambda: semaphore.query(),
        "semaphore.poll": lambda: semaphore.poll(1),
        "semaphore.wait": lambda: semaphore.wait(1, 1),
        "semaphore.signal": lambda: semaphore.signal(9),
        "semaphore.fail": lambda: semaphore.fail(ValueError()),
        "semaphore.at": lambda: semaphore.at(1),
        "semaphore.on_reached": lambda: semaphore.on_reached(1, print),
        "semaphore.reached": lambda: semaphore.reached(1),
        "callback.cancel": lambda: handle.cancel(),
        "submission.state": lambda: pending.state,
        "submission.done": lambda: pending.done,
        "submission.error": lambda: pending.error,
        "submission.wait": lambda: done.wait(1),
        "submission.await": lambda: done.__await__(),
        "fence.poll": lambda: fence.poll(),
        "fence.wait": lambda: fence.wait(1),
        "fence.fail": lambda: fence.fail(ValueError()),
        "device.allocate": lambda: device.allocate(4),
        "device.upload": lambda: device.upload(array),
        "device.compile": lambda: device.compile("x"),
        "device.load": lambda: device.load(b"x"),
        "device.record": lambda: device.record(),
        "device.create_queue": lambda: device.create_queue(),
        "device.create_semaphore": lambda: device.create_semaphore(),
        "device.queue": lambda: device.queue,
        "device.queues": lambda: device.queues,
        "device.wait_idle": lambda: device.wait_idle(1),
        "device.statistics": lambda: device.statistics(),
        "device.close": lambda: device.close(1),
        "device.with": lambda: device.__enter__(),
        "queue.fill": lambda: queue.fill(buffer, 1),
        "queue.update": lambda: queue.update(buffer, b"1"),
        "queue.copy": lambda: queue.copy(buffer, buffer, size=1, target_offset=1),
        "queue.write": lambda: queue.write(buffer, array),
        "queue.read": lambda: queue.read(buffer, array),
        "queue.call": lambda: queue.call(print),
        "queue.execute": lambda: queue.execute(commands),
        "queue.dispatch": lambda: queue.dispatch(None, grid=1, block=1),
        "queue.barrier": lambda: queue.barrier(),
        "queue.flush": lambda: queue.flush(),
        "queue.wait_idle": lambda: queue.wait_idle(1),
        "queue.close": lambda: queue.close(1),
        "buffer.numpy": lambda: buffer.numpy(),
        "buffer.map": lambda: buffer.map(),
        "buffer.subspan": lambda: buffer.subspan(0, 1),
        "buffer.close": lambda: buffer.close(),
        "commands.fill": lambda: recording.fill(buffer, 1),
        "commands.end": lambda: recording.end(),
    }

    def child():
        for name, call in calls.items():
            try:
                call()
            except hal.errors.ClosedError as error:
                if "fork" not in str(error):
                    print(name, "says nothing of the fork:", error)
            except BaseException as error:
                print(name, "raised", repr(error))
            else:
                print(name, "did not raise")

    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child()
        sys.stdout.flush()
        EXIT
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The parent goes on as if nothing had been.
    waiting.signal(1)
    pending.wait(10)
    assert buffer.numpy(timeout=10).tolist() == list(range(16))
    device.close()
"""


@pytest.mark.parametrize("way", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.filterwarnings("default")
def test_every_call_raises_after_a_fork_q6(run_script, way):
    """Q6: in the child every public call raises `ClosedError`; neither process hangs or crashes."""
    result = run_script(FORK.replace("EXIT", way), watchdog=False)
    assert result.stdout == ""
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


FORK_LOCKED = """
    import os, sys, threading
    import hal

    device = hal.create_device("cpu")
    semaphores = [hal.create_semaphore() for _ in range(3)]
    timepoint = semaphores[0].at(1)
    stop = threading.Event()

    def submit(semaphore):
        value = 0
        while not stop.is_set():
            value += 1
            device.queue.barrier(signal=semaphore.at(value))

    threads = [threading.Thread(target=submit, args=(each,)) for each in semaphores]
    for thread in threads:
        thread.start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            for call in (lambda: hal.wait_any([timepoint], 1), lambda: semaphores[1].query()):
                try:
                    call()
                except hal.errors.ClosedError:
                    continue
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    stop.set()
    for thread in threads:
        thread.join()
    device.close()
"""


@pytest.mark.filterwarnings("default")
def test_fork_while_other_threads_hold_locks_q6(run_script):
    """Q6: a lock that another thread held at the fork is never asked for in the child."""
    result = run_script(FORK_LOCKED, watchdog=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


def test_spawned_processes_open_devices_of_their_own(run_script):
    """What the fork's error recommends works."""
    source = """
        import multiprocessing
        import hal

        def work(queue):
            with hal.create_device("cpu") as device:
                device.queue.barrier().wait(10)
            queue.put("done")

        if __name__ == "__main__":
            device = hal.create_device("cpu")
            context = multiprocessing.get_context("spawn")
            results = context.Queue()
            process = context.Process(target=work, args=(results,))
            process.start()
            assert results.get(timeout=20) == "done"
            process.join(20)
            assert process.exitcode == 0
    """
    assert_quiet(run_script(source))


# Ctrl-C

INTERRUPT_WAIT = """
    import _thread, signal, sys, threading
    sys.path.insert(0, sys.argv[1])
    import hal
    from core_harness import LIMIT, Latch, Probe, open_native

    driver = open_native()
    probe = Probe(driver.open_device(0, {}))
    device = hal.Device("cpu", probe, None)
    buffer = device.allocate(64)
    gate, latch = hal.create_semaphore(), Latch()
    probe.hold(latch)
    running = device.queue.fill(buffer, 1)
    pending = device.queues.upload.fill(buffer, 1, wait=gate.at(1))
    started, finish = threading.Event(), threading.Event()
    calling = device.queues.download.call(lambda: (started.set(), finish.wait(3 * LIMIT)))
    assert started.wait(LIMIT)
    waits = {
        "nobody": lambda: hal.create_semaphore().wait(1),
        "nobody, limit": lambda: hal.create_semaphore().wait(1, 100),
        "running": running.wait,
        "pending": pending.wait,
        "calling": calling.wait,
        "all": lambda: hal.wait_all([running, pending, calling]),
        "any": lambda: hal.wait_any([running, pending, calling]),
        "fence": hal.Fence([running, pending]).wait,
        "queue idle": device.queue.wait_idle,
        "device idle": device.wait_idle,
    }
    for way in (_thread.interrupt_main, lambda: signal.pthread_kill(main, signal.SIGINT)):
        main = threading.main_thread().ident
        for name, wait in waits.items():
            for delay in (0.0, 0.02):
                timer = threading.Timer(delay, way)
                try:
                    timer.start()
                    wait()
                except KeyboardInterrupt:
                    pass
                else:
                    raise AssertionError(name)
                timer.join()
    finish.set()
    latch.open()
    gate.signal(1)
    hal.wait_all([running, pending, calling], LIMIT)
    device.queue.fill(buffer, 2).wait(LIMIT)
    assert device.close() == ()
    assert probe.violations == [] and probe.live() == {}, (probe.violations, probe.live())
"""


def test_ctrl_c_ends_every_wait_s6(run_script):
    """S6: wherever it waits; the work it waited for goes on, and the queues can be used."""
    assert_quiet(run_script(INTERRUPT_WAIT, arguments=(HERE,)))


INTERRUPT_EVERYWHERE = """
    import itertools, sys, threading, time
    sys.path.insert(0, sys.argv[1])
    import hal
    from hal.errors import DeadlineExceededError, InvalidArgumentError
    from core_harness import Latch, Probe, open_native

    KIND = sys.argv[2]
    OURS = hal.__path__[0]
    LIMIT = 1.0
    driver = open_native()

    class Interrupt:
        # Raises KeyboardInterrupt where the interpreter looks for signals, for the n-th time: as
        # a Python function of hal is entered, and as it has called one of C's.
        def __init__(self, number):
            self.left = number
            self.place = None

        def __call__(self, frame, event, argument):
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
                names, outer = [], frame
                while outer is not None:
                    names.append(outer.f_code.co_name)
                    outer = outer.f_back
                if "__del__" in names:  # Python itself drops what a finaliser raises
                    return
                self.left -= 1
                if self.left == 0:
                    what = f"{argument.__name__} < " if event == "c_return" else ""
                    self.place = f"{what}{names[0]}:{frame.f_lineno} < " + " < ".join(names[1:5])
                    sys.setprofile(None)
                    raise KeyboardInterrupt

    def script(device, buffer, gate, signals, taken, latch):
        queue, other = device.queues.compute, device.queues.upload
        if KIND == "direct":
            taken.append(queue.fill(buffer, 1, size=8, signal=[signals[0].at(1), signals[1].at(1)]))
            taken.append(other.fill(buffer, 1, offset=8, size=8, wait=signals[0].at(1),
                                    signal=signals[2].at(1)))
        elif KIND == "pending":
            taken.append(queue.fill(buffer, 1, size=8, wait=gate.at(1), signal=signals[0].at(1)))
            taken.append(other.fill(buffer, 1, offset=8, size=8, wait=signals[0].at(1),
                                    signal=[signals[1].at(1), signals[2].at(1)]))
        elif KIND == "signal":
            gate.signal(1)
        elif KIND == "call":
            taken.append(queue.call(list, signal=signals[0].at(1)))
            taken.append(queue.fill(buffer, 1, signal=[signals[1].at(1), signals[2].at(1)]))
        elif KIND == "wait":
            taken.append(queue.fill(buffer, 1, signal=signals[0].at(1)))
            signals[0].wait(1, 10)
            taken[0].wait(10)
        elif KIND == "backlog":
            for index in range(6):
                taken.append((queue, other)[index % 2].fill(
                    buffer, 1, offset=8 * (index % 2), size=8,
                    signal=signals[index].at(1) if index < 3 else ()))
            try:
                taken[5].wait(0.01)
            except DeadlineExceededError:
                pass
            signals[2].query()
            hal.wait_all([signals[1].at(1), taken[3]], 10)

    def trial(number):
        # Returns where the interrupt came, None if it did not, and what was wrong afterwards.
        probe = Probe(driver.open_device(0, {}))
        device = hal.Device("cpu", probe, 1 if KIND == "backlog" else None)
        buffer = device.allocate(64)
        gate = hal.create_semaphore()
        signals = [hal.create_semaphore() for _ in range(3)]
        taken, wrong = [], []
        queues = (device.queues.compute, device.queues.upload, device.queues.download)
        if KIND == "signal":
            for index in range(3):
                taken.append(queues[index % 2].fill(buffer, 1, offset=8 * index, size=8,
                                                    wait=gate.at(1), signal=signals[index].at(1)))
        tracer, latch = Interrupt(number), Latch()
        if KIND == "backlog":
            probe.hold(latch)
            threading.Timer(0.03, latch.open).start()
        try:
            sys.setprofile(tracer)
            script(device, buffer, gate, signals, taken, latch)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)

        def check(what, function):
            try:
                function()
            except (DeadlineExceededError, InvalidArgumentError) as error:
                wrong.append(f"{what}: {type(error).__name__}")
            except hal.HalError:
                pass

        latch.open()
        if gate.query() == 0:
            check("the gate is promised by nobody", lambda: gate.signal(1))
        if not wrong:
            for each in taken:
                check(f"{each} never ends", lambda: each.wait(LIMIT))
            check("the device is never idle", lambda: device.wait_idle(LIMIT))
            # A promise is kept, broken or was never made: else whoever waits would hang.
            for index, each in enumerate(signals):
                check(f"signal {index} is promised by nobody",
                      lambda: each.poll(1) or each.signal(1))
            for queue in queues:
                done = hal.create_semaphore()
                check(f"{queue} is stuck", lambda: hal.wait_all([
                    queue.fill(buffer, 3, signal=done.at(1)), queue.call(list), done.at(1)
                ], LIMIT))
        start = time.monotonic()
        wrong += device.close(2 * LIMIT)
        if time.monotonic() - start > LIMIT:
            wrong.append("close takes all its time")
        wrong += probe.violations
        # Between a native call's return and the note of its handle one may get lost.
        if not wrong and probe.live() not in ({}, {"event": 1}):
            wrong.append(f"left: {probe.live()}")
        return tracer.place, wrong

    problems = 0
    for number in itertools.count(1):
        place, wrong = trial(number)
        if wrong:
            problems += 1
            print(f"{KIND} {number}, in {place}: {'; '.join(wrong)}", file=sys.stderr)
        if place is None or problems > 12:
            break
    assert number > 5, number
"""


@pytest.mark.parametrize("kind", ["direct", "pending", "signal", "call", "wait", "backlog"])
def test_ctrl_c_at_every_call_of_ours(run_script, kind):
    """For every n: Ctrl-C as the n-th function is entered or left. Every operation that was handed
    out ends, no semaphore is left promised by nobody, every queue takes work, nothing leaks."""
    assert_quiet(run_script(INTERRUPT_EVERYWHERE, arguments=(HERE, kind), timeout=25))


INTERRUPT_NATIVE = """
    import signal, sys
    sys.path.insert(0, sys.argv[1])
    import hal
    from core_harness import LIMIT, Probe, open_native

    driver = open_native()
    number = 0
    while True:
        number += 1
        probe = Probe(driver.open_device(0, {}))
        device = hal.Device("cpu", probe, None)
        buffer = device.allocate(64)
        signals = [hal.create_semaphore() for _ in range(6)]
        probe.fail_call(number, lambda: signal.raise_signal(signal.SIGINT),
                        ("bind", "fill", "copy", "record_event", "wait_event", "create_event"))
        interrupted = False
        try:
            for index in range(5):
                queue = (device.queues.compute, device.queues.upload)[index % 2]
                wait = signals[index - 1].at(1) if index else ()
                queue.fill(buffer, index, wait=wait, signal=signals[index].at(1))
        except KeyboardInterrupt:
            interrupted = True
        hit = interrupted or not probe.pending_fault
        probe.heal()
        for index, each in enumerate(signals):
            try:
                if not each.poll(1):
                    device.wait_idle(LIMIT)
                if not each.poll(1):
                    each.signal(1)
            except hal.errors.InvalidArgumentError:
                raise AssertionError(f"{number}: signal {index} is nobody's") from None
            except hal.errors.CancelledError:
                pass
        for queue in (device.queues.compute, device.queues.upload):
            queue.fill(buffer, 3).wait(LIMIT)
        assert buffer.numpy(timeout=LIMIT).tolist() == [3] * 64
        assert device.close() == (), number
        assert probe.violations == [], (number, probe.violations)
        assert probe.live() == {}, (number, probe.live())
        if not hit:
            break
    assert number > 15, number
"""


def test_ctrl_c_at_every_native_call(run_script):
    """The signal arrives inside the n-th native call of a submit loop, for every n."""
    assert_quiet(run_script(INTERRUPT_NATIVE, arguments=(HERE,)))


INTERRUPT_STORM = """
    import random, signal, sys, threading, time
    import hal

    device = hal.create_device("cpu", max_in_flight=4)
    buffer = device.allocate(64)
    generator = random.Random(5)
    queues = (device.queues.compute, device.queues.upload, device.create_queue(ordered=False))
    interrupts = 0
    end = time.monotonic() + 3
    while interrupts < 400 and time.monotonic() < end:
        semaphore = hal.create_semaphore()
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.0001, 0.002))
            for value in range(1, 100_000):
                queue = queues[value % 3]
                queue.fill(buffer, 1, wait=semaphore.at(value - 1), signal=semaphore.at(value))
                # Not with an `if` at the loop's end: see `bare_jumps`.
                semaphore.wait(value if value % 16 == 0 else 0)
                queue = None
        except (KeyboardInterrupt, hal.HalError):
            interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        for queue in queues:
            queue.fill(buffer, 2, wait=()).wait(10)
    assert interrupts > 10, interrupts
    assert device.close() == ()
"""


def test_ctrl_c_storm_in_a_submit_loop(run_script):
    """Hundreds of interrupts at random moments of a loop of submissions and waits: no hang."""
    assert_quiet(run_script(INTERRUPT_STORM))


INTERRUPT_CLOSE = """
    import signal, sys, threading
    sys.path.insert(0, sys.argv[1])
    import hal
    from core_harness import LIMIT, Latch, Probe, open_native

    driver = open_native()
    main = threading.main_thread().ident
    for what in ("device", "queue", "with"):
        probe = Probe(driver.open_device(0, {}))
        device = hal.Device("cpu", probe, None)
        buffer, latch = device.allocate(64), Latch()
        probe.hold(latch)
        running = device.queue.fill(buffer, 1)
        pending = device.queues.upload.barrier(wait=hal.create_semaphore().at(1))
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            if what == "with":
                with device:
                    pass
            else:
                (device if what == "device" else device.queue).close(LIMIT)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("close was not interrupted")
        assert not device.lost
        latch.open()
        running.wait(LIMIT)
        assert device.queue.close(LIMIT) == ()
        assert device.close(LIMIT) == ()
        assert pending.state == "cancelled"
        assert probe.live() == {}, (what, probe.live())
        assert probe.violations == [], (what, probe.violations)
"""


def test_ctrl_c_during_close_q6(run_script):
    """Q6: an impatient user interrupts close; the next close does what was left."""
    assert_quiet(run_script(INTERRUPT_CLOSE, arguments=(HERE,)))


def functions_of(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from functions_of(constant)


def bare_jumps(code):
    """Yield the lines where an interrupt would leave a ``with`` block without its exit.

    The compiler of Python 3.12 and 3.13 makes a conditional jump back to the
    top of a loop of two, and forgets the handlers of the second, which is
    where the interpreter looks for signals. So a loop directly inside a
    ``with`` must not end with an ``if``, nor have a condition of its own.
    """
    table = dis._parse_exception_table(code)
    instructions = list(dis.get_instructions(code))
    names = {instruction.offset: instruction.opname for instruction in instructions}
    withs = {offset for offset in names if names.get(offset + 2) == "WITH_EXCEPT_START"}

    def handlers(offset):
        """Return the handlers that an exception there runs through, from the inside out."""
        found = {entry.target for entry in table if entry.start <= offset < entry.end}
        return found.union(*map(handlers, found))

    for before, jump in itertools.pairwise(instructions):
        is_made = jump.opname == "JUMP_BACKWARD" and before.opname.startswith("POP_JUMP")
        if is_made and (handlers(before.offset - 2) - handlers(jump.offset)) & withs:
            yield jump.positions.lineno


def test_no_interrupt_can_leave_a_lock_taken():
    """Ctrl-C between two turns of a loop under a lock must let the lock go, on every Python."""
    found = set()
    for path in sorted(Path(hal.__path__[0]).glob("_*.py")):
        for code in functions_of(compile(path.read_text("utf-8"), path.name, "exec")):
            found |= {f"{path.name}:{line} in {code.co_qualname}" for line in bare_jumps(code)}
    # Signals come to the main thread only, and this one is the progress thread's.
    assert {place for place in found if "Ring._serve" not in place} == set()


def test_ctrl_c_in_a_call_fails_the_call_only(device):
    """KeyboardInterrupt raised by a host function is that submission's failure."""

    def call():
        raise KeyboardInterrupt

    with pytest.raises(HalError, match="KeyboardInterrupt"):
        device.queue.call(call).wait(LIMIT)
    device.queue.call(list).wait(LIMIT)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_device_that_cannot_be_opened_leaves_no_stream_i7(number):
    inner = open_native().open_device(0, {})
    probe = Probe(inner, None, inner.features)
    probe.fail_call(number, OperationError("injected"), ("create_stream",))
    with pytest.raises(OperationError, match="injected"):
        hal.Device("cpu", probe, None)
    assert probe.live() == {}
    inner.close()
