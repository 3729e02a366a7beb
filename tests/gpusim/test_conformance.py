"""The conformance suite on gpusim, by either backend: in free mode, and stepped with some seeds."""

import importlib.util

import pytest
import suite_runs

SEEDS = {"cuda": 12, "hip": 6}
BINDINGS = {"cuda": "cuda", "hip": "rocm"}
PLAN = suite_runs.programs("cpu", "cuda", "hip")
PLAN += [run for backend, seeds in SEEDS.items() for run in suite_runs.plan(backend, seeds)]


def lacking(run):
    """Return what a run needs and is not installed."""
    needed = [BINDINGS[run.backend]] if run.backend in BINDINGS else []
    needed += [] if run.plain else ["hal._speedups"]
    return [name for name in needed if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def runs(request):
    """The runs that are asked for, under way; of pytest-xdist's processes none knows which."""
    is_shared = hasattr(request.config, "workerinput")
    items = [] if is_shared else request.session.items
    items = [item for item in items if item.path == request.path]
    asked = [item.callspec.params["run"] for item in items]
    made = suite_runs.Runs(run for run in asked if not lacking(run))
    yield made
    made.close()


@pytest.mark.timeout(3 * suite_runs.SECONDS)
@pytest.mark.parametrize("run", PLAN, ids=lambda run: f"{run.backend}, {run}")
def test_the_suite_on_gpusim(runs, run):
    if missing := lacking(run):
        pytest.skip(f"not installed: {', '.join(missing)}")
    suite_runs.check(run, runs.outcome(run))


@pytest.mark.timeout(2 * suite_runs.SECONDS)
@pytest.mark.parametrize("backend", BINDINGS)
def test_the_memory_area_while_threads_stop_q6(backend):
    """Other threads free, trim and close meanwhile, at other moments in each run."""
    run = suite_runs.Run(backend, "stream")
    if missing := lacking(run):
        pytest.skip(f"not installed: {', '.join(missing)}")
    outcome = suite_runs.perform(run, ["memory"], pause_us=4000)
    assert outcome.status == 0, suite_runs.worth(outcome.output)
