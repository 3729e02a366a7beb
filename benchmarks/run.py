"""Run the benchmarks: ``python benchmarks/run.py [--quick] [--device cpu] [--json FILE]``.

README.md says what each row does, and how a second backend comes into the same table.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import block_rows
import command_rows
import compile_rows
import cuda_launch_rows
import cuda_rows
import flow_rows
import hip_rows
import kernels_rows
import launch_rows
import machine
import memory_rows
import native
import report
import start_rows
import thread_rows
import timeline_rows
import tinygrad_rows
import transfer_rows
from harness import Metric, Row, measure
from rich.console import Console

import hal

_GROUPS: Final = (
    *("timelines", "flat", "launches", "commands", "flow", "pipeline", "transfers", "kernels"),
    "compile",
    *("threads", "tinygrad", "start", "memory"),
)
_TITLES: Final = {
    "flat": "pending on one semaphore, each",
    "launches": "launches, the submitting thread",
    "commands": "command buffers",
    "flow": "tracked buffers, an operation",
    "pipeline": "the demo's picture",
    "kernels": "kernels",
    "compile": "compilations, by the clock",
    "threads": "threads with a queue each",
    "tinygrad": "tinygrad on hal, and on its own backend",
    "start": "a new process",
}
_IREE_DRIVERS: Final = {"cpu": "local-task", "cuda": "cuda", "hip": "hip"}
"""IREE's driver for the same hardware, by the name of our backend."""
_LIBRARIES: Final = {"cuda": cuda_rows.sides, "hip": hip_rows.sides}
"""What else drives the same device from Python, by the name of our backend."""


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = _parse(sys.argv[1:])
    width = None if sys.stdout.isatty() else 280 if options.beside else 160
    out = Console(width=width, highlight=False)
    groups: dict[str, list[Metric]] = {}
    memory = None

    def group(
        name: str, make: Callable[[], Sequence[Row]], rounds: tuple[int, int], base: str = ""
    ) -> None:
        """Measure a group if it was asked for, in so many rounds with --quick or without."""
        if name in options.groups:
            groups[name] = _measure(make(), _rounds(options, *rounds))
            report.show_metrics(out, _TITLES[name], groups[name], base)

    with contextlib.ExitStack() as stack:
        device = stack.enter_context(hal.create_device(options.device))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        backend = _backend(options.device)
        second = stack.enter_context(hal.create_device(options.beside)) if options.beside else None
        facts = machine.facts(device, second, options.note)
        out.print(
            f"{facts['device']}; {facts['processors']} processors ({facts['processor']}); "
            f"Python {facts['python']}; load {facts['load_at_start']}"
        )
        if options.note:
            out.print(options.note, markup=False)
        backends = [_backend(each) for each in (options.device, options.beside) if each]
        others = _other_sides(backends, options.iree, out)
        # What the libraries have loaded is not walked before each sample.
        gc.freeze()
        if "timelines" in options.groups:
            groups["timelines"] = _timelines(device, second, others, options, out)
        group("flat", lambda: _flat_rows(device, options), (2, 3))
        group("launches", lambda: _launch_rows(device, options, out), (5, 25), "raw")
        group("commands", lambda: command_rows.rows(device, quick=options.quick), (5, 15))
        group("flow", lambda: flow_rows.rows(device, quick=options.quick), (5, 15))
        group("pipeline", lambda: _pipeline_rows(device, options, out), (5, 21))
        if "transfers" in options.groups:
            groups["transfers"] = _transfers(device, others, options, out)
        group(
            "kernels", lambda: _kernel_rows(device, options, Path(folder), out), (3, 11), "openmp"
        )
        group("compile", lambda: compile_rows.rows(device), (3, 11))
        group("threads", lambda: thread_rows.rows(device, _raw_work(options, out)), (5, 15), "raw")
        group("tinygrad", lambda: _tinygrad_rows(device, out), (3, 11))
    group("start", start_rows.rows, (3, 11))
    if "memory" in options.groups:
        memory = memory_rows.measure(options.device, 100_000 if options.quick else 1_000_000)
        report.show_memory(out, memory)
    path = options.json
    if path is None and not options.quick and tuple(options.groups) == _GROUPS:
        what = f"{facts['processors']}-processors"
        if backend != "cpu":
            what = str(facts["device"]).lower().replace(" ", "-")
        name = f"{'-'.join(backends)}-{what}-{facts['date']}.json"
        path = Path(__file__).with_name("results") / name
    if path is not None:
        report.write(path, facts, _command(options), groups, memory)
        out.print(f"written to {path.name} and {path.with_suffix('.md').name}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure hal on one device.")
    parser.add_argument("--quick", action="store_true", help="less of everything, half a minute")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many samples each side takes")
    parser.add_argument("--device", default="cpu", help="as for hal.create_device")
    parser.add_argument(
        "--beside",
        metavar="DEVICE",
        help="a device of another backend, for more columns in the table of timelines",
    )
    parser.add_argument("--note", metavar="TEXT", help="kept with the numbers: what they ran on")
    parser.add_argument("--iree", metavar="DRIVER", help="IREE's driver to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers are written")
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=_GROUPS,
        default=_GROUPS,
        help="what to run; a full run of all groups is kept in results/",
    )
    options = parser.parse_args(arguments)
    if options.beside and not options.note:
        parser.error("--beside needs a --note that says what the second device is")
    if options.beside and _backend(options.beside) == _backend(options.device):
        parser.error("--beside takes a device of another backend")
    return options


