"""Measure: interleaved rounds, medians, records.

A *row* is one thing that is measured, by one or two *sides*. In each round
every side takes one sample, and which side goes first changes from round to
round, so that both see the same machine, warm or busy as it is. What counts is
the median of the samples.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Metric", "Row", "Sample", "measure", "with_collector"]

Sample = Callable[[], Mapping[str, float]]
"""Do the work once; return each metric's value, by name."""

_SETTLE_SECONDS = 0.005
"""Rest before each sample: worker threads of the other side stop spinning meanwhile."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured.

    Attributes
    ----------
    name
        Short, unique, the same in every version: results are compared by it.
    unit
        Of every metric in it.
    sides
        What takes the samples, by the side's name, in the order of the columns.
    higher_is_better
        True for rates.
    """

    name: str
    unit: str
    sides: Mapping[str, Sample]
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """Hold what came out for one metric of a row.

    Attributes
    ----------
    name
        The row's name, with the metric's after a colon if the row has several.
    unit, higher_is_better
        As in the row.
    medians, lows, highs
        By side: the median, least and greatest sample.
    ratios
        By side but for the first: the median of the first side's sample divided by
        this side's of the same round, in which the machine was as fast for both.
    rounds
        How many samples each side took.
    """

    name: str
    unit: str
    rounds: int
    higher_is_better: bool = False
    medians: dict[str, float] = field(default_factory=dict)
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)


def measure(row: Row, rounds: int) -> list[Metric]:
    """Take `rounds` samples of every side, each after one that does not count.

    The others, the collector and the sleep have emptied its caches and slowed the
    processor down: what is compared are the sides while they work, not their starts.
    """
    sides = list(row.sides.items())
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for side, sample in _rotated(sides, number):
            gc.collect()
            time.sleep(_SETTLE_SECONDS)
            gc.disable()  # as `timeit` does; `with_collector` samples what it adds
            try:
                sample()
                sampled = sample()
            finally:
                gc.enable()
            for name, value in sampled.items():
                values.setdefault(name, {}).setdefault(side, []).append(value)
    metrics = []
    for name, by_side in values.items():
        metric = Metric(
            f"{row.name}: {name}" if name else row.name, row.unit, rounds, row.higher_is_better
        )
        for side, samples in by_side.items():
            metric.medians[side] = statistics.median(samples)
            metric.lows[side] = min(samples)
            metric.highs[side] = max(samples)
            first = next(iter(by_side))
            if side != first:
                pairs = zip(by_side[first], samples, strict=True)
                metric.ratios[side] = statistics.median(one / other for one, other in pairs)
        metrics.append(metric)
    return metrics


def with_collector(sample: Sample) -> Sample:
    """Return a sample that is taken with Python's garbage collector on."""

    def collected() -> Mapping[str, float]:
        gc.enable()
        return sample()

    return collected


def _rotated(sides: Sequence[tuple[str, Sample]], number: int) -> Sequence[tuple[str, Sample]]:
    start = number % len(sides)
    return [*sides[start:], *sides[:start]]
