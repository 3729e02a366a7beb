"""Let each native call of a sequence fail in turn, on gpusim, and look at what comes of it.

    python tests/gpusim/every_call.py BACKEND SEQUENCE SEMAPHORES

The environment has to be that of `suite_runs.environment`. The sequences are the
functions of `SEQUENCES`. For every code the first call fails, then the second, and so
on until the sequence is over before its n-th call. Each time: nothing but a `HalError`
comes out, in bounded time; a device that is not lost works afterwards, and leaves no
native object when it is closed, but for one whose destruction was what failed.
"""

import faulthandler
import gc
import json
import os
import re
import sys
import threading
from collections import Counter
from ctypes import CDLL, RTLD_GLOBAL

import gpusim
import numpy as np

import hal
from hal.errors import DeadlineExceededError, HalError

LIMIT = 10.0
OPERATION, MEMORY, LOST = 304, 2, 719
STICKY = -1
"""The device is lost in earnest: every call fails from then on."""
CODES = (OPERATION, MEMORY, LOST, STICKY)
SIZE = 1024
SOURCE = """
__global__ void add(unsigned *data, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += value;
}
"""
LOSING = re.compile(r"\w+(?:EventQuery|StreamQuery|Synchronize)$|cuCtxSetCurrent$|hipSetDevice$")
"""Without an answer of these nothing more can be known, whatever the code."""
DESTROYING = re.compile(
    r"cuCtxSetCurrent|hipSetDevice|\w*(?:Destroy|Free|Unload|Release|Unregister)"
)
"""What they were to destroy, or were called before to that end, stays when they fail."""

FEW = 8
"""How many objects such a failure may leave."""


def count(leaks):
    """Return how many objects a text of gpusim's tells of."""
    return sum(map(int, re.findall(r"(\d+) (?!bytes)", leaks)))


class Bench:
    """Hold a device and what a sequence works on, all made before anything fails."""

    def __init__(self, device, image):
        self.device = device
        self.kernel = device.load(image)["add"]
        self.first, self.second = (device.upload(np.zeros(SIZE, np.uint32)) for _ in range(2))
        self.host = np.zeros(SIZE, np.uint32)
        self.other = None
        with device.record(slots=2) as self.commands:
            target, copy = self.commands.slots
            self.commands.fill(target, 5, size=4 * SIZE)
            self.commands.barrier()
            self.commands.dispatch(self.kernel, grid=4, block=256, args=(target, 2, SIZE))
            self.commands.barrier()
            self.commands.copy(target, copy, size=4 * SIZE)

    def values(self, buffer):
        """Return the different numbers in a buffer."""
        return sorted(set(buffer.numpy(timeout=LIMIT).tolist()))


def submit(bench):
    """One operation of each kind that touches memory, each waited for."""
    bench.device.queue.fill(bench.first, 7).wait(LIMIT)
    bench.device.queue.dispatch(bench.kernel, grid=4, block=256, args=(bench.first, 1, SIZE)).wait(
        LIMIT
    )
    bench.device.queue.read(bench.first, bench.host).wait(LIMIT)
    return bench.host.tolist() == [8] * SIZE


def chain(bench):
    """Several queues, each waiting for the one before, behind a gate that the host opens."""
    queues, gate, turn = bench.device.queues, hal.create_semaphore(), hal.create_semaphore()
    written = queues.upload.write(
        bench.first, np.arange(SIZE, dtype=np.uint32), wait=[gate.at(1)], signal=[turn.at(1)]
    )
    added = queues.compute.dispatch(
        bench.kernel,
        grid=4,
        block=256,
        args=(bench.first, 3, SIZE),
        wait=[turn.at(1)],
        signal=[turn.at(2)],
    )
    copied = queues.download.copy(bench.first, bench.second, wait=[turn.at(2), written])
    read = queues.compute.read(bench.second, bench.host, wait=[copied, added], signal=[turn.at(3)])
    gate.signal(1)
    for each in (written, added, copied, read):
        try:
            each.wait(LIMIT)
        except DeadlineExceededError:
            raise
        except HalError:
            continue  # and so does what waits for it, in the end
    turn.wait(3, LIMIT)
    return bench.host.tolist() == list(range(3, SIZE + 3))


def execute(bench):
    """A recording with one binding after another, so that its instance is made and updated."""
    queue = bench.device.queue
    for _ in range(2):
        queue.execute(bench.commands, bindings=[bench.first, bench.second])
        queue.execute(bench.commands, bindings=[bench.second, bench.first]).wait(LIMIT)
    return bench.values(bench.first) == bench.values(bench.second) == [0x05050507]


def allocate(bench):
    """Memory of each kind, in the order of a queue and not."""
    queue = bench.device.queue
    made = [bench.device.allocate(SIZE, memory=m) for m in ("device", "host", "managed")]
    transient = queue.alloca(SIZE)
    filled = queue.fill(transient, 9)
    queue.copy(transient, made[1], wait=[filled]).wait(LIMIT)
    queue.dealloca(transient).wait(LIMIT)
    found = set(made[1].numpy(timeout=LIMIT).tolist())
    for buffer in made:
        buffer.close()
    return found == {9}


