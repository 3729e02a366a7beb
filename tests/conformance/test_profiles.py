"""Profiles: strict both ways, and what a profile cannot hide."""

import pytest

from hal_conformance import Profile
from hal_conformance.profile import ProfileError

TRANSFERS = ["queues/test_transfers.py"]
NOTHING = "semaphores/test_waits.py::test_any_of_nothing_is_none_s6"
EMPTY = "from hal_conformance import Profile\nprofile = Profile()\n"

BREAK_WAIT_ANY = """
    import hal
    hal.wait_any = lambda *_: 7
"""


def reasons(report):
    return {test["id"]: test["reason"] for test in report["tests"]}


def chosen(report):
    """Return the statuses of the tests that every case here chooses with -k."""
    return {test["status"] for test in report["tests"] if test["id"].startswith(NOTHING)}


def run_chosen(installed, *tests):
    return installed.run("-k", "any_of_nothing", tests=tests or ["semaphores/test_waits.py"])


def test_without_a_profile(installed):
    done, report = run_chosen(installed)
    assert done.returncode == 0
    assert chosen(report) == {"passed"}
    assert report["verdict"] == "partial"  # a part of the suite proves a part
    assert not report["complete"]


def test_an_expected_failure_that_fails(installed):
    installed.profile(
        f"""
        from hal_conformance import Profile
        profile = Profile(expected_failures={{"{NOTHING}": "wait_any is not written yet"}})
        {BREAK_WAIT_ANY.strip()}
        """.replace("    hal.", "        hal.")
    )
    done, report = run_chosen(installed)
    assert done.returncode == 0, done.stdout
    assert chosen(report) == {"expected_failure"}
    assert report["verdict"] == "partial"
    assert "wait_any is not written yet" in set(reasons(report).values())
    assert report["profile"]["expected_failures"] == {NOTHING: "wait_any is not written yet"}


def test_an_expected_failure_that_passes_fails_the_run(installed):
    installed.profile(
        f"""
        from hal_conformance import Profile
        profile = Profile(expected_failures={{"{NOTHING}*": "long since repaired"}})
        """
    )
    done, report = run_chosen(installed)
    assert done.returncode == 1
    assert chosen(report) == {"failed"}
    assert report["verdict"] == "failed"
    (reason,) = {text for test, text in reasons(report).items() if test.startswith(NOTHING)}
    assert reason == "it passed, and the profile expects it to fail: long since repaired"


def test_a_failure_that_nobody_expects_fails_the_run(installed):
    installed.profile(EMPTY + "import hal\nhal.wait_any = lambda *_: 7\n")
    done, report = run_chosen(installed)
    assert done.returncode == 1
    assert chosen(report) == {"failed"}
    assert report["verdict"] == "failed"
    assert all("7" in reasons(report)[test] for test in reasons(report) if NOTHING in test)


@pytest.mark.parametrize("key", [NOTHING, f"{NOTHING}[[]0]", "semaphores/test_waits.py::*"])
def test_an_unsupported_test_is_not_run(installed, key):
    installed.profile(
        f"""
        from hal_conformance import Profile
        profile = Profile(unsupported={{"{key}": "the hardware counts to three"}})
        """
    )
    done, report = run_chosen(installed)
    assert done.returncode == 0, done.stdout
    assert "unsupported" in chosen(report)
    assert report["verdict"] == "partial"
    assert "the hardware counts to three" in reasons(report).values()


@pytest.mark.parametrize(
    ("listed", "key"),
    [("unsupported", "semaphores/test_waits.py::test_gone"), ("expected_failures", "nowhere/*")],
)
def test_a_key_that_matches_nothing_fails_the_run(installed, listed, key):
    installed.profile(
        f"""
        from hal_conformance import Profile
        profile = Profile({listed}={{"{key}": "a test that was renamed"}})
        """
    )
    done, report = run_chosen(installed, "")
    assert done.returncode == 1
    assert chosen(report) == {"passed"}
    assert report["verdict"] == "failed"
    (problem,) = report["problems"]
    assert key in problem
    assert key in done.stdout


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("profile = 7", "is a int, not a hal_conformance.Profile"),
        ("import nothing_of_this_name", "cannot be loaded"),
        (
            "from hal_conformance import Profile\nprofile = Profile(unsupported={'*': ''})",
            "with no reason",
        ),
    ],
    ids=["other object", "import error", "no reason"],
)
def test_a_broken_profile_runs_nothing(installed, source, text):
    installed.profile(source)
    done, report = run_chosen(installed)
    assert done.returncode == 4
    assert report is None
    assert text in done.stderr


