"""Measure submissions from several threads at once, each with a queue of its own.

The work is that of the row "submit": a wait met long ago, a fill of 256 bytes, a signal. A thread
submits some hundred and waits for the last of them, again and again. In microseconds from the first
submission to the end of the last, divided by the submissions of all threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from cuda_rows import Driver
from harness import Row, Sample
from timeline_rows import FILL_BYTES, PATTERN

import hal

__all__ = ["raw_work", "rows"]

_THREADS: Final = (1, 4, 8)
_BURSTS: Final = 5
_BURST: Final = 200
"""Submissions without a wait; they fit in a native stream."""

Work = Callable[[], None]
Maker = Callable[[contextlib.ExitStack], Work]
"""Return what one thread does; what it needs is closed with the stack."""

_clock = time.perf_counter


def rows(device: hal.Device, raw: Maker | None) -> list[Row]:
    """Return a row for each number of threads; `raw` makes that side's work, where there is one."""

    def ours(stack: contextlib.ExitStack) -> Work:
        return _our_work(device, stack)

    found = []
    for count in _THREADS:
        sides = {"hal": _timed(ours, count)}
        if raw is not None:
            sides["raw"] = _timed(raw, count)
        if count > 1:
            sides["hal, one thread"] = _timed(ours, 1)
        name = f"{count} thread{'s' if count > 1 else ''}"
        found.append(Row(f"{name}, a submission of all", "us", sides))
    return found


def _our_work(device: hal.Device, stack: contextlib.ExitStack) -> Work:
    buffer = device.allocate(FILL_BYTES)
    stack.callback(buffer.close)
    queue = stack.enter_context(device.create_queue())
    met, done = hal.create_semaphore(1), hal.create_semaphore()

    def work() -> None:
        for burst in range(_BURSTS):
            last = (burst + 1) * _BURST
            for number in range(last - _BURST + 1, last + 1):
                queue.fill(buffer, PATTERN, wait=(met.at(1),), signal=(done.at(number),))
            done.wait(last)

    return work


def raw_work() -> Maker:
    """Return what makes the threads' work through the driver's bindings, on a stream each.

    Raises `ImportError` or `RuntimeError` if there is no driver.
    """
    driver = Driver()
    cu, call = driver.cu, driver.call
    word, words = int.from_bytes(PATTERN, "little"), FILL_BYTES // len(PATTERN)

    def made(stack: contextlib.ExitStack) -> Work:
        stream, met, done = driver.stream(), driver.event(), driver.event()
        address = call(cu.cuMemAlloc(FILL_BYTES))
        stack.callback(cu.cuMemFree, address)
        stack.callback(cu.cuStreamDestroy, stream)
        call(cu.cuEventRecord(met, stream))
        call(cu.cuStreamSynchronize(stream))

        def work() -> None:
            driver.enter()
            for _ in range(_BURSTS):
                for _ in range(_BURST):
                    cu.cuStreamWaitEvent(stream, met, 0)
                    cu.cuMemsetD32Async(address, word, words, stream)
                    cu.cuEventRecord(done, stream)
                call(cu.cuStreamSynchronize(stream))

        return work

    return made


def _timed(make: Maker, count: int) -> Sample:
    """Start the threads, let them go at once, and wait for the last one."""

    def sample() -> Mapping[str, float]:
        start = threading.Barrier(count + 1)

        def run(work: Work) -> None:
            start.wait()
            work()

        with contextlib.ExitStack() as stack:
            works = [make(stack) for _ in range(count)]
            threads = [threading.Thread(target=run, args=(each,)) for each in works]
            for each in threads:
                each.start()
            start.wait()
            began = _clock()
            for each in threads:
                each.join()
            elapsed = _clock() - began
        return {"": 1e6 * elapsed / (count * _BURSTS * _BURST)}

    return sample
