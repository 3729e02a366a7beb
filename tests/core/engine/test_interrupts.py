"""Ctrl-C: in waits, in close and at any moment of a loop; nothing hangs, no lock stays taken."""

import ast
import dis
import itertools
import types
from pathlib import Path

from child_processes import assert_quiet

import hal

INTERRUPT_WAIT = """
    import os, signal, sys, threading
    import hal
    from core_harness import LIMIT, Latch, open_native
    from native_probe import Probe

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
    # To the thread, to the process, and to a thread that handles none: that ends no sleep of the
    # main one by itself, as a signal that comes just before the sleep does not.
    main = threading.main_thread().ident
    ways = (
        (lambda: signal.pthread_kill(main, signal.SIGINT), (0.0, 0.02), [*waits]),
        (lambda: os.kill(os.getpid(), 2), (0.0, 0.02), [*waits]),
        (lambda: signal.pthread_kill(threading.get_ident(), 2), (0.02,), ["nobody", "all"]),
    )
    for way, delays, names in ways:
        for name in names:
            wait = waits[name]
            for delay in delays:
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
    assert_quiet(run_script(INTERRUPT_WAIT))


INTERRUPT_STORM = """
    import random, signal, sys, threading, time
    import hal

    device = hal.create_device("cpu", max_in_flight=4)
    buffer = device.allocate(64)
    generator = random.Random(5)
    queues = (device.queues.compute, device.queues.upload, device.create_queue(ordered=False))
    interrupts = 0
    while interrupts < 200:
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
            queue.fill(buffer, 2, wait=()).wait(30)
    assert device.close() == ()
"""


def test_ctrl_c_storm_in_a_submit_loop(run_script):
    """Hundreds of interrupts at random moments of a loop of submissions and waits: no hang."""
    assert_quiet(run_script(INTERRUPT_STORM))


INTERRUPT_CLOSE = """
    import signal, sys, threading
    import hal
    from core_harness import LIMIT, Latch, open_native
    from native_probe import Probe

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
    assert_quiet(run_script(INTERRUPT_CLOSE))


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


def loops_in_a_with(node, function="", *, is_inside=False):
    """Yield the lines of loops that some compiler makes bare jumps of, whichever runs this.

    A loop in a function of its own, which is called inside of the ``with``, is none.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp, ast.ClassDef)):
            yield from loops_in_a_with(child, getattr(child, "name", function))
            continue
        inside = is_inside or isinstance(child, ast.With)
        if is_inside and isinstance(child, (ast.While, ast.For)):
            has_condition = isinstance(child, ast.While) and not isinstance(
                child.test, ast.Constant
            )
            goes_on = any(isinstance(each, ast.Continue) for each in ast.walk(child))
            if has_condition or goes_on or isinstance(child.body[-1], ast.If):
                yield f"{child.lineno} in {function}"
        if is_inside and any(part.ifs for part in getattr(child, "generators", ())):
            yield f"{child.lineno} in {function}"
        yield from loops_in_a_with(child, function, is_inside=inside)


def test_no_interrupt_can_leave_a_lock_taken():
    """Ctrl-C between two turns of a loop under a lock must let the lock go, on every Python."""
    found = set()
    for path in sorted(Path(hal.__path__[0]).glob("_*/*.py")):
        source = path.read_text("utf-8")
        found |= {f"{path.name}:{place}" for place in loops_in_a_with(ast.parse(source))}
        for code in functions_of(compile(source, path.name, "exec")):
            found |= {f"{path.name}:{line} in {code.co_qualname}" for line in bare_jumps(code)}
    # Signals come to the main thread only, and this one is the progress thread's.
    assert {place for place in found if not place.endswith(" in serve")} == set()
