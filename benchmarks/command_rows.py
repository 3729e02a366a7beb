"""Measure command buffers: recording, the first submission, later ones, new bindings.

The recording is a chain of small kernels on one slot of the binding table.
Timed is the submitting thread; the host waits between samples, untimed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from harness import Row

import hal

__all__ = ["rows"]

_COUNTS: Final = (1, 10, 100, 1000)
_LENGTH: Final = 64
_SOURCE = """
extern "C" __global__ void add(int *x, int value) { x[threadIdx.x] += value; }
"""

_clock = time.perf_counter


class _Side:
    """Take samples in one mode, ``"stream"`` or ``"graph"``; all return microseconds."""

    def __init__(self, device: hal.Device, kernel: hal.Kernel, mode: str, count: int) -> None:
        self._device = device
        self._kernel = kernel
        self._mode = mode
        self._count = count
        self._targets = [device.upload(np.zeros(_LENGTH, np.int32)) for _ in range(2)]
        self._commands = self._recorded()

    def record(self) -> Mapping[str, float]:
        """Record `count` dispatches with a barrier after each."""
        start = _clock()
        self._recorded()
        return {"": 1e6 * (_clock() - start)}

    def first(self) -> Mapping[str, float]:
        """Submit a recording for the first time: instances and graphs are made."""
        commands = self._recorded()
        return self._timed(lambda: self._execute(commands, 0))

    def again(self) -> Mapping[str, float]:
        """Submit it with the bindings that it had."""
        self._execute(self._commands, 0).wait()
        return self._timed(lambda: self._execute(self._commands, 0))

    def rebound(self) -> Mapping[str, float]:
        """Submit it with other bindings than before."""
        self._execute(self._commands, 0).wait()
        return self._timed(lambda: self._execute(self._commands, 1))

    def _recorded(self) -> hal.CommandBuffer:
        with self._device.record(slots=1, command_buffer=self._mode) as commands:
            (slot,) = commands.slots
            for _ in range(self._count):
                commands.dispatch(self._kernel, grid=1, block=_LENGTH, args=(slot, 1))
                commands.barrier()
        return commands

    def _execute(self, commands: hal.CommandBuffer, target: int) -> hal.Submission:
        return self._device.queue.execute(commands, bindings=[self._targets[target]])

    @staticmethod
    def _timed(submit: Callable[[], hal.Submission]) -> Mapping[str, float]:
        start = _clock()
        submission = submit()
        elapsed = _clock() - start
        submission.wait()
        return {"": 1e6 * elapsed}


def rows(device: hal.Device, *, quick: bool) -> list[Row]:
    """Return four rows for each number of dispatches, in both modes where there are graphs."""
    kernel = device.compile(_SOURCE, filename="add.cpp")["add"]
    modes = ("stream", "graph") if "graphs" in device.features else ("stream",)
    found: list[Row] = []
    for count in _COUNTS[:3] if quick else _COUNTS:
        sides = {f"hal, {mode}": _Side(device, kernel, mode, count) for mode in modes}
        for what, method in (
            ("record", _Side.record),
            ("first submit", _Side.first),
            ("resubmit", _Side.again),
            ("resubmit with new bindings", _Side.rebound),
        ):
            samples = {name: functools.partial(method, side) for name, side in sides.items()}
            found.append(Row(f"{what}, {count} dispatches", "us", samples))
    return found
