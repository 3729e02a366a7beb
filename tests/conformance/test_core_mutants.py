"""Each mutant of the table `core` is caught by the tests of the core that are named for it."""

import os
from pathlib import Path

import pytest
from child_processes import run_pytest
from mutants import ATTEMPTS, patched, table

TESTS = Path(__file__).parents[1] / "core"
CORE = table("core")


HASTE = {"HAL_TEST_LIMIT": "5"}
"""What a mutant never does is waited for less long."""


def run(patches, tests, haste=HASTE):
    """Run tests of the core on the core with patches; return how pytest ended, and what it said."""
    with patched(patches) as variables:
        done = run_pytest([TESTS / test for test in tests], os.environ | variables | haste)
    return done.returncode, done.stdout


@pytest.mark.parametrize("mutant", CORE, ids=lambda mutant: mutant.name)
def test_caught(mutant):
    """In one of a few attempts the tests fail, or the process dies of it; no test is missing."""
    for _ in range(ATTEMPTS):
        status, output = run(mutant.patches, mutant.tests)
        if status != 0:
            break
    assert status == 1 or status < 0, output


def test_the_true_core_passes():
    status, output = run((), sorted({test for mutant in CORE for test in mutant.tests}), {})
    assert status == 0, output
