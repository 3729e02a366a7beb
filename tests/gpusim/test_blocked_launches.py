"""No submission, signal or callback waits for room in a native stream (Q1).

The programs run in gpusim's stepped mode: nothing runs while calls are made, but a little
in each query. The driver aborts where a launch finds its stream full.
"""

import textwrap

import pytest
import suite_runs
from engine_harness import abort

LIMIT = 256
"""Operations that a stream takes: what 64 launches make with their events and waits, and some."""

PRELUDE = """
import threading
import hal
import numpy as np
gpu = hal.create_device("{backend}?max_in_flight=64&command_buffer=stream")
buffer = gpu.allocate(4096)
def recording(count, **settings):
    with gpu.record(**settings) as commands:
        for number in range(count):
            commands.fill(buffer, number & 255, offset=(number % 64) * 4, size=4)
            commands.barrier()
    return commands
def check(done):
    last = [(2944 + i if i < 56 else 2880 + i) & 255 for i in range(64)]
    assert buffer.numpy(wait=done)[:256:4].tolist() == last
"""
"""The last of 3,000 fills of one of 64 places: 56 places are written once more than the others."""


@pytest.fixture
def run(backend):
    """Return what runs a program on gpusim by one of the backends."""
    settings = {"mode": "stepped", "launch_limit": LIMIT}
    variables = suite_runs.environment(backend, **settings)

    def function(program):
        text = PRELUDE.format(backend=backend) + textwrap.dedent(program)
        suite_runs.run_program(text, variables, 300)

    return function


def test_a_launch_that_waits_for_room_is_told():
    """The other tests rely on it: the driver aborts."""
    program = """
        cu = Driver(); s = cu.stream(); a = cu.allocate(4)
        for _ in range(5): cu.call("cuMemsetD8Async", a, 7, 4, s)
    """
    told = abort(program, mode="stepped", tick_ms=0, launch_limit=4, abort_on_blocked=1)
    assert "waits for room" in told


def test_many_executions_q1(run):
    """Q1: the limit counts native launches: four for each execution, and its event."""
    run("""
        commands = recording(4)
        for _ in range(400):
            done = gpu.queue.execute(commands)
        done.wait(30)
    """)


def test_a_long_replay_is_issued_in_parts_q1(run):
    """Q1: a signal that releases it returns, and so does a submission that issues it at once."""
    run("""
        gate = hal.create_semaphore()
        done = gpu.queue.execute(recording(3000, one_shot=True), wait=gate.at(1))
        gate.signal(1)
        check(done)
        check(gpu.queue.execute(recording(3000)))
    """)


def test_a_long_replay_holds_up_no_other_device_q1(run):
    """Q1: the issuing thread serves other devices meanwhile; its callback comes at once."""
    run("""
        cpu = hal.create_device("cpu")
        other = cpu.allocate(4096)
        start, done = hal.create_semaphore(), hal.create_semaphore()
        first = cpu.queue.fill(other, 1, wait=start.at(1))
        replay = gpu.queue.execute(recording(3000), wait=[first])
        start.signal(1)
        called = threading.Event()
        done.on_reached(1, lambda error: called.set())
        cpu.queue.fill(other, 2, signal=done.at(1))
        assert called.wait(30)
        check(replay)
    """)