def pool(bench):
    """Memory of the driver's pool, used on one queue after another, and given back."""
    queue, other = bench.device.queue, bench.device.queues.upload
    made = bench.device.allocate(SIZE)
    for turn in range(3):
        first = queue.alloca(SIZE << turn)
        filled = queue.fill(first, 9 + turn)
        copied = queue.copy(first, made, size=SIZE, wait=[filled])
        second = other.alloca(SIZE, wait=[queue.dealloca(first)])
        other.fill(second, 1)
        other.dealloca(second).wait(LIMIT)
        copied.wait(LIMIT)
    found = set(made.numpy(timeout=LIMIT).tolist())
    bench.device.statistics()
    bench.device.trim()
    made.close()
    return found == {11}


def close(bench):
    """The device's end, with work under way."""
    gate = hal.create_semaphore()
    queue = bench.device.queue
    queue.fill(bench.first, 1)
    queue.execute(bench.commands, bindings=[bench.first, bench.second])
    waiting = queue.fill(bench.second, 1, wait=[gate.at(1)])
    bench.device.close(LIMIT)
    assert waiting.done
    return True


def reopen(bench):
    """Another device from beginning to end."""
    with hal.create_device(bench.device.name) as device:
        bench.other = device
        buffer = device.upload(np.ones(SIZE, np.uint32))
        return set(buffer.numpy(timeout=LIMIT).tolist()) == {1}


SEQUENCES = {
    each.__name__: each for each in (submit, chain, execute, allocate, pool, close, reopen)
}


class Trial:
    """Make attempts at one sequence, and keep what they have shown."""

    def __init__(self, backend, sequence, semaphores):
        self._spec = (
            f"{backend}?command_buffer=graph&async_allocations={sequence == 'pool'}"
            f"&semaphores={semaphores}"
        )
        self._act = SEQUENCES[sequence]
        self._sim = gpusim.Simulator(CDLL(os.environ["GPUSIM_SHOWN"], RTLD_GLOBAL))
        self._stray = []
        self.seen = Counter()
        threading.excepthook = lambda found: self._stray.append(repr(found.exc_value))
        sys.unraisablehook = lambda found: self._stray.append(repr(found.exc_value))
        with hal.create_device(self._spec) as device:
            self._image = device.compile(SOURCE).image

    def run(self):
        """Fail one call after another, with each code."""
        for code in CODES:
            number, beyond = 0, 0
            while beyond < 3:  # a thread that polls may or may not make a call more
                number += 1
                assert number < 2000, "the sequence has no end"
                sys.stdout.write(f"{self._act.__name__} {code} {number}\n")
                sys.stdout.flush()
                faulthandler.dump_traceback_later(6 * LIMIT, exit=True)
                reached = self._attempt(number, code)
                faulthandler.cancel_dump_traceback_later()
                beyond = 0 if reached else beyond + 1
            self.seen[f"calls {code}"] = number - 3

    def _attempt(self, number, code):
        """Let one call fail; return whether the sequence got as far as that."""
        sim = self._sim
        before = sim.leaks()
        device = hal.create_device(self._spec)
        bench = Bench(device, self._image)
        device.wait_idle(LIMIT)
        sim.clear_history()
        calls = sim.calls()
        if code == STICKY:
            sim.lose_device_at(calls + number, LOST)
        else:
            sim.fail("*", number, code)
        failure = None
        try:
            right = self._act(bench)
        except DeadlineExceededError:
            raise
        except HalError as error:
            failure, right = f"{type(error).__name__}: {error}", True
            error.__traceback__ = None
        reached = not sim.fail_none() if code != STICKY else sim.calls() >= calls + number
        name = re.findall(r"# (\w+) fails on request", sim.history())
        name = name[-1] if name else ""
        lost = device.lost
        assert right, f"{name}: wrong values and no error"
        if code == STICKY:
            sim.lose_device_at(0)
        elif code != LOST and lost:
            assert LOSING.match(name) or device.closed, f"{name}: lost for {code}: {failure}"
        if not lost and not device.closed and code != STICKY:
            self._use(bench, name, code, failure)
            lost = device.lost
        sim.clear_history()
        abandoned = device.close(LIMIT)
        assert lost or not abandoned, (name, abandoned)
        lost = device.lost or (bench.other is not None and bench.other.lost)
        del bench, device
        gc.collect()
        assert not self._stray, (name, self._stray)
        if lost or code == STICKY:
            self.seen["lost"] += 1
        else:
            left = sim.leaks()
            more, allowed = count(left) - count(before), FEW if DESTROYING.match(name) else 0
            assert more <= allowed, f"{name}: {left}; before: {before}"
            if more:
                self.seen["left by a failed end"] += 1
        sim.reset()
        self.seen["failed" if failure else "fine"] += 1
        return reached

    def _use(self, bench, name, code, failure):
        """See that a device works as if nothing had happened, unless it is lost."""
        try:
            done = bench.device.queue.fill(bench.first, 3)
            done.wait(LIMIT)
            again = bench.device.queue.execute(bench.commands, bindings=[bench.first, bench.second])
            again.wait(LIMIT)
            assert bench.values(bench.second) == [0x05050507]
        except HalError as error:
            # A thread that polls may have had the answer that the device is lost, and tell of it
            # only now.
            if not bench.device.lost or not (code == LOST or LOSING.match(name)):
                raise AssertionError(f"{name}: {failure}; then {error!r}") from error


def main(backend, sequence, semaphores):
    """Try one sequence and say what was seen."""
    trial = Trial(backend, sequence, semaphores)
    trial.run()
    sys.stdout.write(f"seen {json.dumps(trial.seen)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
