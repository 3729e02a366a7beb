"""Each wrong copy of the core or of the reference backend is caught by the tests named for it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from mutants import MUTANTS, WORKERS, Patch, PatchError, find, run, run_mutant, table
from schedlab.planted import MUTANTS as PLANTED


@pytest.fixture(scope="module")
def outcomes(request):
    """Run what this session has chosen, two at a time; return what gives a mutant's outcome."""
    chosen = {
        item.callspec.params["mutant"].name: item.callspec.params["mutant"]
        for item in request.session.items
        if item.path == request.path and "mutant" in getattr(item, "callspec", Nothing).params
    }
    if hasattr(request.config, "workerinput"):  # others of pytest-xdist's processes run most
        yield run_mutant
        return
    pool = ThreadPoolExecutor(WORKERS)
    begun = {name: pool.submit(run_mutant, mutant) for name, mutant in chosen.items()}
    yield lambda mutant: begun[mutant.name].result()
    pool.shutdown(cancel_futures=True)


class Nothing:
    """Stand for the parameters of a test that has none."""

    params = ()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_caught(outcomes, mutant):
    """Every test that is named for a mutant fails, or the process dies of it."""
    outcome = outcomes(mutant)
    assert not outcome.missed(mutant.tests), f"{outcome.statuses}\n{outcome.output}"


def test_every_patch_applies():
    """Those of the schedules, too; most of what they are for runs in `make check` alone."""
    for mutant in (*MUTANTS, *table("core")):
        for patch in mutant.patches:
            patch.check()
    for bug in PLANTED:
        for patch in bug.patches:
            Patch(f"hal.{patch.module}", patch.old, patch.new).check()


def test_the_true_backend_passes():
    """The tests that catch mutants pass where nothing is patched."""
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    outcome = run((), tests, 400)
    assert not outcome.died, outcome.output
    assert set(outcome.statuses.values()) == {"passed"}, outcome.output
    known = set(outcome.statuses)
    assert not [test for test in tests if not any(name.startswith(test) for name in known)]


def test_a_harmless_mutant_is_missed():
    """A patch that changes nothing fails no test: it is the mistake that is found."""
    mutant = find("the first failure is replaced")
    same = tuple(Patch(patch.module, patch.old, patch.old) for patch in mutant.patches)
    outcome = run(same, mutant.tests)  # not in haste, in which a busy machine could fail a test
    assert outcome.statuses
    assert outcome.missed(mutant.tests) == list(mutant.tests)


@pytest.mark.parametrize("old", ["no such text", "import"])
def test_a_patch_that_does_not_apply_is_an_error(old):
    """A text that occurs never, or more than once, is told, and nothing is run."""
    with pytest.raises(PatchError, match="mend the mutant"):
        run((Patch("hal._engine.retiring", old, "pass"),), ["semaphores/test_values.py"])


@pytest.mark.parametrize("times", [1, 2])
def test_an_internal_error_of_pytest_is_no_mistake_found(tmp_path, times):
    """If pytest breaks off, the run is made once more; if it does so again, that is an error."""
    place = "        name = self._ids.get(report.nodeid)\n"
    breaks = (
        "        import pathlib\n"
        f"        for number in range({times}):\n"
        f"            path = pathlib.Path({str(tmp_path)!r}, str(number))\n"
        "            if not path.exists():\n"
        "                path.touch()\n"
        "                raise RuntimeError('by chance')\n"
    )
    patch = Patch("hal_conformance.session", place, breaks + place)
    tests = ["semaphores/test_values.py::test_default_value_is_zero_s1"]
    if times == 1:
        assert run((patch,), tests).statuses == {tests[0]: "passed"}
    else:
        with pytest.raises(RuntimeError, match="exited with 3"):
            run((patch,), tests)


def test_names_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 25