def _backend(device: str) -> str:
    return device.partition(":")[0].partition("?")[0]


def _command(options: argparse.Namespace) -> str:
    """Return the command line without the file it writes."""
    parts = ["python benchmarks/run.py", f"--device {options.device}"]
    if options.beside:
        parts.append(f"--beside {options.beside}")
    if options.quick:
        parts.append("--quick")
    if options.rounds:
        parts.append(f"--rounds {options.rounds}")
    if options.iree:
        parts.append(f"--iree {options.iree}")
    if tuple(options.groups) != _GROUPS:
        parts.append(f"--groups {' '.join(options.groups)}")
    return " ".join(parts)


def _timelines(
    device: hal.Device,
    second: hal.Device | None,
    others: dict[str, timeline_rows.TimelineSide],
    options: argparse.Namespace,
    out: Console,
) -> list[Metric]:
    sides = _our_sides("hal", device)
    with contextlib.ExitStack() as stack:
        if "stream_values" in device.features and "semaphores=" not in options.device:
            in_memory = stack.enter_context(hal.create_device(options.device, semaphores="memory"))
            sides["hal, memory"] = timeline_rows.OurSide(in_memory)
        if second is not None:
            sides |= _our_sides(f"hal, {second.name.partition(':')[0]}", second)
        sides |= others
        metrics = _measure(timeline_rows.rows(sides, quick=options.quick), _rounds(options, 5, 15))
        for side in sides.values():
            side.check()
    base = next((name for name in ("raw", "raw hip") if name in others), "iree")
    report.show_metrics(out, "timeline semaphores", metrics, base)
    return metrics


def _our_sides(name: str, device: hal.Device) -> dict[str, timeline_rows.TimelineSide]:
    """Return a device's sides: the queue, and each way to run a command buffer."""
    modes = (None, "stream", "graph") if "graphs" in device.features else (None, "stream")
    return {
        f"{name}, {mode}" if mode else name: timeline_rows.OurSide(device, mode) for mode in modes
    }


def _transfers(
    device: hal.Device,
    others: dict[str, timeline_rows.TimelineSide],
    options: argparse.Namespace,
    out: Console,
) -> list[Metric]:
    copies = _driver_copies(others.get("raw"))
    rows = transfer_rows.rows(device, copies, quick=options.quick)
    metrics = _measure(rows, _rounds(options, 3, 7))
    report.show_metrics(out, "memory and transfers", metrics, "raw" if copies else "numpy.copyto")
    return metrics


