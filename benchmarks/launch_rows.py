"""Measure kernel launches: arguments, recordings, and recordings with new bindings.

Timed is the submitting thread, a launch or an execution, while the device works. All sides run
the same small kernel, whose arguments are pointers and numbers by turns; on a CUDA device
`cuda_launch_rows` has what else launches one from Python. A side that lacks a method has no cell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from harness import Row, Sample

import hal

__all__ = ["BLOCK", "COUNTS", "Kernels", "LaunchSide", "rows"]

BLOCK: Final = 32
COUNTS: Final = (1, 4, 16)
_RECORDED: Final = (1, 10)
_BURST: Final = 300
"""Kernels in a row in one sample: they fit in a native stream, so that no call waits for room."""

_clock = time.perf_counter


class Kernels:
    """A kernel for each number of arguments, and buffers for their pointers.

    Attributes
    ----------
    loaded
        By number of arguments. Each adds one to each of the first pointer's numbers, and nothing
        else if the other arguments have the values of `arguments`.
    buffers
        Of `BLOCK` 32-bit numbers, zeros: as many as the most pointers.
    """

    def __init__(self, device: hal.Device) -> None:
        self.loaded = {
            count: device.compile(source(count), filename=f"add{count}.cpp") for count in COUNTS
        }
        zeros = np.zeros(BLOCK, np.int32)
        self.buffers = [device.upload(zeros) for _ in range((max(COUNTS) + 1) // 2)]

    def arguments(self, count: int) -> list[object]:
        """Return a launch's arguments: buffers, and zeros as an int and a float by turns."""
        found: list[object] = []
        for number in range(count):
            if number % 2:
                found.append(0 if number % 4 == 1 else 0.0)
            else:
                found.append(self.buffers[number // 2])
        return found

    def pairs(self, count: int) -> list[tuple[hal.Buffer, hal.Buffer]]:
        """Return different pairs of buffers, at most as many as there are buffers."""
        return [(self.buffers[number], self.buffers[number - 1]) for number in range(count)]

    def result(self) -> int:
        """Implement `LaunchSide.result`."""
        return int(self.buffers[0].numpy(np.int32)[0])


def source(count: int) -> str:
    """Return the source of a kernel with so many arguments, for any compiler of GPU kernels."""
    kinds = ("int *", "int ", "int *", "float ")
    parameters = ", ".join(f"{kinds[number % 4]}a{number}" for number in range(count))
    terms = " + ".join(
        f"(int)a{number}" if number % 2 else f"(a{number} == nullptr)" for number in range(1, count)
    )
    return f"""
extern "C" __global__ void HAL_BLOCK({BLOCK}) add{count}({parameters}) {{
  a0[threadIdx.x] += 1{" + " if terms else ""}{terms};
}}
"""


class LaunchSide(Protocol):
    """Submit; nothing waits but `finish`."""

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Return what launches the kernel with so many arguments so many times."""

    def execute(self, dispatches: int) -> Callable[[int], None]:
        """Return what executes a recording of so many dispatches in a row so many times."""

    def rebind(self, dispatches: int, tables: int) -> Callable[[int], None]:
        """Return what does the same with other buffers in all dispatches than the time before.

        So many pairs of buffers take turns.
        """

    def finish(self) -> None:
        """Wait until all of it has ended."""

    def result(self) -> int:
        """Return the first of the numbers that the kernels have added to."""


class _OurSide:
    def __init__(self, device: hal.Device, kernels: Kernels) -> None:
        self._device, self._queue, self._kernels = device, device.queue, kernels
        self.result = kernels.result

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Implement `LaunchSide.dispatch`."""
        queue, kernel = self._queue, self._kernels.loaded[arguments][f"add{arguments}"]
        values = self._kernels.arguments(arguments)

        def launch(count: int) -> None:
            for _ in range(count):
                queue.dispatch(kernel, grid=1, args=(*values,))

        return launch

    def execute(self, dispatches: int) -> Callable[[int], None]:
        """Implement `LaunchSide.execute`."""
        queue, commands = self._queue, self._recorded(dispatches, 0)

        def run(count: int) -> None:
            for _ in range(count):
                queue.execute(commands)

        return run

    def rebind(self, dispatches: int, tables: int) -> Callable[[int], None]:
        """Implement `LaunchSide.rebind`."""
        queue, commands = self._queue, self._recorded(dispatches, 2)
        pairs = self._kernels.pairs(tables)

        def run(count: int) -> None:
            for number in range(count):
                queue.execute(commands, bindings=pairs[number % tables])

        return run

    def finish(self) -> None:
        """Implement `LaunchSide.finish`."""
        self._device.wait_idle()

    def _recorded(self, dispatches: int, slots: int) -> hal.CommandBuffer:
        kernel = self._kernels.loaded[4]["add4"]
        with self._device.record(slots=slots) as commands:
            x, y = commands.slots if slots else self._kernels.buffers[:2]
            for _ in range(dispatches):
                commands.dispatch(kernel, grid=1, args=(x, 0, y, 0.0))
                commands.barrier()
        return commands


Maker = Callable[[Kernels], LaunchSide]


def rows(
    device: hal.Device, others: Sequence[tuple[str, Maker]], missing: Callable[[str, str], None]
) -> list[Row]:
    """Return rows in microseconds a launch or an execution.

    `others` are what makes the other sides; `missing` is told which one is not here, and why.
    """
    kernels = Kernels(device)
    sides: dict[str, LaunchSide] = {"hal": _OurSide(device, kernels)}
    for name, make in others:
        try:
            sides[name] = make(kernels)
        except (ImportError, ValueError, RuntimeError) as error:
            missing(name, " ".join(str(error).split()))
    found = [
        _row(f"dispatch with {_many(count, 'argument')}", sides, "dispatch", count, _BURST)
        for count in COUNTS
    ]
    for count in _RECORDED:
        name = f"execute a recording of {_many(count, 'dispatch', 'es')}"
        found.append(_row(name, sides, "execute", count, _BURST // count))
    for name, tables in (
        ("the same with bindings that take turns", 2),
        ("the same with new bindings", 8),
    ):
        found.append(
            _row(name, sides, "rebind", _RECORDED[-1], _BURST // _RECORDED[-1], tables=tables)
        )
    return found


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{plural if count > 1 else ''}"


def _row(
    name: str,
    sides: Mapping[str, LaunchSide],
    method: str,
    argument: int,
    count: int,
    **options: int,
) -> Row:
    samples: dict[str, Sample] = {}
    for side, subject in sides.items():
        if hasattr(subject, method):
            work = getattr(subject, method)(argument, **options)
            before = subject.result()
            work(1)
            subject.finish()
            if subject.result() == before:
                message = f"{side} has not run a kernel of the row {name!r}"
                raise AssertionError(message)
            samples[side] = _timed(work, subject.finish, count)
    return Row(name, "us", samples)


def _timed(work: Callable[[int], None], finish: Callable[[], None], count: int) -> Sample:
    def sample() -> Mapping[str, float]:
        start = _clock()
        work(count)
        elapsed = _clock() - start
        finish()
        return {"": 1e6 * elapsed / count}

    return sample
