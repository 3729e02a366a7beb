"""Print the tables of the model as Markdown, and draw its plots: report.py [FOLDER [FOUND]]."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import model
import numpy as np

RANKS = (8, 64, 1024, 16384, 100_000)
JITTERED = 1024  # ranks of a ring, of which each step of each rank is simulated
MIB = 1 << 20
BUCKETS = (5, 25, 100, 250, 500, 1000, 2500)
TIMEOUTS = (10, 15, 30, 60, 120, 300, 600, 1800)
SHARES = 2.0 ** (np.arange(-6, 7) / 4)  # intervals between checkpoints, in Young's
LARGE = model.DEFAULT
SMALL = LARGE._replace(compute=LARGE.compute / 10)
FAST = LARGE._replace(save=5.0)
SEEDS = (1, 2, 3)
QUIET = LARGE._replace(stalls=0.0, spread=1e-12)
Lines = dict[str, tuple[Sequence[float], Sequence[float], str]]


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    lines = [f"\n{title}\n", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")


def draw(path: Path, title: str, x: str, y: str, lines: Lines, scale: str = "linear") -> None:
    """Draw lines, each of x, y and a style, over a logarithmic axis."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of the backend

    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=100)
    for label, (xs, ys, style) in lines.items():
        axes.plot(xs, ys, style, label=label)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale=scale)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def measured(folder: Path, path: Path) -> None:
    """Compare the model with what hardware/collectives.py has found on some GPUs."""
    found = json.loads(path.read_text(encoding="utf-8"))
    ranks = found["machine"]["ranks"]
    alone = [row for row in found["rates"] if row["kind"] == "all_reduce" and row["calls"] > 1]
    sizes = [row["bytes"] for row in alone]
    said = [1e6 * model.all_reduce(ranks, size, "ring") for size in sizes]
    rows = [
        (
            f"{size:,}",
            f"{row['sides']['hal']['us']:.1f}",
            f"{us:.1f}",
            f"{us / row['sides']['hal']['us']:.2f}",
        )
        for size, row, us in zip(sizes, alone, said, strict=True)
    ]
    table(f"{ranks} GPUs, all-reduces in a row, us", ("bytes", "measured", "model", "ratio"), rows)
    lines: Lines = {"model": (sizes, said, "-")}
    for side in alone[0]["sides"]:
        lines[side] = (sizes, [row["sides"][side]["us"] for row in alone], "o")
    draw(folder / "measured.png", f"All-reduce of {ranks} GPUs", "bytes", "us", lines, "log")
    rows = []
    for row in found["overlap"]:
        parts = row["sides"]
        constants = QUIET._replace(
            compute=parts["compute"]["us"] / 1e6, gradient=row["layers"] * row["gradient"]
        )
        taken = model.training_steps(
            ranks, row["gradient"], "ring", np.random.default_rng(1), 1, constants
        )
        us, real = 1e6 * float(taken.mean()), parts["hal"]["us"]
        rows.append(
            (
                f"{row['kernels']}, {row['backward']}",
                f"{parts['compute']['us']:.0f}",
                f"{parts['communication']['us']:.0f}",
                f"{real:.0f}",
                f"{us:.0f}",
                f"{us / real:.2f}",
            )
        )
    heads = ("kernels, backward pass", "compute", "communication", "step", "model", "ratio")
    table(f"A step of {ranks} GPUs, us", heads, rows)


def collectives(folder: Path) -> None:
    """Compare rings and trees."""
    rows = []
    for ranks in RANKS:
        row = [f"{ranks:,}"]
        for size in (4096, 256 * MIB):
            row += [f"{1e3 * model.all_reduce(ranks, size, kind):.3g}" for kind in ("ring", "tree")]
        rng = np.random.default_rng(1)
        slower = model.tree(ranks, 4096, 1, rng=rng) / model.tree(ranks, 4096, 1)
        ringed = "-"
        if ranks <= JITTERED:
            ringed = f"{model.ring(ranks, 4096, rng=rng) / model.ring(ranks, 4096):.2f}"
        rows.append([*row, ringed, f"{slower:.2f}"])
    heads = ("ranks", "4 KiB: ring", "tree", "256 MiB: ring", "tree", "jitter: ring", "tree")
    table("All-reduce, ms; jitter: 4 KiB take so many times longer", heads, rows)
    counts = [2**power for power in range(1, 18)]
    lines = {
        f"{kind}, {size}": (
            counts,
            [1e3 * model.all_reduce(n, bytes_, kind) for n in counts],
            color + dash,
        )
        for size, bytes_, dash in (("4 KiB", 4096, "--"), ("256 MiB", 256 * MIB, "-"))
        for kind, color in (("ring", "C0"), ("tree", "C1"))
    }
    draw(folder / "all_reduce.png", "All-reduce", "ranks", "ms", lines, "log")


