"""Q6: the end of the process, and forks: with work in flight, and with nothing to say."""

import re

import pytest
from child_processes import assert_quiet

EXIT_PREFIX = """
    import sys, threading
    import numpy as np
    import hal
    device = hal.create_device("cpu")
    queue = device.queue
    x = device.upload(np.zeros(1 << 20, np.uint8))
"""

AT_EXIT = {
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
    "in a cycle": """
        class Holder: pass
        h = Holder(); h.self = h; h.all = (device, queue, x, hal.create_semaphore())
        queue.fill(x, 1)
        del device, queue, x, h
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
    assert_quiet(run_script(EXIT_PREFIX + lines))


EXIT_HOOK = """
    import atexit, sys

    def look():  # registered before hal's own hook, and so called after it
        for device, probe in opened:
            print(device.closed, device.lost, probe.live(), probe.violations)
        print(pending.state, running.state, view[:2].tolist())

    atexit.register(look)
    import hal
    from core_harness import open_native
    from native_probe import Probe

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
    """Q6: one hook frees everything at exit, except memory that a view still shows (M2)."""
    result = run_script(EXIT_HOOK)
    assert_quiet(result)
    first, second, states = result.stdout.splitlines()
    assert first == "True False {} []"
    assert second == "True False {'allocation': 1} []"
    assert states.startswith("cancelled done [")


def test_a_device_that_cannot_be_closed_keeps_no_other_open_q6(run_script):
    """Q6: the exit hook says which one it was, and closes the rest."""
    result = run_script("""
        import atexit
        atexit.register(lambda: print(other.closed, probe.live(), other in lifecycle.devices))
        import hal
        from core_harness import open_native
        from hal._devices import lifecycle
        from hal.errors import OperationError
        from native_probe import Probe

        def refuse():
            raise OperationError("it refuses")

        driver = open_native()
        broken, probe = (Probe(driver.open_device(0, {})) for _ in range(2))
        device, other = (hal.Device("cpu", each, None) for each in (broken, probe))
        broken.close = refuse
        """)
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line == "hal: abandoned at exit: cpu:0, whose close failed: OperationError('it refuses')"
    assert result.stdout == "True {} False\n"


STUCK = """
    import _thread, atexit, sys, threading, time

    def look():  # after hal's own hook
        print(len(deadlines))
        for device, probe in opened:
            print(device.closed, device.lost, len(probe.live()))

    atexit.register(look)
    import hal
    from hal._devices import lifecycle
    from core_harness import LIMIT, open_native
    from native_probe import Probe

    driver = open_native()
    opened = []
    for _ in range(5):
        probe = Probe(driver.open_device(0, {}))
        opened.append((hal.Device("cpu", probe, None), probe))
    idle, *others = [device for device, _ in opened]
    deadlines, original = set(), hal.Device._end

    def noted(device, deadline):
        deadlines.add(deadline)
        return original(device, deadline)

    hal.Device._end = noted

    def be_stuck(began):
        began.set()
        threading.Event().wait()

    def call(device, function):
        began = threading.Event()
        device.queue.call(function, began)
        assert began.wait(LIMIT)
"""


ABANDONED = "hal: abandoned at exit: call on cpu:0/compute"
"""With the number of the open left out: "cpu:0 (2)" is the second one of this device."""


def run_stuck(run_script, source, abandoned):
    """Run a program whose end abandons so many operations; return the lines that it prints."""
    result = run_script(STUCK + source)
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert [re.sub(r" \(\d\)", "", line) for line in lines] == [ABANDONED] * abandoned
    return result.stdout.splitlines()


def test_the_exit_hook_has_one_deadline_and_tells_what_it_abandons_q6(run_script):
    """Q6: devices that hang do not wait one after the other, and each operation has a line."""
    source = """
    for device in others:
        call(device, be_stuck)
        device.queue.barrier(wait=hal.create_semaphore().at(1))  # cancelled, which is no news
    view = idle.allocate(64).map()  # nor is what a view keeps
    lifecycle._EXIT_SECONDS = 2.0
    """
    count, first, *rest = run_stuck(run_script, source, 4)
    assert count == "1"
    assert first == "True False 1"
    assert [line.rpartition(" ")[0] for line in rest] == ["True True"] * 4


def test_ctrl_c_in_the_exit_hook_closes_the_rest_at_once_q6(run_script):
    """Q6: Ctrl-C ends the wait, not the closing."""
    source = """
    def interrupt(began):
        began.set()
        while not others[0].closed:  # the hook has come to the device of this call
            time.sleep(0.001)
        _thread.interrupt_main()
        threading.Event().wait()

    call(others[0], interrupt)
    call(others[1], be_stuck)
    lifecycle._EXIT_SECONDS = 1e6
    """
    _, *rest = run_stuck(run_script, source, 2)
    assert [line.rpartition(" ")[0] for line in rest] == (
        ["True False"] + ["True True"] * 2 + ["True False"] * 2
    )


def test_the_exit_hook_waits_for_a_close_that_is_under_way_q6(run_script):
    """Q6: a close in a daemon thread is not cut off."""
    source = """
    def brief(began):
        began.set()
        while len(calls) < 2:  # the hook calls, while the thread's close waits for this
            time.sleep(0.001)

    calls = []
    end = hal.Device._end
    def counted(device, deadline):
        if device is idle:
            calls.append(deadline)
        return end(device, deadline)
    hal.Device._end = counted

    call(idle, brief)
    threading.Thread(target=idle.close, daemon=True).start()
    while not idle.closed:
        time.sleep(0.001)
    """
    result = run_script(STUCK + source)
    assert_quiet(result)
    assert result.stdout.splitlines()[1:] == ["True False 0"] * 5


# Fork


def run_forks(run_script, source):
    """Run a program that forks to its good end; return what it prints."""
    result = run_script(source, watchdog=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


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
    done.wait(30)
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
    pending.wait(30)
    assert buffer.numpy(timeout=30).tolist() == list(range(16))
    device.close()
"""


@pytest.mark.parametrize("way", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.filterwarnings("default")
def test_every_call_raises_after_a_fork_q6(run_script, way):
    """Q6: in the child every public call raises `ClosedError`; neither process hangs or crashes."""
    assert run_forks(run_script, FORK.replace("EXIT", way)) == ""


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
    run_forks(run_script, FORK_LOCKED)


FORK_EARLY = """
    import asyncio, os, sys, threading, time
    import hal

    BEFORE
    heard = threading.Event()
    semaphore = hal.create_semaphore()
    semaphore.on_reached(1, lambda _: heard.set())  # the dispatcher is the parent's
    semaphore.signal(1)
    assert heard.wait(30)

    async def wait():
        asyncio.get_running_loop().call_later(0.01, semaphore.signal, 2)
        await semaphore.reached(2)

    asyncio.run(wait())  # and so is the progress thread
    stop = threading.Event()
    hal.backends(probe=False)  # a module that a thread imports at the fork is Python's own trouble

    def work():  # it holds locks at any time
        value = 0
        mine = hal.create_semaphore()
        while not stop.is_set():
            value += 1
            mine.signal(value)
            hal.backends(probe=False)

    threading.Thread(target=work, daemon=True).start()

    def child():
        again = threading.Event()
        semaphore.on_reached(3, lambda _: again.set())
        semaphore.signal(3)
        assert again.wait(30)
        with hal.create_device("cpu") as device:
            buffer = device.allocate(64)
            called = device.queue.call(list, wait=device.queue.fill(buffer, 7))
            assert (buffer.numpy(wait=called, timeout=30) == 7).all()
            slow = device.create_queue()
            gate = hal.create_semaphore()
            threading.Timer(0.05, gate.signal, (1,)).start()
            slow.barrier(wait=gate.at(1)).wait(30)
        assert os.fork() or child_of_child()

    def child_of_child():
        try:
            hal.create_semaphore()
        except hal.errors.ClosedError:
            os._exit(0)
        os._exit(1)

    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            child()
            _, status = os.wait()
            sys.exit(os.waitstatus_to_exitcode(status))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    stop.set()
    semaphore.signal(3)
    with hal.create_device("cpu") as device:
        device.queue.barrier().wait(30)
"""


@pytest.mark.parametrize("before", ["pass", "hal.devices()"])
@pytest.mark.filterwarnings("default")
def test_a_process_without_a_device_may_fork_q6(run_script, before):
    """Q6: the child uses hal as if it had imported it itself, whatever the parent was about."""
    run_forks(run_script, FORK_EARLY.replace("BEFORE", before))


def test_what_goes_after_the_exit_hook_is_left_in_peace_i10(run_script):
    """I10: finalisers that run while modules are torn down do nothing."""
    result = run_script(
        """
        import atexit


        @atexit.register
        def last():  # the hook, which is registered after this, comes before it
            assert device.closed
            progress.reap_later = print
            buffers.clear()
            print("left in peace")


        import hal
        from hal._engine import progress

        device = hal.create_device("cpu")
        buffers = [device.allocate(64)]
        """
    )
    assert_quiet(result)
    assert result.stdout == "left in peace\n"
