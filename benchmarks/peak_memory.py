"""Compare what allocators hold at the most, and what a temporary costs, over the same sequences.

    python benchmarks/peak_memory.py DEVICE [--steps N] [--seconds N] [--json FILE]

README.md says what the sequences are, and what each column means.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import machine
from click.core import ParameterSource
from harness import Metric
from peaks import Bench, Case
from rich.console import Console
from rich.table import Table
from temporaries import SEQUENCES

import hal

__all__ = ["show", "show_tenth"]

QUEUES: Final = (1, 3)
_MIB: Final = 1 << 20


def show(out: Console, case: Case) -> None:
    """Print a table."""
    table = Table(
        title=f"{case.sequence}, {_queues(case.queues)}: "
        f"{case.passes} passes of {case.pairs} temporaries, at the most "
        f"{case.ideal / _MIB:.1f} MiB of them live",
        title_justify="left",
    )
    base = "raw" if "raw" in case.peak else ""
    table.add_column("allocator")
    for heading in ("peak MiB", "/ live", "/ raw", "taken MiB", "pair us", "/ raw", "pass us"):
        table.add_column(heading, justify="right")
    for name in {**case.peak, **case.failures}:
        if name in case.failures:
            table.add_row(name, "failed")
            continue
        peak, taken = case.peak[name], case.taken.get(name)
        table.add_row(
            name,
            f"{peak / _MIB:.1f}",
            f"{peak / case.ideal:.2f}",
            f"{peak / case.peak[base]:.2f}" if base else "",
            "" if taken is None else f"{taken / _MIB:.0f}",
            _cell(case.pair, name, 2),
            f"{ratio:.2f}" if base and (ratio := _to_base(case.pair, name)) else "",
            _cell(case.whole, name, 0),
        )
    out.print(table)
    if case.forced:
        out.print(f"The host waited for the device {case.forced} times, which was let go then.")
    for name, failure in case.failures.items():
        out.print(f"{name}: {failure}", markup=False)


def show_tenth(out: Console, tenth: Mapping[str, Any]) -> None:
    """Print a tenth of the time that random sizes were run for."""
    each = "; ".join(
        f"{name} {100 * share:.1f} % of {tenth['held'][name] / _MIB:.1f}"
        for name, share in tenth["fragmentation"].items()
    )
    out.print(
        f"{tenth['seconds']:.0f} s, {tenth['pairs']:,} temporaries: {each}",
        markup=False,
        soft_wrap=True,
    )


def _queues(number: int) -> str:
    return f"{number} queue" if number == 1 else f"{number} queues"


def _cell(metric: Metric | None, name: str, digits: int) -> str:
    if metric is None or name not in metric.medians:
        return ""
    parts = [f"{each[name]:.{digits}f}" for each in (metric.medians, metric.lows, metric.highs)]
    return f"{parts[0]} [{parts[1]} {parts[2]}]"


def _to_base(metric: Metric | None, name: str) -> float | None:
    """Return a side's time divided by the first side's of the same round, the median."""
    if metric is None or name not in metric.medians:
        return None
    return 1 / metric.ratios[name] if name in metric.ratios else 1.0


@click.command()
@click.argument("device", default="cpu")
@click.option("--steps", default=10, show_default=True, help="Passes through each sequence.")
@click.option("--rounds", default=11, show_default=True, help="Samples of each side's cost.")
@click.option("--seconds", default=0.0, help="And random sizes for so long; 3600 is an hour.")
@click.option(
    "--sequence", "names", multiple=True, type=click.Choice(list(SEQUENCES)), default=[*SEQUENCES]
)
@click.option("--queues", multiple=True, type=int, default=QUEUES, show_default=True)
@click.option("--scale", default=1, show_default=True, help="By what all sizes are divided.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the numbers there.")
def main(
    device: str,
    steps: int,
    rounds: int,
    seconds: float,
    names: Sequence[str],
    queues: Sequence[int],
    scale: int,
    path: Path | None,
) -> None:
    """Measure peaks and costs on DEVICE, as for hal.create_device."""
    out = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(hal.create_device(device))
        facts = machine.facts(opened)
        out.print(f"{facts['device']}; {facts['processor']}; load {facts['load_at_start']}")
        bench = Bench(opened, device, scale, out)
        stack.callback(bench.close)
        gc.freeze()  # what the libraries have loaded is not walked before each sample
        cases = []
        for name in names if steps else ():
            for number in queues:
                cases.append(bench.run(name, number, steps, rounds))
                show(out, cases[-1])
        soaks = {}
        for number in queues if seconds else ():
            out.print(f"random sizes, {_queues(number)}: the unused part of what is held, in MiB")
            soaks[number] = bench.soak(number, seconds, functools.partial(show_tenth, out))
    if path is not None:
        record = {
            "machine": facts,
            "command": f"python benchmarks/peak_memory.py {device}{_options()}",
            "scale": scale,
            "cases": [asdict(case) for case in cases],
            "random": soaks,
        }
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _options() -> str:
    """Return the options that were given, but for where to write the numbers."""
    context = click.get_current_context()
    text = ""
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if option.opts[0].startswith("--") and source is ParameterSource.COMMANDLINE:
            value = context.params[name]
            values = value if isinstance(value, tuple) else (value,)
            text += "".join(f" {option.opts[0]} {each}" for each in values if name != "path")
    return text


if __name__ == "__main__":
    main()
