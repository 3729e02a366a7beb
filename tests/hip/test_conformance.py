"""The conformance suite on gpusim: in free mode, and stepped with some seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("hal_conformance", reason="hal-conformance is not installed")

# The test run imports files one by one, not as a package.
GPUSIM = str(Path(__file__).parents[1] / "gpusim")
if GPUSIM not in sys.path:
    sys.path.insert(0, GPUSIM)

import suite_runs  # noqa: E402

SEEDS = 6
PLAN = suite_runs.plan("hip", SEEDS)


@pytest.fixture(scope="module")
def runs(request):
    """The runs that are asked for, under way."""
    items = [item for item in request.session.items if item.path == request.path]
    made = suite_runs.Runs(item.callspec.params["run"] for item in items)
    yield made
    made.close()


@pytest.mark.timeout(3 * suite_runs.SECONDS)
@pytest.mark.parametrize("run", PLAN, ids=str)
def test_the_suite_on_gpusim(runs, run):
    suite_runs.check(run, runs.outcome(run))
