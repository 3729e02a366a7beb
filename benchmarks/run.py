"""Run the benchmarks: ``python benchmarks/run.py [--quick] [--device cpu] [--json FILE]``.

README.md says what each row does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import command_rows
import kernels_rows
import machine
import memory_rows
import native
import report
import timeline_rows
import transfer_rows
from harness import Metric, Row, measure
from rich.console import Console

import hal

_GROUPS: Final = ("timelines", "flat", "commands", "transfers", "kernels", "memory")
_IREE_DRIVERS: Final = {"cpu": "local-task", "cuda": "cuda", "hip": "hip"}
"""IREE's driver for the same hardware, by the name of our backend."""


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = _parse(sys.argv[1:])
    out = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    groups: dict[str, list[Metric]] = {}
    memory = None
    with hal.create_device(options.device) as device, tempfile.TemporaryDirectory() as folder:
        backend = options.device.partition(":")[0].partition("?")[0]
        facts = machine.facts(device)
        out.print(
            f"{facts['device']}; {facts['processors']} processors ({facts['processor']}); "
            f"Python {facts['python']}; load {facts['load_at_start']}"
        )
        sides: dict[str, timeline_rows.TimelineSide] = {
            "hal": timeline_rows.OurSide(device, recorded=False),
            "hal, recorded": timeline_rows.OurSide(device, recorded=True),
        }
        if "timelines" in options.groups:
            iree = _iree_side(options.iree or _IREE_DRIVERS.get(backend, ""), out)
            if iree is not None:
                sides["iree"] = iree
            rows = timeline_rows.rows(sides, quick=options.quick)
            groups["timelines"] = _measure(rows, 5 if options.quick else 15)
            for side in sides.values():
                side.check()
            report.show_metrics(out, "timeline semaphores", groups["timelines"], "iree")
        if "flat" in options.groups:
            rows = timeline_rows.pending_rows(sides["hal"], quick=options.quick)
            groups["flat"] = _measure(rows, 2 if options.quick else 3)
            report.show_metrics(out, "pending on one semaphore, each", groups["flat"], "")
        if "commands" in options.groups:
            rows = command_rows.rows(device, quick=options.quick)
            groups["commands"] = _measure(rows, 5 if options.quick else 15)
            report.show_metrics(out, "command buffers", groups["commands"], "")
        if "transfers" in options.groups:
            rows = transfer_rows.rows(device, quick=options.quick)
            groups["transfers"] = _measure(rows, 3 if options.quick else 7)
            report.show_metrics(out, "memory and transfers", groups["transfers"], "numpy.copyto")
        if "kernels" in options.groups:
            loops = _native_loops(Path(folder), out) if backend == "cpu" else None
            rows = kernels_rows.rows(device, loops, quick=options.quick)
            groups["kernels"] = _measure(rows, 3 if options.quick else 11)
            report.show_metrics(out, "kernels", groups["kernels"], "openmp")
    if "memory" in options.groups:
        memory = memory_rows.measure(options.device, 100_000 if options.quick else 1_000_000)
        report.show_memory(out, memory)
    path = options.json
    if path is None and not options.quick and tuple(options.groups) == _GROUPS:
        name = f"{backend}-{facts['processors']}-processors-{facts['date']}.json"
        path = Path(__file__).with_name("results") / name
    if path is not None:
        report.write(path, facts, _command(options), groups, memory)
        out.print(f"written to {path.name}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure hal on one device.")
    parser.add_argument("--quick", action="store_true", help="less of everything, half a minute")
    parser.add_argument("--device", default="cpu", help="as for hal.create_device")
    parser.add_argument("--iree", metavar="DRIVER", help="IREE's driver to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers are written")
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=_GROUPS,
        default=_GROUPS,
        help="what to run; a full run of all groups is kept in results/",
    )
    return parser.parse_args(arguments)


def _command(options: argparse.Namespace) -> str:
    """Return the command line without the file it writes."""
    parts = ["python benchmarks/run.py", f"--device {options.device}"]
    if options.quick:
        parts.append("--quick")
    if options.iree:
        parts.append(f"--iree {options.iree}")
    if tuple(options.groups) != _GROUPS:
        parts.append(f"--groups {' '.join(options.groups)}")
    return " ".join(parts)


def _measure(rows: Sequence[Row], rounds: int) -> list[Metric]:
    return [metric for row in rows for metric in measure(row, rounds)]


def _iree_side(driver: str, out: Console) -> timeline_rows.TimelineSide | None:
    """Return IREE's side, or None after a word about why there is none."""
    if not driver:
        return None
    try:
        import iree_rows  # noqa: PLC0415 - it may not be installed

        return iree_rows.IreeSide(driver)
    except (ImportError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        out.print(f"no comparison with IREE: {reason}", markup=False)
        return None


def _native_loops(folder: Path, out: Console) -> native.NativeLoops | None:
    compiler = native.find_compiler()
    if compiler is None:
        out.print("no comparison with OpenMP: there is no g++")
        return None
    threads = len(os.sched_getaffinity(0))
    return native.NativeLoops(compiler, folder, defines=kernels_rows.BLUR_DEFINES, threads=threads)


if __name__ == "__main__":
    sys.exit(main())
