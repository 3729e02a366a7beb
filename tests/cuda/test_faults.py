"""Whatever call of the driver fails: an error of ours comes out, in bounded time."""

from __future__ import annotations

import pytest
from cuda_harness import gpusim, run_python

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import gpusim, hal, numpy as np
from hal.errors import HalError

CODE = {code}
sim = gpusim.load()

def work():
    with hal.create_device("cuda", command_buffer="graph") as device:
        a, b = device.allocate(256), device.allocate(256)
        gate, done = hal.create_semaphore(), hal.create_semaphore()
        with device.record(slots=1) as commands:
            commands.fill(a, 7)
            commands.barrier()
            commands.copy(a, commands.slots[0])
        first = device.queue.fill(b, 1, wait=[gate.at(1)])
        upload = device.queues.upload
        upload.execute(commands, bindings=[b], wait=[first], signal=[done.at(1)])
        last = device.queues.download.fill(a, 2, wait=[done.at(1)])
        gate.signal(1)
        last.wait(20)
        return int(b.numpy(timeout=20)[0])
"""


@pytest.mark.parametrize("code", [2, 304, 719])
def test_every_call_that_fails_is_an_error_of_ours(tmp_path, code):
    done = run_python(
        tmp_path,
        PROGRAM.format(folder=str(gpusim.HERE), code=code)
        + """
before = sim.calls()
assert work() == 7
count = sim.calls() - before
seen = {"fine": 0, "failed": 0}
for number in range(1, count + 20, 2):
    sim.fail("*", number, CODE)
    try:
        work()
        seen["fine"] += 1
    except HalError:
        seen["failed"] += 1
    sim.fail_none()
    sim.reset()
assert work() == 7
print(count > 40, seen["failed"] > 10, seen)
""",
        **gpusim.environment(quiet=1, strict=0),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("True True"), done.stdout