def steps(folder: Path) -> None:
    """Compare the buckets of training steps."""

    def share(ranks: int, bucket: int, kind: str, constants: model.Constants) -> float:
        rng = np.random.default_rng(1)
        taken = model.training_steps(ranks, bucket * MIB, kind, rng, constants=constants)
        return float(100 * constants.compute / taken.mean())

    rows = []
    lines: Lines = {}
    for number, ranks in enumerate(RANKS):
        row = [f"{ranks:,}"]
        for constants in (LARGE, SMALL):
            row += [f"{share(ranks, 25, kind, constants):.1f}" for kind in ("ring", "tree")]
            found = {bucket: share(ranks, bucket, "best", constants) for bucket in BUCKETS}
            near = [bucket for bucket in BUCKETS if found[bucket] > max(found.values()) - 2]
            row.append(f"{max(found.values()):.1f} ({near[0]} to {near[-1]} MiB)")
        rows.append(row)
        ringed = [share(ranks, bucket, "ring", SMALL) for bucket in BUCKETS]
        lines[f"{ranks:,}, better"] = (BUCKETS, list(found.values()), f"C{number}-o")
        lines[f"{ranks:,}, ring"] = (BUCKETS, ringed, f"C{number}:")
    heads = ("ranks", "1.7 s: ring, 25 MiB", "tree, 25 MiB", "best", "0.17 s: ring", "tree", "best")
    table("Compute's share of a step, per cent", heads, rows)
    draw(folder / "step.png", "Steps of 0.17 s compute", "bucket, MiB", "compute, %", lines)


def useful(ranks: int, interval: float, timeout: float, constants: model.Constants) -> float:
    """Return the useful per cent of a run, the mean of some."""
    runs = [model.run(ranks, interval, timeout, seed, 200, constants) for seed in SEEDS]
    return float(100 * np.mean([each.useful for each in runs]))


def checkpoints(folder: Path) -> None:
    """Look for the best interval between checkpoints."""
    rows = []
    lines: Lines = {}
    for number, ranks in enumerate(RANKS):
        mean = model.time_between_failures(ranks)
        row = [f"{ranks:,}", f"{mean / 3600:,.1f} h"]
        for constants, style in ((LARGE, "-o"), (FAST, "--")):
            formulas = [rule(constants.save, mean) for rule in (model.young, model.daly)]
            found = [useful(ranks, formulas[0] * share, 120, constants) for share in SHARES]
            row += [
                f"{each / 60:.3g}" for each in (*formulas, formulas[0] * SHARES[np.argmax(found)])
            ]
            row.append(f"{max(found):.1f}, {found[list(SHARES).index(1)]:.1f}")
            lines[f"{ranks:,}, {constants.save:g} s"] = (SHARES, found, f"C{number}{style}")
        rows.append(row)
    one = ("Young", "Daly", "found", "useful: found, Young")
    table(
        "Minutes between checkpoints of 60 s; of 5 s; time-out 120 s",
        ("ranks", "failures", *one, *one),
        rows,
    )
    draw(folder / "checkpoint.png", "Checkpoints", "interval / Young's", "useful, %", lines)


def timeouts(folder: Path) -> None:
    """Compare time-outs of the group."""
    rows = []
    lines: Lines = {}
    for number, ranks in enumerate(RANKS):
        interval = model.young(LARGE.save, model.time_between_failures(ranks))
        found = [useful(ranks, interval, each, LARGE) for each in TIMEOUTS]
        rows.append([f"{ranks:,}", *(f"{each:.1f}" for each in found)])
        lines[f"{ranks:,}"] = (TIMEOUTS, [100 - each for each in found], f"C{number}-o")
    many = [model.run(JITTERED, 4600, each, 1, 3000) for each in TIMEOUTS]
    rows.append(["false breaks", *(f"{100 * each.false_breaks / 3000:.3g}" for each in many)])
    heads: tuple[str, ...] = ("ranks", *(f"{each} s" for each in TIMEOUTS))
    table("Useful per cent by time-out; false breaks in 100 failures", heads, rows)
    draw(folder / "timeout.png", "The group's time-out", "seconds", "lost, %", lines, "log")
    rows = []
    for ranks in RANKS:
        for constants in (LARGE, FAST):
            interval = model.young(constants.save, model.time_between_failures(ranks))
            found = model.run(ranks, interval, 120, 1, 1000, constants)[:5]
            rows.append(
                [f"{ranks:,}, {constants.save:g} s", *(f"{100 * each:.1f}" for each in found)]
            )
    heads = ("ranks, checkpoint", "useful", "checkpoints", "waiting", "restarts", "done again")
    table("Where the time goes, per cent; time-out 120 s", heads, rows)


if __name__ == "__main__":
    mpl.use("agg")
    where, *found = [Path(each) for each in sys.argv[1:]] or [Path(__file__).parent]
    for path in found:
        measured(where, path)
    for part in () if found else (collectives, steps, checkpoints, timeouts):
        part(where)
