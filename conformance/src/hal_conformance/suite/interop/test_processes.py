"""Memory and semaphores that two processes share (M1, M2, S1, S4)."""

from __future__ import annotations

import base64
import contextlib
import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import hal
from hal.errors import ClosedError, OutOfMemoryError, ProcessLostError, UnimplementedError
from hal_conformance.bench import Bench
from hal_conformance.suite.support import LIMIT

pytestmark = [
    pytest.mark.feature("host_import"),
    pytest.mark.skipif(sys.platform != "linux", reason="sharing needs Linux"),
]

KILLED = -9
SHARES_DEVICE_MEMORY = {"memory_sharing", "host_visible_device_memory"}

CHILD = """
import base64, os, pickle, sys, hal
device = hal.create_device(sys.argv[1])
queue = device.queue
shared = [device.open(each) for each in pickle.loads(base64.b64decode(sys.stdin.readline()))]
"""


@contextlib.contextmanager
def another(
    bench: Bench, program: str, *shared: hal.Buffer | hal.Semaphore, status: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in another process, which opens what is shared, and ends with a status."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD + program, bench.full_spec],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdin is not None
        tickets = pickle.dumps([each.share() for each in shared])
        child.stdin.write(base64.b64encode(tickets).decode() + "\n")
        child.stdin.flush()
        del shared  # the caller may close it
        yield child
        child.wait(2 * LIMIT)
        assert child.returncode == status, child.stderr.read() if child.stderr else ""
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize("memory", ["host", "device"])
def test_two_processes_take_turns_with_one_buffer_m2(bench, device, memory):
    """M2, S1: work of each process sees what the other's wrote before the value it waits for."""
    if memory == "device" and not device.features & SHARES_DEVICE_MEMORY:
        with pytest.raises(UnimplementedError):
            device.allocate(4096, shareable=True)
        return
    buffer = device.allocate(4096, dtype=np.int32, memory=memory, shareable=True)
    device.queue.fill(buffer, 0).wait(LIMIT)
    turn = hal.create_semaphore(shareable=True)
    program = """
part, turn = shared
for value in range(2, 21, 2):
    queue.copy(part, part, size=1024, target_offset=1024, wait=turn.at(value - 1))
    queue.fill(part, value, size=1024, signal=turn.at(value))
turn.wait(20, 60)
"""
    with another(bench, program, buffer.subspan(1024, 2048), turn):
        for value in range(1, 20, 2):
            device.queue.fill(
                buffer, value, size=2048, wait=turn.at(value - 1), signal=turn.at(value)
            )
        turn.wait(20, 2 * LIMIT)
    seen = buffer.numpy().reshape(4, 256)
    assert [set(each.tolist()) for each in seen] == [{19}, {20}, {19}, {0}]


@pytest.mark.feature("memory_sharing")
def test_device_memory_is_kept_for_those_who_use_it_m2(bench, device):
    """M2: memory that its owner has closed lives until the last process has closed it, or died."""
    turn, program = (
        hal.create_semaphore(shareable=True),
        """
part, turn = shared
turn.signal(1)
turn.wait(2, 60)
queue.fill(part, 3).wait(60)
assert (part.numpy() == 3).all()
""",
    )
    before = bench.allocations()
    for end in ("", "os.kill(os.getpid(), 9)"):
        buffer = device.allocate(1 << 20, shareable=True)
        ticket = buffer.share()
        assert device.open(ticket).address == buffer.address
        with another(bench, program + end, buffer, turn, status=KILLED if end else 0):
            turn.wait(1, 2 * LIMIT)
            del buffer
            with pytest.raises(ClosedError):
                device.open(ticket)
            turn.signal(2)
        assert not bench.leaks(before)
        turn = hal.create_semaphore(shareable=True)


def test_values_and_failures_cross_s4(bench):
    """S1, S4: what one process signals or fails the other sees, with the class and the message."""
    there, back = hal.create_semaphore(5, shareable=True), hal.create_semaphore(shareable=True)
    program = """
there, back = shared
assert there.query() == 5
back.signal(1)
there.wait(2**62, 60)
back.signal(2**63 - 1)
try:
    there.wait(2**63 - 1, 60)
except hal.errors.OutOfMemoryError as error:
    assert "no room for 7 tensors" in str(error), error
"""
    with another(bench, program, there, back):
        back.wait(1, 2 * LIMIT)
        there.signal(2**62)
        back.wait(2**63 - 1, 2 * LIMIT)
        there.fail(OutOfMemoryError("no room for 7 tensors"))


def test_work_that_waits_for_a_dead_process_fails_s4(bench, device):
    """S4: a process that dies fails the semaphores that it shared, and what waits for them."""
    buffer, turn = device.allocate(64), hal.create_semaphore(shareable=True, name="turn")
    program = "shared[0].signal(1)\nsys.stdin.read()\nraise ZeroDivisionError"
    with another(bench, program, turn, status=KILLED) as child:
        turn.wait(1, 2 * LIMIT)
        late = device.queue.fill(buffer, 1, wait=turn.at(2))
        child.kill()
        with pytest.raises(ProcessLostError, match=f"process {child.pid} .* turn, which"):
            late.wait(2 * LIMIT)
    other = hal.create_semaphore(shareable=True)
    with another(bench, program, other, status=1) as child:
        other.wait(1, 2 * LIMIT)
        assert child.stdin is not None
        child.stdin.close()
        with pytest.raises(ProcessLostError, match=f"process {child.pid}, .* ZeroDivisionError"):
            other.wait(2, 2 * LIMIT)
