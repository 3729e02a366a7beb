"""The command ``hal devices``: the installed backends and the available devices."""

# No deferred annotations in this module: typer reads them, with their options.
import dataclasses
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import hal
from hal._cli.terminal import console, write_json

_STATE_STYLES = {"available": "green", "unavailable": "yellow", "broken": "red"}


def devices(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON: everything that is known.")
    ] = False,
) -> None:
    """List the installed backends with their state, and every device that can be opened.

    A backend that is broken or has no device here is listed with the reason; the exit status is 0
    all the same.
    """
    backends = hal.backends(probe=True)
    found = hal.devices()
    if as_json:
        record = {
            "backends": [backend._asdict() for backend in backends],
            "devices": [
                {
                    "spec": device.spec,
                    "backend": device.backend,
                    **dataclasses.asdict(device.info),
                    "properties": dict(device.info.properties),
                }
                for device in found
            ],
        }
        write_json(record)
        return
    out = console()
    _show_backends(out, backends)
    if found:
        _show_devices(out, found)
    else:
        out.print("No device.")


def _show_backends(out: Console, backends: tuple[hal.BackendStatus, ...]) -> None:
    if not backends:
        out.print("No backend is installed; pip install ./hal_cpu, in a clone of hal, brings one.")
        return
    width = max(len(backend.name) for backend in backends)
    for backend in backends:
        style = _STATE_STYLES.get(backend.state, "")
        state = f"[{style}]{backend.state}[/]" if style else backend.state
        source = escape(f"{backend.distribution} {backend.version}".strip())
        name = f"[bold]{escape(backend.name)}[/]{' ' * (width - len(backend.name))}"
        out.print(f"{name}  {state}{f', {source}' if source else ''}", soft_wrap=True)
        why = " ".join((backend.reason or backend.summary).split())
        out.print(f"{' ' * width}  {escape(why)}", soft_wrap=True)
    out.print()


def _show_devices(out: Console, found: tuple[hal.DeviceDescription, ...]) -> None:
    width = max(len(device.spec) for device in found)
    for device in found:
        info = device.info
        memory = f"{info.total_memory / 2**30:.1f} GiB"
        told = f"{info.name}, {info.architecture}, {info.compute_units} units, {memory}"
        name = f"[bold]{device.spec}[/]{' ' * (width - len(device.spec))}"
        out.print(f"{name}  {escape(told)}", soft_wrap=True)
        for label, text in (("driver", info.driver), ("UUID", info.uuid)):
            out.print(f"{' ' * width}  [dim]{label:<6}[/] {escape(text)}", soft_wrap=True)
