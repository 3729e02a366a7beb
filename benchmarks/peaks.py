"""Run the sequences of temporaries on every allocator, and keep what each held and took."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from allocator_sides import LIBRARIES, AllocatorSide, HalSide, RecordedSide
from gate import Gate
from harness import Metric, Row, measure
from rich.console import Console
from temporaries import AFTER, ALLOCATE, FREE, SEQUENCES, TOUCH, Step, live_bytes, random_steps

import hal

__all__ = ["Bench", "Case", "perform"]

_SMALL: Final = 256
"""Bytes that are touched where host time is measured: the device must keep up."""
_ALL: Final = 1 << 62
_TINY: Final = 1 << 40
"""By what sizes are divided for a pass that only warms up."""
_TENTHS: Final = 10
_BEHIND: Final = 100
"""Steps that the device stays behind the host, and twice as many at the most."""
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
    forced
        How often the device had to be let go, since the host waited for it.
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
    forced: int = 0


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
        self._gate = self._make_gate()

    def _make_gate(self) -> Gate | None:
        if self._device.backend != "cuda":
            return None
        try:
            return Gate(self._ordinal)
        except (ImportError, RuntimeError) as error:
            self._say_absent("gate: the device may keep up with the host", error)
            return None

    @property
    def _ordinal(self) -> int:
        return int(self._device.name.partition(":")[2])

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
            for name, library in LIBRARIES.items():
                makers[name] = functools.partial(library, queues, self._ordinal)
        settings: dict[str, dict[str, str]] = {"hal": {}}
        if "async_allocations" in self._device.features:
            settings["hal, own"] = {"async_allocations": "false"}
        else:
            self._say_absent("hal, own", "it is the default: the driver has no stream-ordered pool")
        for name, setting in settings.items():
            makers[name] = functools.partial(HalSide, self._spec, queues, **setting)
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
                        self._perform_behind(side, steps, looks, look)
                    self._finish(side)
                    look()
                    case.peak[name] = max(case.peak[name], side.peak())
                    samples[name] = self._sample(side, every[0])
                if name not in case.failures and isinstance(side, HalSide):
                    case.live_peak[name] = side.device.statistics().bytes_peak
                    side.renew_queues()  # the gate has asked for their streams
            if queues == 1:
                samples |= self._record(case, every, stack)
            case.forced = self._take_forced()
            if samples:
                for metric in measure(Row("", "us", samples), rounds):
                    setattr(case, metric.name.removeprefix(": "), metric)
        return case

    @contextlib.contextmanager
    def _watch(
        self, case: Case, name: str, held: Callable[[], int]
    ) -> Iterator[Callable[[], None]]:
        """Note the peak of a side, or what it fails with, while the block runs."""
        before = self._free()
        case.peak[name] = 0

        def look() -> None:
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
        side = RecordedSide(self._spec)
        stack.callback(side.close)
        with self._watch(case, name, side.held) as look:
            for commands in [side.record(steps, _ALL) for steps in every]:
                if self._gate is not None:
                    self._gate.step(side.streams())
                side.execute(commands)
                look()
            self._finish(side)
            look()
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

    def soak(
        self, queues: int, seconds: float, show: Callable[[Mapping[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """Run random sizes and lives for so long, every side in turn; show and return each tenth.

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
                        self._perform_behind(side, steps)
                        self._finish(side)
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
                    "forced": self._take_forced(),
                    "held": {"live": ideal} | {name: side.held() for name, side in sides.items()},
                    "fragmentation": {
                        name: statistics.mean(shares[name]) for name in ("live", *sides)
                    },
                }
                show(tenth)
                found.append(tenth)
                if len(found) == _TENTHS or not sides:
                    return found
                shares = {name: [] for name in shares}
        return found

    def _perform_behind(
        self,
        side: AllocatorSide,
        steps: Sequence[Step],
        looks: Collection[int] = (),
        look: Callable[[], None] | None = None,
    ) -> None:
        """Perform all steps, the device being behind; calls `look` after those of `looks`."""
        gate = self._gate
        streams = side.streams() if gate is not None else ()

        def pause(index: int) -> None:
            if look is not None and index in looks:
                look()
            if gate is not None and not index % _BEHIND:
                gate.step(streams)

        perform(side, steps, _ALL, pause)

    def _finish(self, side: AllocatorSide | RecordedSide) -> None:
        if self._gate is not None:
            self._gate.open()
        side.finish()

    def _take_forced(self) -> int:
        if self._gate is None:
            return 0
        forced, self._gate.forced = self._gate.forced, 0
        return forced

    def close(self) -> None:
        """End what was begun."""
        if self._gate is not None:
            self._gate.close()


def perform(
    side: AllocatorSide,
    steps: Sequence[Step],
    most: int,
    pause: Callable[[int], None] | None = None,
) -> float:
    """Submit all steps; return the seconds that the allocations and their ends took.

    No more than `most` bytes of each temporary are touched. `pause` is called after each step,
    with its number.
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
        if pause is not None:
            pause(index)
    return spent


def _clock_cost() -> float:
    """Return the seconds that lie between two looks at the clock."""
    return statistics.median(-(_clock() - _clock()) for _ in range(1001))
