"""The suite itself: what it says of the backends here, and that it knows none of them."""

import ast
import importlib.metadata
import importlib.util
import re
import tomllib

import pytest
from conformance_harness import ROOT, SUITE, check_report, statuses

from hal_conformance import runner
from hal_conformance.child import environment
from hal_conformance.report import markdown, scrub

RULE = re.compile(r"_([scqmi]\d+)$")
EXTENSION = "hal._speedups"
WITH_FILES = "executables/test_executables.py::test_headers_are_found_c5"
ONE = "semaphores/test_values.py::test_default_value_is_zero_s1"


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Run all of the suite on the reference backend; return the report, its text and the events.

    With the C extension, where it is built.
    """
    path = tmp_path_factory.mktemp("report") / "folder" / "cpu.json"
    events = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAL_SPEEDUPS", "require" if importlib.util.find_spec(EXTENSION) else "0")
        report = runner.run("cpu", report=path, on_event=events.append)
    return report, path.with_suffix(".md").read_text(), events


def check_conformant(report):
    bad = [test for test in report["tests"] if test["status"] not in {"passed", "unsupported"}]
    assert not bad
    assert report["problems"] == []
    assert report["verdict"] == "conformant"
    assert report["counts"]["passed"] > 400


def test_the_reference_backend_is_conformant(on_cpu):
    check_conformant(on_cpu[0])


def test_the_plain_engine_is_conformant(monkeypatch):
    if not importlib.util.find_spec(EXTENSION):
        pytest.skip("the C extension is not built: the test above runs the plain engine")
    monkeypatch.setenv("HAL_SPEEDUPS", "0")
    check_conformant(runner.run("cpu"))


def test_the_report_has_its_form(on_cpu):
    report, text, _ = on_cpu
    check_report(report)
    assert report["backend"] == "cpu"
    assert report["device"]["name"]
    assert report["versions"]["hal-core"] == importlib.metadata.version("hal-core")
    assert "compile" in report["features"]["supported"]
    assert not set(report["features"]["supported"]) & set(report["features"]["unsupported"])
    assert text == markdown(report)
    assert text.startswith("# Conformance of cpu: conformant\n")
    assert report["command"] in text
    assert f"| all | {report['counts']['passed']} |" in text


def test_the_run_tells_how_it_goes(on_cpu):
    report, _, events = on_cpu
    ids = [test["id"] for test in report["tests"]]
    assert sorted(events[0]["tests"]) == ids
    started = [event["started"] for event in events if "started" in event]
    ended = {event["ended"]: event["status"] for event in events if "ended" in event}
    assert sorted(started) == ids
    assert ended == {test["id"]: test["status"] for test in report["tests"]}
    assert events[-1] == {"report": report}


def test_a_process_of_the_suite_does_not_see_where_it_runs(monkeypatch):
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "1")
    assert not {"CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"} & set(environment())


def test_runs_at_once_share_no_folder(monkeypatch, tmp_path):
    """Each run cleans pytest's own folder for a user, which can fail another that does so."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    report = runner.run("cpu", tests=[WITH_FILES])
    assert report["counts"]["passed"] == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "hal-conformance"] == []


def test_ids_are_the_same_wherever_it_is_run(installed, tmp_path):
    _, here = installed.run(tests=[ONE])
    _, elsewhere = installed.run("--pyargs", tests=[ONE], cwd=tmp_path)
    assert statuses(here) == statuses(elsewhere) == {ONE: "passed"}


@pytest.mark.parametrize(
    ("backend", "variables"),
    [("no-such-backend", {}), ("cpu:77", {}), ("cpu", {"HAL_CPU_DEVICES": "none"})],
    ids=["unknown", "no such device", "unavailable"],
)
def test_an_unavailable_backend_is_not_run(installed, backend, variables):
    installed.variables = variables
    done, report = installed.run(backend=backend)
    assert done.returncode == 1
    assert report["verdict"] == "not_run"
    assert report["reason"]
    assert report["device"] is None
    assert report["counts"]["not_run"] == len(report["tests"]) > 400
    check_report(report)
    assert "not run" in markdown(report)


def test_a_backend_has_to_be_named(installed):
    done, report = installed.run(backend=None, tests=[ONE])
    assert done.returncode == 4
    assert report is None
    assert "--hal-backend" in done.stderr


def test_a_backend_without_kernels_is_gated_and_not_failed(installed):
    installed.path.append(str(ROOT / "tests" / "plugins" / "acme" / "src"))
    installed.announce("hal.backends", "acme", "hal_acme.plugin")
    done, report = installed.run(
        backend="acme", tests=["kernels", "devices/test_devices.py", "memory/test_buffers.py"]
    )
    assert done.returncode == 0, done.stdout
    assert "kernels" in report["features"]["unsupported"]
    states = statuses(report)
    assert {states[test] for test in states if test.startswith("kernels/")} == {"unsupported"}
    assert {states[test] for test in states if not test.startswith("kernels/")} == {"passed"}


def test_the_death_of_the_suites_process_is_reported(installed, monkeypatch):
    installed.profile(
        """
        import os, signal, hal
        from hal_conformance import Profile
        profile = Profile()
        hal.wait_any = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    monkeypatch.setattr(runner, "environment", installed.environment)
    events = []
    report = runner.run("cpu", tests=["semaphores/test_waits.py"], on_event=events.append)
    check_report(report)
    assert report["verdict"] == "failed"
    (problem,) = report["problems"]
    (dead,) = [test for test in report["tests"] if test["status"] == "failed"]
    assert dead["id"] in problem
    assert "signal 9" in dead["reason"]
    assert report["counts"]["not_run"] > 10
    assert report["counts"]["passed"] > 3


def test_arguments_that_pytest_refuses_are_an_error():
    with pytest.raises(ValueError, match="no_such_folder"):
        runner.run("cpu", tests=["no_such_folder"])


def test_the_suite_names_no_backend():
    words = re.compile(
        r"(?<![a-z])(cpu|cuda|hip|rocm|nvidia|amd|acme|vulkan|metal)(?![a-z])", re.IGNORECASE
    )
    dialect = re.compile(r"#include <[\w/]+\.h>|\b__hip_bfloat16\b")  # names of every backend's
    found = [
        f"{path.relative_to(SUITE)}:{number}: {line.strip()}"
        for path in sorted(SUITE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(dialect.sub("", line))
    ]
    assert not found


def test_every_test_says_its_case_and_its_rule():
    texts = {}
    for path in sorted(SUITE.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            text = ast.get_docstring(node)
            assert text, f"{path.name}: {node.name}"
            texts.setdefault(text, []).append(node.name)
            rule = RULE.search(node.name)
            if rule:
                assert rule.group(1).upper() in text.partition(": ")[0], node.name
    assert len(texts) > 200
    assert not [names for names in texts.values() if len(names) > 1]


def test_the_plugin_is_announced_to_pytest():
    project = tomllib.loads((ROOT / "conformance" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"hal_conformance": "hal_conformance.plugin"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no /usr/lib/libx.so.1 here", "no libx.so.1 here"),
        ("semaphores/test_a.py::test_b", "semaphores/test_a.py::test_b"),
        ("12 ops/s, a/b", "12 ops/s, a/b"),
        ("'/opt/somebody/x y.py'", "'x y.py'"),
    ],
)
def test_paths_are_scrubbed(text, expected):
    assert scrub(text) == expected
