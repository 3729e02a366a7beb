"""Show results as a table and keep them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from harness import Metric
from rich.console import Console
from rich.table import Table

__all__ = ["show_memory", "show_metrics", "write"]


def show_metrics(out: Console, title: str, metrics: Sequence[Metric], base: str) -> None:
    """Print one row for each metric: the medians of all sides, and ours against `base`.

    `base` is the name of the side that ``hal`` is divided by.
    """
    sides = list(dict.fromkeys(side for metric in metrics for side in metric.medians))
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for side in sides:
        table.add_column(side, justify="right")
    table.add_column("unit")
    if base in sides:
        table.add_column(f"hal / {base}", justify="right")
    for metric in metrics:
        cells = [_cell(metric, side) for side in sides]
        ratio = []
        if base in sides:
            both = "hal" in metric.medians and base in metric.medians
            ratio = [f"{metric.medians['hal'] / metric.medians[base]:.2f}" if both else ""]
        table.add_row(metric.name, *cells, metric.unit, *ratio)
    out.print(table)


def show_memory(out: Console, record: Mapping[str, float]) -> None:
    """Print memory after the first thousand and after all submissions."""
    count = f"{record['count']:,.0f}".replace(",", " ")
    table = Table(title="memory over submissions (own process)", title_justify="left")
    for heading in ("what", "after 1000", f"after {count}", "unit"):
        table.add_column(heading, justify="left" if heading in {"what", "unit"} else "right")
    for name, label, unit, digits in (
        ("resident_mb", "resident", "MB", 1),
        ("traced_mb", "Python's, traced", "MB", 2),
        ("traced_peak_mb", "Python's, peak", "MB", 2),
        ("objects", "objects that the collector sees", "", 0),
    ):
        first, last = record[f"first_{name}"], record[f"last_{name}"]
        table.add_row(label, f"{first:.{digits}f}", f"{last:.{digits}f}", unit)
    out.print(table)


def write(
    path: Path,
    machine: Mapping[str, object],
    command: str,
    groups: Mapping[str, Sequence[Metric]],
    memory: Mapping[str, float] | None,
) -> None:
    """Write everything to a JSON file, and tables of the medians beside it; make its folder."""
    record = {
        "machine": dict(machine),
        "command": command,
        "groups": {
            name: [asdict(metric) for metric in metrics] for name, metrics in groups.items()
        },
        "memory": dict(memory) if memory is not None else None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [f"# {machine['device']}, {machine['date']}", "", f"`{command}`", ""]
    if "note" in machine:
        lines += [str(machine["note"]), ""]
    lines += ["The spread, the machine and the versions are in the JSON file.", ""]
    for name, metrics in groups.items():
        lines += [f"## {name}: medians", "", *_markdown(metrics, best=False), ""]
        lines += [f"## {name}: the best sample of each", "", *_markdown(metrics, best=True), ""]
        lines += [f"## {name}: the first, divided by each", "", *_ratios(metrics), ""]
    path.with_suffix(".md").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")


def _markdown(metrics: Sequence[Metric], *, best: bool) -> Iterator[str]:
    """Yield the lines of a table of medians, or of each side's best sample."""
    sides = list(dict.fromkeys(side for metric in metrics for side in metric.medians))
    yield f"| what | {' | '.join(sides)} | unit |"
    yield f"|---|{'---:|' * len(sides)}---|"
    for metric in metrics:
        values = metric.medians
        if best:
            values = metric.highs if metric.higher_is_better else metric.lows
        cells = (_number(values[side], values[side]) if side in values else "" for side in sides)
        yield f"| {metric.name} | {' | '.join(cells)} | {metric.unit} |"


def _ratios(metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield the lines of a table of the ratios of samples of one round."""
    sides = list(dict.fromkeys(side for metric in metrics for side in metric.ratios))
    yield f"| what | {' | '.join(sides)} |"
    yield f"|---|{'---:|' * len(sides)}"
    for metric in metrics:
        cells = (f"{metric.ratios[each]:.3f}" if each in metric.ratios else "" for each in sides)
        yield f"| {metric.name} | {' | '.join(cells)} |"


def _number(value: float, like: float) -> str:
    """Return a number with as many digits as suit another one: three or so."""
    return f"{value:.{3 if like < 1 else 2 if like < 100 else 1}f}"  # noqa: PLR2004


def _cell(metric: Metric, side: str) -> str:
    if side not in metric.medians:
        return ""
    value = metric.medians[side]
    low, high = _number(metric.lows[side], value), _number(metric.highs[side], value)
    return f"{_number(value, value)} [dim]({low}-{high})[/]"
