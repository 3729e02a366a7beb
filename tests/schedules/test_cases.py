"""Run the true core through the cases: every schedule up to a bound, and seeded ones beyond."""

import os

import pytest
from schedlab.cases import random_program
from schedlab.catalogue import find, names
from schedlab.explore import deepen, explore, search, shrink
from schedlab.world import ProgramCase

DEEP = os.environ.get("HAL_SCHEDULES") == "deep"
SECONDS = 600.0 if DEEP else 8.0
BOUND = None if DEEP else 1
RANDOM_PROGRAMS = 2000 if DEEP else 40


def verify(report, case):
    """Fail with what replays a failing schedule."""
    if report.failure is not None:
        pytest.fail(f"{shrink(case, report.failure)}\n{report}", pytrace=False)


@pytest.mark.parametrize("name", names())
def test_every_schedule(name):
    """All schedules with at most one preemption (with any number where HAL_SCHEDULES=deep)."""
    case = find(name)
    report = explore(case, bound=BOUND, seconds=SECONDS)
    verify(report, case)
    assert report.schedules > 0
    if not DEEP:
        # The time is a limit for a loaded machine, not the measure of what is covered.
        assert report.complete or report.schedules > 50, str(report)


@pytest.mark.parametrize("first", range(0, RANDOM_PROGRAMS, 10))
def test_random_programs(first):
    """Three threads, four operations, several queues, devices and domains, faults: by seed."""
    ran = 0
    for seed in range(first, first + 10):
        program = random_program(seed)
        if program is not None:  # it would wait for itself
            case = ProgramCase(program, track=False)
            verify(search(case, range(8), seconds=SECONDS), case)
            ran += 1
    assert ran


def test_one_case_with_any_number_of_preemptions():
    """A case that is small enough is covered whole in every run of the tests."""
    case = find("fail or produce/one")
    report = deepen(case, seconds=120.0)
    verify(report, case)
    assert report.complete
    assert report.bound is None
