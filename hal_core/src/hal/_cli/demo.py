"""The command ``hal demo``: the image pipeline on a picture of the user's."""

# No deferred annotations in this module: typer reads them, with their options.
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hal._cli.terminal import console
from hal.errors import NotFoundError

if TYPE_CHECKING:
    from hal.demo.run import Report


_LIBRARIES = {"PIL": "Pillow", "scipy": "scipy", "skimage": "scikit-image"}


def demo(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="PICTURE",
            help="Any picture that Pillow opens; by default a photograph of a retina that comes "
            "with scikit-image.",
            show_default=False,
        ),
    ] = None,
    *,
    device: Annotated[
        str, typer.Option(help="What to run on: a backend, such as cpu or cuda:1, or a UUID.")
    ] = "cpu",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the edges are written.")
    ] = Path("hal-demo.png"),
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the run's timeline is drawn; by default the output's name with -timeline.",
            show_default=False,
        ),
    ] = None,
    sigma: Annotated[
        float, typer.Option(help="Standard deviation of the blur, in pixels, 0.3 to 32.")
    ] = 2.0,
    tile: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=4096,
            help="Side of a tile in pixels; by default at most 36 tiles.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=64, help="Tiles in flight.")] = 3,
    passes: Annotated[
        int, typer.Option(min=1, max=10_000, help="Times the picture goes through when timed.")
    ] = 5,
) -> None:
    """Find the edges in a picture, tile by tile, on three queues at once.

    A Gaussian blur and Sobel's edge magnitude of the luminance: colour is turned to grey on the
    device (ITU-R BT.601). Tiles flow through the upload, compute and download queues, ordered by
    the bytes that they use. The result is checked against scipy; the exit status is 1 if it
    differs.
    """
    missing = [pip for name, pip in _LIBRARIES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise NotFoundError(
            f"the demo needs {', '.join(missing)}; "
            'install the extra, in a clone of hal: pip install "./hal_core[cli,demo]"'
        )
    from hal.demo.run import Settings, run  # noqa: PLC0415 - only after the check above

    report = run(
        Settings(
            source=source,
            device=device,
            output=output,
            timeline_output=timeline or output.with_name(f"{output.stem}-timeline.png"),
            sigma=sigma,
            tile_size=tile,
            slots=slots,
            passes=passes,
        )
    )
    _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: "Report") -> None:
    out = console()
    passes = "pass" if report.passes == 1 else "passes"
    timed = f"{report.passes} {passes} in {1e3 * report.seconds:.1f} ms"
    busy = ", ".join(f"{stage} {100 * part:.0f} %" for stage, part in report.overlap.busy.items())
    verdict = "[green]passed[/]" if report.passed else "[bold red]FAILED[/]"
    found = f"off by at most {report.error:.2g}"
    allowed = f"{'within' if report.passed else 'beyond'} the bound of {report.tolerance:.2g}"
    lines = (
        ("picture", f"{escape(report.name)}, {report.width} x {report.height} pixels"),
        ("device", escape(report.device)),
        ("tiles", f"{report.tiles} of {report.tile_size} pixels, {report.slots} in flight"),
        ("throughput", f"{report.megapixels_per_second:.1f} megapixels/s ({timed})"),
        ("queues busy", f"{busy}; two or more at once {100 * report.overlap.together:.0f} %"),
        ("check", f"{verdict}: {found}, {allowed} (against scipy in double precision)"),
        ("edges", escape(str(report.output))),
        ("timeline", escape(str(report.timeline_output))),
    )
    for label, text in lines:
        out.print(f"[dim]{label:<12}[/] {text}", soft_wrap=True)
