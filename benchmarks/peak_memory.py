"""Compare what allocators hold at the most, and what a temporary costs, over the same sequences.

    python benchmarks/peak_memory.py DEVICE [--steps N] [--seconds N] [--json FILE]

README.md says what the sequences are, and what each column means.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import machine
from allocator_sides import LIBRARIES, AllocatorSide, HalSide, RecordedSide
from harness import Metric, Row, measure
from rich.console import Console
from rich.table import Table
from temporaries import AFTER, ALLOCATE, FREE, SEQUENCES, TOUCH, Step, live_bytes, random_steps

import hal

__all__ = ["Case", "perform"]

QUEUES: Final = (1, 3)
_SMALL: Final = 256
"""Bytes that are touched where host time is measured: the device must keep up."""
_ALL: Final = 1 << 62
_TINY: Final = 1 << 40
"""By what sizes are divided for a pass that only warms up."""
_TENTHS: Final = 10
_MIB: Final = 1 << 20
_FAILURES: Final = (hal.HalError, RuntimeError, MemoryError)

_clock = time.perf_counter


@dataclass
class Case:
    """Hold what came out for one sequence.

    Attributes
    ----------
    sequence, queues, passes
        What was run, on how many queues, and how often.
    pairs
        Temporaries of a pass, the first one.
    ideal
        The most bytes that live at once, in the order of the program.
    peak
        By side: the most bytes that it held.
    taken
        By side: by how much the device's free memory went down meanwhile.
    live_peak
        By side of hal: `bytes_peak` of its statistics.
    pair, whole
        Microseconds of the submitting thread: for an allocation and its end, and for a pass
        with all its touches. None where nothing could be measured.
    failures
        By side: what it failed with.
    """

    sequence: str
    queues: int
    passes: int
    pairs: int = 0
    ideal: int = 0
    peak: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    live_peak: dict[str, int] = field(default_factory=dict)
    pair: Metric | None = None
    whole: Metric | None = None
    failures: dict[str, str] = field(default_factory=dict)


class Bench:
    """Make the sides, run the sequences on them, and look at the device meanwhile."""

    def __init__(self, device: hal.Device, spec: str, scale: int, out: Console) -> None:
        self._device = device
        self._spec = spec
        self._scale = scale
        self._out = out
        self._is_gpu = device.backend != "cpu"
        self._absent: set[str] = set()
        self._clock_cost = _clock_cost()

    @contextlib.contextmanager
    def sides(self, queues: int) -> Iterator[dict[str, AllocatorSide]]:
        """Make fresh sides, and close them; says once what there is not. The base comes first."""
        made: dict[str, AllocatorSide] = {}
        with contextlib.ExitStack() as stack:
            for name, make in self._makers(queues).items():
                try:
                    made[name] = make()
                    stack.callback(made[name].close)
                    perform(made[name], SEQUENCES["random"](0, queues, _TINY), _SMALL)
                    made[name].finish()
                except (ImportError, *_FAILURES) as error:
                    made.pop(name, None)
                    self._say_absent(name, error)
            yield made

    def _makers(self, queues: int) -> dict[str, Callable[[], AllocatorSide]]:
        makers: dict[str, Callable[[], AllocatorSide]] = {}
        if self._device.backend == "cuda":
            ordinal = int(self._device.name.partition(":")[2])
            for name, library in LIBRARIES.items():
                makers[name] = functools.partial(library, queues, ordinal)
        settings = {"hal": "false", "hal, async": "true"}
        if "async_allocations" not in self._device.features:
            del settings["hal, async"]
            self._say_absent("hal, async", "the device has no stream-ordered allocation")
        for name, setting in settings.items():
            make = functools.partial(HalSide, self._spec, queues, async_allocations=setting)
            makers[name] = make
        return makers

    def _say_absent(self, name: str, reason: object) -> None:
        if name not in self._absent:
            self._absent.add(name)
            self._out.print(f"no {name}: {' '.join(str(reason).split())}", markup=False)

    def run(self, sequence: str, queues: int, passes: int, rounds: int) -> Case:
        """Run a sequence on every side: first for its peak, then for its cost, in turn."""
        case = Case(sequence, queues, passes)
        every = [SEQUENCES[sequence](number, queues, self._scale) for number in range(passes)]
        case.pairs = sum(step.act == ALLOCATE for step in every[0])
        case.ideal = max(max(live_bytes(steps)) for steps in every)
        with self.sides(queues) as sides, contextlib.ExitStack() as stack:
            samples: dict[str, Callable[[], Mapping[str, float]]] = {}
            for name, side in sides.items():
                with self._watch(case, name, side.held) as look:
                    for steps in every:
                        live = live_bytes(steps)
                        looks = {live.index(max(live)), len(live) - 1}
                        perform(side, steps, _ALL, looks, look)
                    side.finish()
                    look(0)
                    case.peak[name] = max(case.peak[name], side.peak())
                    samples[name] = self._sample(side, every[0])
                if name not in case.failures and isinstance(side, HalSide):
                    case.live_peak[name] = side.device.statistics().bytes_peak
            if queues == 1:
                samples |= self._record(case, every, stack)
            if samples:
                for metric in measure(Row("", "us", samples), rounds):
                    setattr(case, metric.name.removeprefix(": "), metric)
        return case

    @contextlib.contextmanager
    def _watch(
        self, case: Case, name: str, held: Callable[[], int]
    ) -> Iterator[Callable[[int], None]]:
        """Note the peak of a side, or what it fails with, while the block runs."""
        before = self._free()
        case.peak[name] = 0

        def look(_: int) -> None:
            case.peak[name] = max(case.peak[name], held())
            if self._is_gpu:
                case.taken[name] = max(case.taken.get(name, 0), before - self._free())

        try:
            yield look
        except _FAILURES as error:
            case.failures[name] = f"{type(error).__name__}: {error}"
            del case.peak[name]

    def _free(self) -> int:
        return self._device.heaps[0].free or 0

    def _sample(
        self, side: AllocatorSide, steps: Sequence[Step]
    ) -> Callable[[], Mapping[str, float]]:
        pairs = sum(step.act == ALLOCATE for step in steps)

        def sample() -> Mapping[str, float]:
            start = _clock()
            spent = perform(side, steps, _SMALL)
            whole = _clock() - start
            side.finish()
            pair = spent / pairs - 2 * self._clock_cost
            return {"pair": 1e6 * pair, "whole": 1e6 * whole}

        return sample

    def _record(
        self, case: Case, every: Sequence[Sequence[Step]], stack: contextlib.ExitStack
    ) -> dict[str, Callable[[], Mapping[str, float]]]:
        """Run the passes as recordings, for their peak; return what measures their cost."""
        name = "hal, recorded"
        if not hasattr(hal.CommandBuffer, "alloca"):
            self._say_absent(name, "CommandBuffer has no alloca yet")
            return {}
        side = RecordedSide(self._spec)
        stack.callback(side.close)
        with self._watch(case, name, side.held) as look:
            for commands in [side.record(steps, _ALL) for steps in every]:
                side.execute(commands)
                look(0)
            side.finish()
            look(0)
            case.live_peak[name] = side.device.statistics().bytes_peak
            small = side.record(every[0], _SMALL)
        if name in case.failures:
            return {}

        def sample() -> Mapping[str, float]:
            start = _clock()
            side.execute(small)
            whole = _clock() - start
            side.finish()
            return {"whole": 1e6 * whole}

        return {name: sample}

    def soak(self, queues: int, seconds: float) -> list[dict[str, Any]]:
        """Run random sizes and lives for so long, every side in turn; print and return each tenth.

        All sides do the same. One is looked at when its part has ended, and the next one begins.
        """
        found: list[dict[str, Any]] = []
        living: dict[int, int] = {}
        pairs, ideal, start = 0, 0, _clock()
        with self.sides(queues) as sides:
            shares: dict[str, list[float]] = {name: [] for name in ("live", *sides)}
            for steps in random_steps(queues, self._scale):
                live = live_bytes(steps, living)
                ideal = max(ideal, *live)
                pairs += sum(step.act == ALLOCATE for step in steps)
                shares["live"].append(1 - live[-1] / ideal)
                for name, side in list(sides.items()):
                    try:
                        perform(side, steps, _ALL)
                        side.finish()
                    except _FAILURES as error:
                        self._out.print(f"{name} failed: {error}", markup=False)
                        del sides[name]
                    else:
                        shares[name].append(1 - live[-1] / side.held())
                if _clock() - start < (len(found) + 1) * seconds / _TENTHS:
                    continue
                tenth = {
                    "seconds": round(_clock() - start, 1),
                    "pairs": pairs,
                    "held": {"live": ideal} | {name: side.held() for name, side in sides.items()},
                    "fragmentation": {
                        name: statistics.mean(shares[name]) for name in ("live", *sides)
                    },
                }
                self._show_tenth(tenth)
                found.append(tenth)
                if len(found) == _TENTHS or not sides:
                    return found
                shares = {name: [] for name in shares}
        return found

    def _show_tenth(self, tenth: Mapping[str, Any]) -> None:
        each = "; ".join(
            f"{name} {100 * share:.1f} % of {tenth['held'][name] / _MIB:.1f}"
            for name, share in tenth["fragmentation"].items()
        )
        self._out.print(
            f"{tenth['seconds']:.0f} s, {tenth['pairs']:,} temporaries: {each}", markup=False
        )


def perform(
    side: AllocatorSide,
    steps: Sequence[Step],
    most: int,
    looks: Collection[int] = (),
    look: Callable[[int], None] | None = None,
) -> float:
    """Submit all steps; return the seconds that the allocations and their ends took.

    No more than `most` bytes of each temporary are touched. `look` is called after the steps
    whose numbers are in `looks`.
    """
    spent, here = 0.0, -1
    for index, (act, queue, tensor, size, source) in enumerate(steps):
        if queue != here:
            side.enter(queue)
            here = queue
        if act == TOUCH:
            side.touch(tensor, queue, min(size, most), source)
        elif act == AFTER:
            side.after(queue, tensor)
        elif act == FREE:
            start = _clock()
            side.free(tensor, queue)
            spent += _clock() - start
        else:
            start = _clock()
            side.allocate(tensor, queue, size)
            spent += _clock() - start
        if look is not None and index in looks:
            look(index)
    return spent


def _clock_cost() -> float:
    """Return the seconds that lie between two looks at the clock."""
    return statistics.median(-(_clock() - _clock()) for _ in range(1001))


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
    for name, failure in case.failures.items():
        out.print(f"{name}: {failure}", markup=False)


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
    with hal.create_device(device) as opened:
        facts = machine.facts(opened)
        out.print(f"{facts['device']}; {facts['processor']}; load {facts['load_at_start']}")
        bench = Bench(opened, device, scale, out)
        gc.freeze()  # what the libraries have loaded is not walked before each sample
        cases = []
        for name in names if steps else ():
            for number in queues:
                cases.append(bench.run(name, number, steps, rounds))
                show(out, cases[-1])
        soaks = {}
        for number in queues if seconds else ():
            out.print(f"random sizes, {_queues(number)}: the unused part of what is held, in MiB")
            soaks[number] = bench.soak(number, seconds)
    if path is not None:
        record = {
            "machine": facts,
            "command": f"python benchmarks/peak_memory.py {device}",
            "scale": scale,
            "cases": [asdict(case) for case in cases],
            "random": soaks,
        }
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
