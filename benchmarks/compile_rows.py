"""Measure compiling: a kernel that was never compiled, and the same again."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping
from typing import Final

import block_rows
from harness import Row, Sample

import hal

__all__ = ["rows"]

_KERNEL: Final = re.compile(r"__global__ void (\w+)\(.*?\n}\n", re.DOTALL)

_clock = time.perf_counter


def rows(device: hal.Device) -> list[Row]:
    """Return a row for each kernel of `block_rows`, in milliseconds, by the clock.

    ``cold`` has a macro that no compilation before it had, so that no cache knows it. ``cached``
    is the call after it, with the same text. What they return is kept meanwhile, as users keep it:
    another thread would unload it, and take the interpreter lock from the call after it.
    """
    fresh = itertools.count(time.time_ns())
    return [
        Row(f"compile {found[1]}", "ms", {"hal": _compile(device, found[0], fresh)})
        for found in _KERNEL.finditer(block_rows.SOURCE)
    ]


def _compile(device: hal.Device, source: str, fresh: itertools.count[int]) -> Sample:
    def sample() -> Mapping[str, float]:
        defines = {"NEVER_COMPILED": next(fresh)}
        start = _clock()
        kept = [device.compile(source, defines=defines)]
        cold = _clock()
        kept.append(device.compile(source, defines=defines))
        return {"cold": 1e3 * (cold - start), "cached": 1e3 * (_clock() - cold)}

    return sample