def test_two_profiles_of_one_backend_run_nothing(installed):
    installed.profile(EMPTY)
    installed.profile(EMPTY)
    done, report = run_chosen(installed)
    assert done.returncode == 4
    assert report is None
    assert "both provide a profile" in done.stderr


def test_device_parameters_of_a_profile(installed):
    installed.profile(
        """
        from hal_conformance import Profile
        profile = Profile(parameters={"no_such_parameter": "1"})
        """
    )
    done, report = run_chosen(installed)
    assert done.returncode == 1
    assert report["verdict"] == "not_run"
    assert "no_such_parameter" in report["reason"]


def test_a_test_cannot_skip_itself(installed):
    installed.profile(
        EMPTY
        + """
import hal, pytest
hal.wait_any = lambda *_: pytest.skip("not today")
"""
    )
    done, report = run_chosen(installed)
    assert done.returncode == 1
    assert chosen(report) == {"failed"}
    assert any("must not skip itself" in reason for reason in reasons(report).values())


def test_a_failure_that_pytest_cannot_describe_fails_its_test_alone(installed):
    installed.profile(
        EMPTY
        + """
import hal, pytest
hal.wait_any = lambda *_: 7
describe = pytest.TestReport.from_item_and_call
def describe_what_passed(item, call):
    assert call.excinfo is None, "nothing can be said of this"
    return describe(item, call)
pytest.TestReport.from_item_and_call = describe_what_passed
"""
    )
    tests = [NOTHING, "semaphores/test_values.py"]
    done, report = installed.run(tests=tests)
    assert done.returncode == 1
    assert "INTERNALERROR" not in done.stdout
    assert chosen(report) == {"failed"}
    assert report["counts"]["passed"] > 3
    assert report["counts"]["not_run"] == 0


def test_what_a_test_leaves_behind_fails_it(installed):
    installed.profile(
        EMPTY
        + """
import hal
kept, upload = [], hal.Device.upload
hal.Device.upload = lambda self, array: kept.append(upload(self, array)) or kept[-1]
"""
    )
    done, report = installed.run("-k", "test_read_from_an_offset_q4 and 33", tests=TRANSFERS)
    assert done.returncode == 1
    failed = [test for test in report["tests"] if test["status"] == "failed"]
    assert failed
    assert all("left behind 1 allocations" in test["reason"] for test in failed)


def test_a_queue_left_open_fails_its_module(installed):
    installed.profile(
        EMPTY
        + """
import hal
kept, create = [], hal.Device.create_queue
def create_two(self, **options):
    kept.append(create(self))
    return create(self, **options)
hal.Device.create_queue = create_two
"""
    )
    done, report = installed.run("-k", "test_read_from_an_offset_q4 and 33", tests=TRANSFERS)
    assert done.returncode == 1
    assert any("left queues open" in test["reason"] for test in report["tests"])


def test_a_destructive_test_cannot_end_the_run(installed):
    installed.profile(
        EMPTY
        + """
import os, signal, sys, hal
if "--hal-child" in sys.argv:
    hal.Queue.close = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    test = "failure/test_lost.py::test_what_was_retired_before_stays_done_s5"
    done, report = installed.run(tests=[test])
    assert done.returncode == 1
    (result,) = report["tests"]
    assert result["status"] == "failed"
    assert "ended by signal 9" in result["reason"]


def test_globs_of_ids():
    profile = Profile(
        unsupported={"a/test_b.py::test_c": "all of its cases"},
        expected_failures={"a/test_b.py::test_d[1]": "one case", "x/*": "a folder"},
    )
    assert profile.reason_unsupported("a/test_b.py::test_c[7-x]") == "all of its cases"
    assert profile.reason_unsupported("a/test_b.py::test_cc") is None
    assert profile.reason_expected("a/test_b.py::test_d[1]") == "one case"
    assert profile.reason_expected("a/test_b.py::test_d[2]") is None
    assert profile.reason_expected("x/y/test_z.py::test_e[1]") == "a folder"
    assert profile.problems(["a/test_b.py::test_c[7]", "x/y"]) == (
        "the profile's expected failure 'a/test_b.py::test_d[1]' matches no test of the suite",
    )


@pytest.mark.parametrize("reason", ["", "  ", None, 3], ids=repr)
def test_every_key_has_a_reason(reason):
    with pytest.raises(ProfileError, match="say why"):
        Profile(expected_failures={"a/*": reason})