def _rounds(options: argparse.Namespace, quick: int, full: int) -> int:
    return int(options.rounds or (quick if options.quick else full))


def _measure(rows: Sequence[Row], rounds: int) -> list[Metric]:
    return [metric for row in rows for metric in measure(row, rounds)]


def _other_sides(
    backends: Sequence[str], iree: str | None, out: Console
) -> dict[str, timeline_rows.TimelineSide]:
    """Return what hal is compared with here, after a word about each that there is not."""
    found: dict[str, timeline_rows.TimelineSide] = {}
    makers: list[tuple[str, Callable[[], timeline_rows.TimelineSide]]] = []
    driver = iree or _IREE_DRIVERS.get(backends[0])
    if driver:
        makers.append(("iree", lambda: _iree_side(driver)))
    for backend in backends:
        if backend in _LIBRARIES:
            makers += _LIBRARIES[backend]()
    for name, make in makers:
        try:
            found[name] = make()
        except (ImportError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            out.print(f"no comparison with {name}: {reason}", markup=False)
    return found


def _flat_rows(device: hal.Device, options: argparse.Namespace) -> list[Row]:
    return timeline_rows.pending_rows(timeline_rows.OurSide(device), quick=options.quick)


def _launch_rows(device: hal.Device, options: argparse.Namespace, out: Console) -> list[Row]:
    def missing(name: str, reason: str) -> None:
        out.print(f"no launches by {name}: {reason}", markup=False)

    others = tuple(cuda_launch_rows.sides()) if _backend(options.device) == "cuda" else ()
    return launch_rows.rows(device, others, missing)


def _raw_work(options: argparse.Namespace, out: Console) -> thread_rows.Maker | None:
    if _backend(options.device) == "cuda":
        try:
            return thread_rows.raw_work()
        except (ImportError, RuntimeError) as error:
            out.print(f"no threads by raw: {error}", markup=False)
    return None


def _pipeline_rows(device: hal.Device, options: argparse.Namespace, out: Console) -> list[Row]:
    try:
        import pipeline_rows  # noqa: PLC0415 - the demo's libraries may not be installed
    except ImportError as error:
        out.print(f"no pipeline: {error}", markup=False)
        return []
    return pipeline_rows.rows(device, quick=options.quick)


def _tinygrad_rows(device: hal.Device, out: Console) -> list[Row]:
    try:
        return tinygrad_rows.rows(device)
    except ImportError as error:
        out.print(f"no tinygrad: {error}", markup=False)
        return []


def _kernel_rows(
    device: hal.Device, options: argparse.Namespace, folder: Path, out: Console
) -> list[Row]:
    loops = _native_loops(folder, out) if _backend(options.device) == "cpu" else None
    found = kernels_rows.rows(device, loops, quick=options.quick)
    return found + block_rows.rows(device, loops, quick=options.quick)


def _iree_side(driver: str) -> timeline_rows.TimelineSide:
    import iree_rows  # noqa: PLC0415 - it may not be installed

    return iree_rows.IreeSide(driver)


def _driver_copies(
    raw: timeline_rows.TimelineSide | None,
) -> Callable[[int], cuda_rows.DriverCopies] | None:
    """Return what makes the driver's own copies, where there is a driver's own side."""
    if not isinstance(raw, cuda_rows.RawSide):
        return None
    return lambda size: cuda_rows.DriverCopies(raw, size)


def _native_loops(folder: Path, out: Console) -> native.NativeLoops | None:
    compiler = native.find_compiler()
    if compiler is None:
        out.print("no comparison with OpenMP: there is no g++")
        return None
    threads = len(os.sched_getaffinity(0))
    return native.NativeLoops(compiler, folder, defines=kernels_rows.BLUR_DEFINES, threads=threads)


if __name__ == "__main__":
    sys.exit(main())
