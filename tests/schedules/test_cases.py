"""Run the true core through the cases: every schedule, or up to a bound, and seeded ones beyond."""

import os

import pytest
from schedlab.cases import random_program
from schedlab.catalogue import BY_HAND, find, names
from schedlab.explore import explore, search, shrink
from schedlab.faults import fault_case
from schedlab.program_case import ProgramCase

pytestmark = pytest.mark.timeout(7200)  # they count schedules, however long these take

DEEP = int(os.environ.get("HAL_SCHEDULES") or 0)
RUNS = DEEP or 250
"""Schedules of a case that is not covered whole; a machine that is slow runs as many."""
SEEDS = DEEP // 25 or 40
BOUND = None if DEEP else 1
RANDOM_PROGRAMS = 2000 if DEEP else 40
FAULT_SEEDS = 4000 if DEEP else 80
"""Seeds; about half of them make a program."""

_WHOLE = {
    "chain": ("two", "devices", "unordered"),
    "late": ("two", "unordered"),
    "released": ("two", "devices", "unordered"),
    "by host": ("one", "two", "unordered"),
    "host polls": ("one", "unordered"),
    "fail pending": ("one", "two", "unordered"),
    "fail or signal": ("one", "unordered"),
    "fail or produce": ("one", "two"),
    "two failures": ("one",),
    "refused": ("two", "domains", "unordered"),
    "close": ("one", "two", "unordered", "domains"),
    "close producer": ("two",),
    "close twice": ("one",),
    "poll": ("one", "unordered"),
    "two waiters": ("one", "two"),
    "same value": ("one", "two", "domains"),
    "two values": ("one", "two", "domains"),
    "op or host": ("one",),
    "overshoot": ("two",),
    "callback fails": ("one",),
    "any": ("one", "two"),
    "any fails": ("one",),
    "all": ("one", "two"),
    "backlog": ("tight",),
    "host call": ("two", "unordered"),
    "behind host call": ("unordered",),
    "handle": ("one", "unordered"),
    "handle pending": ("two",),
    "two signals": ("two",),
    "diamond": ("unordered",),
    "crossed": ("two", "devices"),
    "flush": ("one",),
}
"""Cases of two threads, three operations and two semaphores, by variant, that are to be covered
whole: every schedule, with any number of preemptions, equivalent ones cut off, in every run."""

WHOLE = frozenset(f"{name}/{variant}" for name, variants in _WHOLE.items() for variant in variants)
WHOLE_RUNS = max(DEEP, 1000)
"""Schedules after which a case of these is given up; the end of the test run says which were."""


def verify(report, case):
    """Fail with what replays a failing schedule."""
    if report.failure is not None:
        pytest.fail(f"{shrink(case, report.failure)}\n{report}", pytrace=False)


@pytest.mark.parametrize("name", names())
def test_every_schedule(name, note_partial):
    """All schedules of the cases in `WHOLE`; of others those with at most one preemption.

    Or the first `RUNS` of those, and some by seed, with any number. With any number everywhere,
    and so many schedules, where HAL_SCHEDULES is a number.
    """
    if name in WHOLE:
        case = find(name)
        report = explore(case, budget=WHOLE_RUNS)
        verify(report, case)
        if report.complete:
            return
        assert report.schedules + report.pruned == WHOLE_RUNS, str(report)
        note_partial(report)
    look(name)


def look(name):
    """Explore a case within the bound, and search it by seed."""
    case = find(name)
    report = explore(case, bound=BOUND, budget=RUNS)
    verify(report, case)
    assert report.complete or report.schedules + report.pruned == RUNS, str(report)
    found = search(find(name, track=False), range(SEEDS))
    verify(found, case)
    assert found.schedules == SEEDS, str(found)


def search_each(cases):
    """Search cases, of which there is one at least, by a few seeds."""
    ran = 0
    for case in cases:
        verify(search(case, range(8)), case)
        ran += 1
    assert ran


def test_the_cases_covered_whole_exist():
    """A case that was renamed does not fall out of the list unseen."""
    assert set(names()) >= WHOLE


@pytest.mark.parametrize("first", range(0, RANDOM_PROGRAMS, 10))
def test_random_programs(first):
    """Three threads, four operations, several queues, devices and domains, faults: by seed."""
    programs = map(random_program, range(first, first + 10))  # or None: it would wait for itself
    search_each(ProgramCase(each, track=False) for each in programs if each is not None)


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    """Hangs, abandoned work, finalisers, refusals, lost devices: with at most one preemption."""
    look(name)


@pytest.mark.parametrize("first", range(0, FAULT_SEEDS, 20))
def test_faults(first):
    """Random programs in which a call is refused, a device lost, or Ctrl-C comes: by seed."""
    search_each(filter(None, (fault_case(seed, track=False) for seed in range(first, first + 20))))
