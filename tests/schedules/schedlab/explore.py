"""Explore the schedules of a case: all of them, those with few preemptions, or some at random.

A case is anything with a ``name`` and a ``run(scheduler)``, which `Scheduler.run`
calls as the first logical thread. Every run starts from scratch and is decided
by its list of choices alone.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from dataclasses import dataclass

from schedlab import sync
from schedlab.choices import (
    NondeterminismError,
    PrunedError,
    ScheduleError,
    Strategy,
    decode,
    encode,
)
from schedlab.reduction import Reduction
from schedlab.scheduler import Scheduler


@dataclass
class Report:
    """Tell what an exploration covered."""

    case: str
    schedules: int = 0  # run to their end
    histories: int = 0  # how many of them differ in more than the order of independent steps
    pruned: int = 0  # cut off, since an equivalent history was explored
    steps: int = 0
    complete: bool = False  # every schedule (within the bound) was covered
    bound: int | None = None  # preemptions, None is any number
    seconds: float = 0.0
    failure: ScheduleError | None = None

    def __str__(self):
        what = "all" if self.complete else "some"
        bound = "" if self.bound is None else f" with at most {self.bound} preemptions"
        return (
            f"{self.case}: {what} schedules{bound}: {self.schedules} run "
            f"({self.histories} histories), {self.pruned} cut off, "
            f"{self.steps} steps, {self.seconds:.2f} s"
        )


class Follow(Strategy):
    """Take the given choices, then 0."""

    def __init__(self, prefix=()):
        self.prefix = prefix

    def pick(self, count, kind, scheduler):
        position = len(scheduler.choices)
        choice = self.prefix[position] if position < len(self.prefix) else 0
        return min(choice, count - 1)


class Depth(Strategy):
    """Follow a prefix, then 0, and stop where an equivalent history was explored.

    The next run's prefix is the last run's choices up to the last one that has another option.
    """

    def __init__(self, bound, *, prune):
        self.prefix, self.widths = [], []
        self.seen = {} if prune else None
        self.bound = bound

    def begin(self):
        """Begin a run; what it starts from is there."""

    def advance(self, scheduler):
        """Take the next prefix; return whether there is any."""
        self.prefix, self.widths = scheduler.choices, scheduler.widths
        while self.prefix and self.prefix[-1] + 1 >= self.widths[-1]:
            self.prefix.pop()
            self.widths.pop()
        if self.prefix:
            self.prefix[-1] += 1
        return bool(self.prefix)

    def may_preempt(self, scheduler):
        return self.bound is None or scheduler.preemptions < self.bound

    def pick(self, count, kind, scheduler):
        position = len(scheduler.choices)
        if position < len(self.prefix):
            if self.widths[position] != count:
                message = (
                    f"choice {position} had {self.widths[position]} options and has {count} now "
                    f"after {encode(scheduler.choices)!r}"
                )
                raise NondeterminismError(message)
            return self.prefix[position]
        return None if self.is_known(scheduler) else 0

    def is_known(self, scheduler):
        """Return whether what follows from here was explored; notes that it is now."""
        seen = self.seen
        if seen is None or len(scheduler.choices) < len(self.prefix):
            return False
        bounded = self.bound is not None
        print_ = scheduler.fingerprint(with_current=bounded)
        used = scheduler.preemptions if bounded else 0
        before = seen.get(print_)
        if before is not None and before <= used:
            return True
        seen[print_] = used
        return False


class Random(Strategy):
    """Choose by a seed; each seed has its own taste for preemption and slow devices."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.preempt = self.random.choice((0.02, 0.1, 0.3, 0.6))
        self.slow = self.random.choice((0.1, 0.4, 0.8))
        self.line = self.random.choice((0.0, 0.01, 0.05))
        self.race = self.random.choice((0.05, 0.2))
        # Now and then one thread is held back for long, which uniform choices hardly do.
        self.victim = self.random.choice((None, None, 1, 2, 3))
        self.until = self.random.randrange(5, 60)

    def pick(self, count, kind, scheduler):
        r = self.random
        if kind == "data":
            return r.randrange(1, count) if r.random() < self.slow else 0
        if kind == "line":
            return r.randrange(1, count) if r.random() < self.line else 0
        if kind == "race":
            return r.randrange(1, count) if r.random() < self.race else 0
        if scheduler.current.number == self.victim and scheduler.steps < self.until:
            return r.randrange(count)
        return r.randrange(1, count) if r.random() < self.preempt else 0


COLLECT_EVERY = 200
"""Runs between two collections: the collector never runs inside one, which would be by chance."""


HANG_SECONDS = 2.0
"""Processor time that a run may take from one switch point to the next."""


