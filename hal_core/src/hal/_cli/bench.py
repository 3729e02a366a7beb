"""The command ``hal bench``: a short measurement of one device."""

# No deferred annotations in this module: typer reads them, with their options.
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hal
from hal._base import speedups
from hal._cli.measure import Row, measure
from hal._cli.terminal import console, progress, write_json


def bench(
    *,
    device: Annotated[
        str, typer.Option(help="What to measure: a backend, such as cpu or cuda:1, or a UUID.")
    ] = "cpu",
    seconds: Annotated[
        float, typer.Option(min=0.0, max=60.0, help="How long each row takes samples.")
    ] = 0.25,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON: every row, and the device.")
    ] = False,
) -> None:
    """Measure what submissions, semaphores and transfers cost on one device.

    Submissions are fills of 256 bytes. submit: the submitting thread alone. chain: each waits for
    the one before. round trip: submit, and wait on the host. host signal: from a signal that
    releases pending work to the end of a wait for it. A transfer's time ends when its bytes
    have arrived. Measure on an idle machine.
    """
    rows: list[Row] = []
    with hal.create_device(device) as opened, progress() as bar:
        info, name = opened.info, opened.name
        planned = list(measure(opened, seconds))
        task = bar.add_task("", total=len(planned))
        for title, take in planned:
            bar.update(task, description=f"[dim]{escape(name)}: {title}[/]")
            rows.append(take())
            bar.advance(task)
    if as_json:
        write_json(
            {
                "device": name,
                "name": info.name,
                "driver": info.driver,
                "hal": hal.__version__,
                "engine": speedups.engine(),
                "rows": [row._asdict() for row in rows],
            }
        )
        return
    out = console()
    out.print(f"[bold]{escape(name)}[/] {escape(info.name)}, {escape(info.driver)}", soft_wrap=True)
    out.print(f"engine: {escape(speedups.engine())}", soft_wrap=True)
    _show(out, rows)


def _show(out: Console, rows: list[Row]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", style="bold")
    for heading in ("median", "10 %", "90 %"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("samples", justify="right", style="dim")
    for row in rows:
        numbers = (f"{number:.2f}" for number in (row.median, row.low, row.high))
        table.add_row(row.name, *numbers, row.unit, str(row.samples))
    out.print(table)
