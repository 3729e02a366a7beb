"""What the cases of the C extension's shortcuts share; `test_shortcuts.py` runs them.

Each file of cases is a program: HAL_SPEEDUPS=require python tests/speedups/FILE DEVICE CASE...
Those of `pool_cases.py`, `row_cases.py` and `fault_cases.py` need the software driver.
"""

import gc
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from core_harness import wait_until

import hal
from hal._base import speedups

FAILED = 999  # a status that is neither success nor a lost device (CUDA_ERROR_UNKNOWN)
SOURCE = """
extern "C" __global__ void HAL_BLOCK(4) add(const int *x, int *y, int n, float scale) {
  y[threadIdx.x] += x[threadIdx.x] + n + (int)scale;
}
"""


class Calls:
    """The Python functions of hal that were called while the block ran."""

    def __enter__(self):
        gc.collect()  # or finalisers of what earlier cases left in cycles are called meanwhile
        self.names = Counter()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        if event == "call" and frame.f_globals["__name__"].partition(".")[0] == "hal":
            self.names[frame.f_code.co_qualname] += 1


class OnlyC(Calls):
    """A block in which C does everything: no Python function of hal's is called."""

    def __exit__(self, kind, *_):
        super().__exit__()
        assert kind or not self.names, self.names


def warm(device):
    """Have events made, so that the pool has some."""
    buffer = device.allocate(256)
    last = [device.queue.fill(buffer, 0) for _ in range(64)][-1]
    last.wait()
    device.wait_idle()
    return buffer


def keeps_nothing(run, kept, device, first, more):
    """Fail if many turns of `run(count)` keep more references or objects than `first` turns do."""

    def counts(turns):
        run(turns)
        device.wait_idle(60)
        gc.collect()
        return [sys.getrefcount(each) for each in kept], len(gc.get_objects())

    def is_flat():
        again, grown = counts(0)
        # The pool of events grows with what is in flight: to 512 or so.
        few = all(now - then < 20 for now, then in zip(again, references, strict=True))
        return few and grown - objects < 1500

    counts(first)
    references, objects = counts(first)
    run(more)
    wait_until(is_flat)  # what a thread of ours has retired it drops a moment later


def in_threads(*functions):
    """Run functions on threads of their own; return their results, or raise the first error."""
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(each) for each in functions]
        return [each.result(60) for each in running]


def fill_at_once(device, count, queue_of, waits_for):
    """Have threads fill a buffer each, 300 times, and wait for it now and then.

    Fill `number` of thread `index` is submitted to the queue ``queue_of(index, number)``, behind
    the fill before it of thread ``waits_for(index)``.
    """
    rounds = 300
    buffers = [device.allocate(64) for _ in range(count)]
    semaphores = [hal.create_semaphore() for _ in range(count)]

    def work(index):
        own, other = semaphores[index], semaphores[waits_for(index)]
        for number in range(1, rounds + 1):
            order = {"wait": (other.at(number - 1),), "signal": (own.at(number),)}
            queue_of(index, number).fill(buffers[index], number % 256, **order)
            if not number % 50:
                own.wait(number, 60)

    in_threads(*(partial(work, index) for index in range(count)))
    device.wait_idle(60)
    assert [each.query() for each in semaphores] == [rounds] * count
    assert all(each.numpy().tolist() == [rounds % 256] * 64 for each in buffers)


class Interrupt:
    """Raise KeyboardInterrupt, so many times, where one of some Python functions of hal begins."""

    def __init__(self, *names, times=1):
        self.names = names
        self.left = times

    def __enter__(self):
        sys.settrace(self._trace)
        sys.setprofile(self._note)
        return self

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        sys.settrace(None)
        assert self.left == 0
        assert kind is KeyboardInterrupt
        return True

    def _note(self, frame, event, _):
        if event == "call" and self.left and frame.f_code.co_qualname in self.names:
            self.left -= 1
            raise KeyboardInterrupt

    def _trace(self, frame, event, _):
        if event == "exception":  # the interpreter has dropped the profile function that raised
            sys.setprofile(self._note)
        return self._trace


def fails(function, calls, device):
    """Let the next calls of a driver's function fail on the software driver."""
    import gpusim  # noqa: PLC0415 - only runs on the software driver have it

    sim = gpusim.load()
    assert device.backend == "cuda"
    for number in range(1, calls + 1):
        sim.fail(function, number, FAILED)
    return sim


def records(call, *arguments):
    """Return how many events a call records on the software driver."""
    import gpusim  # noqa: PLC0415 - only runs on the software driver have it

    sim = gpusim.load()
    before = sim.calls("cuEventRecord")
    call(*arguments)
    return sim.calls("cuEventRecord") - before


def main(spec, *names, cases):
    """Run cases, each on a device of its own; `none` opens none."""
    assert speedups.module is not None
    gc.freeze()  # what is imported: `Calls` asks for a collection each time
    for name in names:
        print(name, flush=True)  # noqa: T201 - for the parent: which is the last
        if spec == "none":
            cases[name](None)
            continue
        device = hal.create_device(spec)
        cases[name](device)
        assert device.close() == ()
