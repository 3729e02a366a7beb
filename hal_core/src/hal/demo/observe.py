"""Observe a run from the host, through the public API, to draw its timeline.

The host polls the submissions: whether they were issued and
whether they have ended. So a time is the moment when the host
*saw* something, late by up to the gap between two looks, which is measured and
reported. The host cannot know when the device really began an operation. It
can know from when on nothing held the operation back: it was issued, all
that it waits for had ended and the operation before it in its queue had
retired. The bar is drawn from there to its retirement.
"""

from __future__ import annotations

import itertools
import os
import select
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import hal
from hal.errors import DeadlineExceededError

STAGES: Final = ("upload", "compute", "download")
"""The stages of a tile, each on the queue of this name, in order."""

_STAGE_OF: Final = dict(zip(("write", "execute", "read"), STAGES, strict=True))

_REST_SECONDS: Final = 20e-6
_MANY_PROCESSORS: Final = 8


class StageSubmission(NamedTuple):
    """A submission: its tile, its stage, its waits."""

    tile: int
    stage: str
    waits: Sequence[object]
    submission: hal.Submission


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """The times of one operation, in seconds from the run's start."""

    number: int  # of the step in its stage, from 0
    tile: int
    stage: str
    submitted: float  # the submitting call returned
    issued: float  # it was seen on the device's queue
    ready: float  # nothing held it back: issued, its waits reached, the one before it retired
    retired: float  # its submission was seen to have ended


@dataclass(frozen=True, slots=True)
class Overlap:
    """The parts of the run's time in which the queues were busy, from 0 to 1."""

    busy: dict[str, float]  # of each stage: one of its operations was ready or running
    together: float  # two or more queues were busy


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of one run."""

    operations: tuple[OperationTimes, ...]  # in the order of their submission
    seconds: float  # from the first submission to the last retirement
    resolution: float  # the median gap between two looks, in seconds
    worst_resolution: float  # the longest one
    stages: tuple[str, ...] = STAGES

    @property
    def lateness(self) -> str:
        """How late the times are, in words for a picture's caption."""
        late, latest = 1e6 * self.resolution, 1e6 * self.worst_resolution
        return (
            "Times are when the host saw it, by asking the submissions: late by "
            f"{late:.0f} microseconds in the median, {latest:.0f} at worst."
        )

    def overlap(self) -> Overlap:
        """Return how busy the queues were."""
        changes = sorted(
            (moment, change, operation.stage)
            for operation in self.operations
            for moment, change in ((operation.ready, 1), (operation.retired, -1))
        )
        running = dict.fromkeys(self.stages, 0)
        busy = dict.fromkeys(self.stages, 0.0)
        together = before = 0.0
        for moment, change, stage in changes:
            active = [name for name, count in running.items() if count]
            for name in active:
                busy[name] += moment - before
            if len(active) > 1:
                together += moment - before
            before = moment
            running[stage] += change
        whole = self.seconds or 1.0
        return Overlap({name: time_ / whole for name, time_ in busy.items()}, together / whole)


class Observer:
    """An observer that notes times while work is submitted, and until it has ended.

    A pipeline's ``trace`` is `traced`, which counts its tiles; for other
    work call `submitted`. Call `drained` after the last submission. `stages`
    are the names of the observed queues, by default a pipeline's. Operations
    of one queue end in order.
    """

    def __init__(self, stages: Sequence[str] = STAGES, *, timeout: float = 120.0) -> None:
        self._stages = tuple(stages)
        self._steps: dict[str, list[StageSubmission]] = {stage: [] for stage in self._stages}
        self._submitted: dict[str, list[float]] = {stage: [] for stage in self._stages}
        self._issued: dict[str, list[float]] = {stage: [] for stage in self._stages}
        self._retired: dict[str, list[float]] = {stage: [] for stage in self._stages}
        self._looks: list[float] = []
        self._timeout = timeout
        self._start = time.perf_counter()

    def traced(self, submission: hal.Submission, waits: Sequence[object]) -> None:
        """Note a pipeline's next submission, and look once at everything."""
        stage = _STAGE_OF[submission.kind]
        self.submitted(StageSubmission(len(self._steps[stage]), stage, waits, submission))

    def submitted(self, step: StageSubmission) -> None:
        """Note a submission, and look once at everything."""
        self._steps[step.stage].append(step)
        self._submitted[step.stage].append(time.perf_counter() - self._start)
        self._look()

    def drained(self) -> None:
        """Look until everything submitted has retired.

        Raises failures on the device, and `DeadlineExceededError` after
        the time limit.
        """
        deadline = time.perf_counter() + self._timeout
        while not self._look():
            _rest()
            if time.perf_counter() > deadline:
                raise DeadlineExceededError(f"the work has not finished after {self._timeout:g} s")

    def observation(self) -> Observation:
        """Return the observations, after the run has ended."""
        operations = []
        order = {stage: index for index, stage in enumerate(self._stages)}
        ended: dict[object, float] = {
            step.submission: retired
            for stage in self._stages
            for step, retired in zip(self._steps[stage], self._retired[stage], strict=True)
        }
        for stage in self._stages:
            retired = self._retired[stage]
            for index, step in enumerate(self._steps[stage]):
                # Submissions of an earlier run have ended.
                producers = [ended.get(wait, 0.0) for wait in step.waits]
                issued = min(self._issued[stage][index], retired[index])
                before = retired[index - 1] if index else 0.0
                ready = min(max([issued, before, *producers]), retired[index])
                operations.append(
                    OperationTimes(
                        number=index,
                        tile=step.tile,
                        stage=stage,
                        submitted=self._submitted[stage][index],
                        issued=issued,
                        ready=ready,
                        retired=retired[index],
                    )
                )
        operations.sort(key=lambda operation: (operation.number, order[operation.stage]))
        gaps = [later - earlier for earlier, later in itertools.pairwise(self._looks)] or [0.0]
        return Observation(
            operations=tuple(operations),
            seconds=max((operation.retired for operation in operations), default=0.0),
            resolution=statistics.median(gaps),
            worst_resolution=max(gaps),
            stages=self._stages,
        )

    def _look(self) -> bool:
        """Note changes; return whether everything submitted so far has retired."""
        # Against the flow: if a later stage has ended, the earlier ones then show it, too.
        ended = {stage: self._count_ended(stage) for stage in reversed(self._stages)}
        now = time.perf_counter() - self._start
        everything = True
        for stage in self._stages:
            steps, issued, retired = self._steps[stage], self._issued[stage], self._retired[stage]
            while len(issued) < len(steps) and steps[len(issued)].submission.state != "pending":
                issued.append(now)
            retired += [now] * (ended[stage] - len(retired))
            everything = everything and len(retired) == len(steps)
        self._looks.append(now)
        return everything

    def _count_ended(self, stage: str) -> int:
        """Return how many of a stage's steps have ended; they do so in order."""
        steps, count = self._steps[stage], len(self._retired[stage])
        while count < len(steps) and steps[count].submission.done:
            count += 1
        return count


def _rest() -> None:
    """Let other threads run between two looks."""
    if len(os.sched_getaffinity(0)) < _MANY_PROCESSORS:
        # Spinning would see more, but take a processor from a device that is the processors.
        time.sleep(_REST_SECONDS)
    else:
        # Releases only the interpreter lock. Even time.sleep(0) takes a timer's 50 microseconds.
        select.select((), (), (), 0)
