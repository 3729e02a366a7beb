"""Measure whether memory grows with the number of submissions.

Runs in a process of its own (`measure` starts it), because the figures are
those of the whole process::

    python memory_rows.py COUNT DEVICE

prints one line of JSON: resident memory, Python's traced memory and live
objects, after 1000 submissions and after COUNT.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Final

import hal

__all__ = ["measure"]

_FIRST: Final = 1000
_AHEAD: Final = 256
"""Submissions after which the host waits; a backlog of unbounded length is the user's to bound."""


def measure(device: str, count: int) -> dict[str, float]:
    """Return megabytes and objects after 1000 and after `count` submissions, by name."""
    result = subprocess.run(  # noqa: S603 - this file
        [sys.executable, __file__, str(count), device],
        check=True,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    record: dict[str, float] = json.loads(result.stdout)
    return record


def _submit(
    queue: hal.Queue, buffer: hal.Buffer, first: int, last: int, done: hal.Semaphore
) -> None:
    for value in range(first, last):
        queue.fill(buffer, b"\1", wait=(done.at(value),), signal=(done.at(value + 1),))
        if value % _AHEAD == 0:
            done.wait(value)
    done.wait(last)


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def _facts(prefix: str) -> dict[str, float]:
    gc.collect()
    traced, peak = tracemalloc.get_traced_memory()
    return {
        f"{prefix}_resident_mb": _resident_megabytes(),
        f"{prefix}_traced_mb": traced / 1e6,
        f"{prefix}_traced_peak_mb": peak / 1e6,
        f"{prefix}_objects": len(gc.get_objects()),
    }


def _main() -> None:
    count, spec = int(sys.argv[1]), sys.argv[2]
    tracemalloc.start()
    with hal.create_device(spec) as device:
        buffer = device.allocate(256)
        done = hal.create_semaphore()
        _submit(device.queue, buffer, 0, _FIRST, done)
        record = _facts("first")
        start = time.perf_counter()
        _submit(device.queue, buffer, _FIRST, count, done)
        record["seconds"] = time.perf_counter() - start
        record |= _facts("last")
        record["count"] = count
    json.dump(record, sys.stdout)


if __name__ == "__main__":
    _main()
