"""Find from how many commands on a recording is submitted faster as a graph than replayed.

    python benchmarks/lowering.py cuda [--json FILE]

What it says is the backend's `NativeDevice.graph_commands`, by which
``command_buffer="auto"`` goes (docs/command-buffers.md). Timed is the submitting
thread: `Queue.execute` of a reusable recording of 1 to 100 fills, or dispatches of a
small kernel, with nothing else to do. Both ways take turns in one process, and the
median counts. `first` is the first execution, which makes the graph and its instance;
`ended` is an execution until the host has seen its end.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
import machine
import numpy as np
from rich.console import Console
from rich.table import Table

import hal

__all__ = ["Result", "crossover", "measure"]

COUNTS: Final = (1, 2, 4, 10, 32, 100)
WAYS: Final = ("stream", "graph")
_LENGTH: Final = 64
_BURST: Final = 20
"""Executions in a row that one sample is the mean of; they fit in a native stream."""
_FIRSTS: Final = 5
_CLEARLY: Final = 0.9
"""What part of the other's time the faster way takes at the most."""

_SOURCE: Final = """
extern "C" __global__ void add(int *x, int value) { x[threadIdx.x] += value; }
"""

_clock = time.perf_counter


class Result(NamedTuple):
    """Hold the medians for one recording, in microseconds.

    Attributes
    ----------
    command
        What it consists of: ``"fill"`` or ``"dispatch"``.
    count
        Of how many.
    submit, first, ended
        By way, ``"stream"`` and ``"graph"``.
    """

    command: str
    count: int
    submit: Mapping[str, float]
    first: Mapping[str, float]
    ended: Mapping[str, float]


class _Case:
    """Record and execute so many commands of a kind."""

    def __init__(
        self, device: hal.Device, kernel: hal.Kernel | None, command: str, count: int
    ) -> None:
        self._device = device
        self._kernel = kernel
        self._count = count
        self._target = device.upload(np.zeros(_LENGTH, np.int32))
        self.command = command
        self.ready = {way: self.record(way) for way in WAYS}
        for commands in self.ready.values():
            device.queue.execute(commands).wait()

    def record(self, way: str) -> hal.CommandBuffer:
        """Record the commands with a barrier after each, as a program does that needs them all."""
        with self._device.record(command_buffer=way) as commands:
            for number in range(self._count):
                if self._kernel is None:
                    commands.fill(self._target, number)
                else:
                    arguments = (self._target, number)
                    commands.dispatch(self._kernel, grid=1, block=_LENGTH, args=arguments)
                commands.barrier()
        return commands

    def submit(self, way: str) -> float:
        """Return what an execution takes of the submitting thread, the device being busy."""
        commands, execute = self.ready[way], self._device.queue.execute
        start = _clock()
        for _ in range(_BURST):
            last = execute(commands)
        elapsed = _clock() - start
        last.wait()
        return 1e6 * elapsed / _BURST

    def ended(self, way: str) -> float:
        """Return what an execution takes until the host has seen its end."""
        start = _clock()
        self._device.queue.execute(self.ready[way]).wait()
        return 1e6 * (_clock() - start)

    def first(self, way: str) -> float:
        """Return what the first execution of a recording takes of the submitting thread."""
        commands = self.record(way)
        start = _clock()
        submission = self._device.queue.execute(commands)
        elapsed = _clock() - start
        submission.wait()
        return 1e6 * elapsed


def measure(device: hal.Device, counts: Sequence[int], rounds: int, seconds: float) -> list[Result]:
    """Measure all recordings in turn, each for its share of `seconds` at the most."""
    kernels: dict[str, hal.Kernel | None] = {"fill": None}
    if "compile" in device.features:
        kernels["dispatch"] = device.compile(_SOURCE, filename="add.cpp")["add"]
    share = seconds / (len(kernels) * len(counts))
    found = []
    for command, kernel in kernels.items():
        for count in counts:
            case = _Case(device, kernel, command, count)
            deadline = _clock() + share
            found.append(
                Result(
                    command,
                    count,
                    _medians(case.submit, rounds, deadline),
                    _medians(case.first, _FIRSTS, deadline),
                    _medians(case.ended, rounds, deadline),
                )
            )
    return found


def _medians(sample: Callable[[str], float], rounds: int, deadline: float) -> dict[str, float]:
    """Sample both ways in turn, once untimed; which goes first changes from round to round."""
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        sample(way)
    gc.collect()
    gc.disable()  # as `timeit` does
    try:
        for number in range(rounds):
            for way in WAYS[:: 1 if number % 2 else -1]:
                samples[way].append(sample(way))
            if _clock() > deadline:
                break
    finally:
        gc.enable()
    return {way: statistics.median(each) for way, each in samples.items()}


def crossover(results: Sequence[Result]) -> int:
    """Return the least count from which on a graph is clearly faster, whatever the command.

    0 for none. Less than a tenth is no difference.
    """
    counts = sorted({each.count for each in results})
    slower = [each.count for each in results if not _is_clearly_faster(each)]
    above = [count for count in counts if count > max(slower, default=0)]
    return above[0] if above else 0


def _is_clearly_faster(result: Result) -> bool:
    return result.submit["graph"] <= _CLEARLY * result.submit["stream"]


def show(out: Console, results: Sequence[Result]) -> None:
    """Print a table."""
    table = Table(title="microseconds an execution, less is better", title_justify="left")
    table.add_column("recording")
    for what in ("submit", "first", "ended"):
        for way in WAYS:
            table.add_column(f"{what}\n{way}", justify="right")
    table.add_column("pays after", justify="right")
    for each in results:
        cells = [
            f"{values[way]:.1f}" for values in (each.submit, each.first, each.ended) for way in WAYS
        ]
        table.add_row(f"{each.count} x {each.command}", *cells, _pays_after(each))
    out.print(table)


def _pays_after(result: Result) -> str:
    """Return after how many executions a graph has cost less in all than replays would have."""
    saved = result.submit["stream"] - result.submit["graph"]
    extra = result.first["graph"] - result.first["stream"]
    if saved <= 0:
        return "never"
    return f"{1 + max(extra, 0) / saved:.0f}"


@click.command()
@click.argument("device", default="cpu")
@click.option("--rounds", default=40, show_default=True, help="Samples of each way at the most.")
@click.option("--seconds", default=30.0, show_default=True, help="All of them at the most.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the numbers there.")
def main(device: str, rounds: int, seconds: float, path: Path | None) -> None:
    """Measure both ways to run a command buffer on DEVICE, as for hal.create_device."""
    out = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    with hal.create_device(device) as opened:
        if "graphs" not in opened.features:
            message = f"{opened.name} has no native graphs: every recording is replayed"
            raise click.ClickException(message)
        facts = machine.facts(opened)
        out.print(f"{facts['device']}; {facts['processor']}; load {facts['load_at_start']}")
        results = measure(opened, COUNTS, rounds, seconds)
        says = opened._native.graph_commands  # noqa: SLF001 - what it is compared with
    show(out, results)
    least = crossover(results)
    found = f"from {least} commands on" if least else f"for up to {COUNTS[-1]} commands never"
    out.print(f"A graph is submitted clearly faster {found}; the backend says {says}.")
    if path is not None:
        record = {
            "machine": facts,
            "command": f"python benchmarks/lowering.py {device}",
            "graph_commands": {"measured": least, "backend": says},
            "results": [each._asdict() for each in results],
        }
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
