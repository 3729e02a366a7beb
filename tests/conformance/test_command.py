"""``hal conformance``: what it prints, what it writes, and how it exits."""

import importlib.util
import json
import types

import pytest

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

import hal
import hal_conformance.runner as runner_module
from hal._base import speedups
from hal._cli.app import run
from hal_conformance.report import Result, RunRecord, build_report, write_report

pytestmark = pytest.mark.usefixtures("plain_terminal")


@pytest.fixture(autouse=True)
def _acme_is_installed(monkeypatch):
    monkeypatch.setattr(hal, "backends", lambda: [types.SimpleNamespace(name="acme")])


@pytest.fixture
def made_up(monkeypatch):
    """Let the command find a run whose record is made up; return what it was asked for."""
    asked = []

    def prepare(**parts):
        record = RunRecord("acme:1", **parts)

        def run_suite(backend, *, mode, note, report, on_event):
            asked.append((backend, mode, note, report))
            on_event({"tests": list(record.results)})
            for name, result in record.results.items():
                on_event({"started": name})
                on_event({"ended": name, "status": result.status, "reason": result.reason})
            built = build_report(record)
            if report is not None:
                write_report(built, report)
            return built

        monkeypatch.setattr(runner_module, "run", run_suite)
        return asked

    return prepare


def results(**statuses):
    named = {f"a/test_b.py::test_{name}": status for name, status in statuses.items()}
    return {
        name: Result(name, status, reason="" if status == "passed" else f"[why] {status}")
        for name, status in named.items()
    }


@pytest.mark.parametrize(
    ("statuses", "status", "verdict"),
    [
        ({"one": "passed", "two": "passed"}, 0, "conformant"),
        ({"one": "passed", "two": "unsupported"}, 0, "partial"),
        ({"one": "passed", "two": "expected_failure"}, 0, "partial"),
        ({"one": "passed", "two": "failed"}, 1, "failed"),
        ({"one": "not_run", "two": "not_run"}, 3, "not run"),
    ],
    ids=["conformant", "unsupported", "expected failure", "failed", "not run"],
)
def test_the_verdict_is_the_exit_status(capsys, made_up, statuses, status, verdict):
    made_up(results=results(**statuses))
    assert run(["conformance", "acme:1"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""  # no progress where there is no terminal
    assert "\x1b[" not in captured.out
    last = captured.out.splitlines()[-1]
    assert last.split(maxsplit=1) == ["verdict", verdict]
    for name, each in statuses.items():
        line = f"{each.replace('_', ' ')} a/test_b.py::test_{name}: [why] {each}"
        assert (line in captured.out) == (each in {"failed", "unsupported", "expected_failure"})


def test_problems_and_the_reason_are_told(capsys, made_up):
    made_up(problems=["the profile [x] is old"], results=results(one="passed"))
    assert run(["conformance", "acme:1"]) == 1
    assert "problem the profile [x] is old" in capsys.readouterr().out
    made_up(reason="no [libacme] here", results=results(one="not_run"))
    assert run(["conformance", "acme:1"]) == 3
    assert "not run: no [libacme] here" in capsys.readouterr().out


def test_options_reach_the_run(capsys, made_up, tmp_path):
    path = tmp_path / "acme.json"
    asked = made_up(results=results(one="passed"))
    options = ["--mode", "graph", "--note", "a model", "--report", str(path)]
    assert run(["conformance", "acme:1?x=1", *options]) == 0
    assert asked == [("acme:1?x=1", "graph", "a model", path)]
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text())["verdict"] == "conformant"
    assert path.with_suffix(".md").read_text().startswith("# Conformance of acme:1: conformant")


def test_many_failures_are_not_all_listed(capsys, made_up):
    made_up(results=results(**{f"number{number}": "failed" for number in range(100)}))
    assert run(["conformance", "acme:1"]) == 1
    out = capsys.readouterr().out
    assert out.count("[why] failed") == 40
    assert "and 60 more" in out


@pytest.mark.parametrize(
    "arguments", [[], ["acme", "--mode", "fast"], ["acme", "--nope"], ["acme", "extra"]]
)
def test_a_wrong_command_line_exits_with_2(capsys, arguments):
    assert run(["conformance", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_backend_that_is_not_installed_is_the_users_mistake(capsys, made_up):
    asked = made_up()
    for name in ("nope", "nope:1", ""):
        assert run(["conformance", name, "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"hal: asked for {name!r}; installed: acme\n"
    assert asked == []


@pytest.mark.parametrize("as_json", [False, True])
def test_tests_that_are_not_run_for_one_reason_are_counted(capsys, made_up, as_json):
    lacks = "the device does not have the feature 'graphs'"
    gated = [
        Result(f"a/test_b.py::test_{i}", "unsupported", reason=lacks, is_gated=True)
        for i in range(60)
    ]
    made_up(results={each.id: each for each in gated} | results(one="passed"))
    assert run(["conformance", "acme", *["--json"] * as_json]) == 0
    out = capsys.readouterr().out
    if as_json:
        report = json.loads(out)
        assert (report["verdict"], len(report["tests"])) == ("conformant", 61)
        return
    lines = out.splitlines()
    assert lines[0] == f"unsupported 60 tests: {lacks}"
    assert lines[1] == f"engine     {speedups.engine()}"
    assert lines[2].split() == ["tests", "1", "passed,", "60", "unsupported"]
    assert lines[-1].split() == ["verdict", "conformant"]


@pytest.mark.parametrize("path", ["file/r.json", "folder.json", "taken.json", "", ".", "/", ".."])
def test_a_report_that_cannot_be_written_is_told_before_the_run(
    capsys, monkeypatch, made_up, tmp_path, path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "taken.md").mkdir()
    asked = made_up()
    assert run(["conformance", "acme", "--report", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hal: the report cannot be written: ")
    assert captured.err.count("\n") == 1
    assert asked == []
    assert not (tmp_path / "taken.json").exists()


def test_what_pytest_refuses_is_one_line(capsys, monkeypatch):
    def refuse(*_, **__):
        message = "the profile\nis broken"
        raise ValueError(message)

    monkeypatch.setattr(runner_module, "run", refuse)
    assert run(["conformance", "acme"]) == 2
    assert capsys.readouterr().err == "hal: the profile is broken\n"


def test_without_the_suite_it_says_what_to_install(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "hal_conformance" else find(name)
    )
    assert run(["conformance", "acme"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "pip install ./conformance" in captured.err


def test_a_backend_that_is_not_there(capsys):
    assert run(["conformance", "no-such-backend"]) == 3
    assert "not run: BackendNotFoundError" in capsys.readouterr().out