@contextlib.contextmanager
def _supervised():
    """Keep the collector out of the runs, and end one that loops without a switch point."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    last = [None, 0]

    def tick(number, frame):
        s = sync.ACTIVE
        now = [s, s.steps if s is not None else 0]
        if s is not None and now == last:
            s.fail("hang", f"no switch point for {HANG_SECONDS:g} s\n{s.stacks()}")
        last[:] = now

    here = threading.current_thread() is threading.main_thread()
    if here:
        old = signal.signal(signal.SIGVTALRM, tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS, HANG_SECONDS)
    try:
        yield
    finally:
        if here:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, old)
        gc.unfreeze()
        if enabled:
            gc.enable()


def _run(case, scheduler):
    """Run one schedule; a failure says of which case and choices it is."""
    try:
        scheduler.run(lambda: case.run(scheduler))
    except ScheduleError as failure:
        failure.case = case.name
        failure.choices = list(scheduler.choices)
        raise


@_supervised()
def run_once(case, strategy, **settings):
    """Run one schedule; return the scheduler, with what it did."""
    scheduler = Scheduler(strategy, **settings)
    _run(case, scheduler)
    return scheduler


def explore(case, *, bound=None, prune=True, **settings):
    """Run every schedule of `case`, depth first; stop at the first failure.

    Parameters
    ----------
    bound
        Most preemptions of one schedule; None is any number.
    budget
        Most runs, after which `Report.complete` is False.
    prune
        Whether to cut off what is equivalent to a history that was explored:
        one in which the same accesses to locks, doorbells, shared attributes
        and the device happened in the same order wherever the order matters.
    """
    return _cover(case, Depth(bound, prune=prune), bound=bound, track=prune, **settings)


def reduce(case, **settings):
    """Run one schedule of each class of equivalent ones; stop at the first failure.

    `budget` as `explore` has it. `Report.pruned` counts runs that turned out to be equivalent
    to an earlier one.
    """
    return _cover(case, Reduction(), **settings)


@_supervised()
def _cover(case, strategy, *, bound=None, budget=None, **settings):
    """Run schedules until the strategy has no other; with `track`, count the histories."""
    report = Report(case.name, bound=bound)
    ends = set()
    start = time.perf_counter()
    while True:
        strategy.begin()
        scheduler = Scheduler(strategy, **settings)
        try:
            _run(case, scheduler)
            report.schedules += 1
            if settings.get("track"):
                ends.add(scheduler.fingerprint(with_current=False))
        except PrunedError:
            report.pruned += 1
        except ScheduleError as failure:
            report.failure = failure
            break
        if (report.schedules + report.pruned) % COLLECT_EVERY == 0:
            gc.collect()
        report.steps += scheduler.steps
        if not strategy.advance(scheduler):
            report.complete = True
            break
        if budget is not None and report.schedules + report.pruned >= budget:
            break
    report.histories = len(ends) or report.schedules
    report.seconds = time.perf_counter() - start
    return report


def deepen(case, *, bounds=(0, 1, 2, None), budget=None, **settings):
    """Explore with ever more preemptions; return the report of the last bound begun."""
    start = time.perf_counter()
    report = None
    total = 0
    for bound in bounds:
        runs = None if budget is None else budget - total
        if runs is not None and runs <= 0:
            break
        new = explore(case, bound=bound, budget=runs, **settings)
        total += new.schedules + new.pruned
        if report is None or new.complete or new.failure or not report.complete:
            report = new
        if new.failure:
            break
    report.seconds = time.perf_counter() - start
    return report


@_supervised()
def search(case, seeds, **settings):
    """Run `case` once per seed; stop at the first failure."""
    report = Report(case.name)
    start = time.perf_counter()
    for seed in seeds:
        scheduler = Scheduler(Random(seed), **settings)
        try:
            _run(case, scheduler)
        except ScheduleError as failure:
            failure.seed = seed
            report.failure = failure
            break
        finally:
            report.schedules += 1
            report.steps += scheduler.steps
        if report.schedules % COLLECT_EVERY == 0:
            gc.collect()
    report.seconds = time.perf_counter() - start
    return report


def replay(case, text, *, trace=True, **settings):
    """Run the schedule that `text` names; return the scheduler or raise its failure."""
    return run_once(case, Follow(decode(text)), trace=trace, **settings)


def shrink(case, failure, *, runs=300, **settings):
    """Return a failure of the same kind with fewer and smaller choices, with its trace."""
    best = list(failure.choices)
    kind = failure.kind

    def fails(choices):
        nonlocal runs
        runs -= 1
        try:
            run_once(case, Follow(choices), **settings)
        except ScheduleError as error:
            return error.kind == kind
        return False

    def trim(choices):
        while choices and choices[-1] == 0:
            choices.pop()
        return choices

    trim(best)
    size = max(1, len(best) // 2)
    while size and runs > 0:
        start = 0
        while start < len(best) and runs > 0:
            if any(best[start : start + size]):
                trial = best[:start] + [0] * len(best[start : start + size]) + best[start + size :]
                if fails(trim(trial)):
                    best = trial
            start += size
        size //= 2
    try:
        run_once(case, Follow(best), trace=True, **settings)
    except ScheduleError as error:
        error.choices = best
        return error
    return failure


def check(report, case, **settings):
    """Raise the report's failure, made small and with its trace."""
    if report.failure is not None:
        raise shrink(case, report.failure, **settings)
    return report
