"""``hal conformance``: what it prints for people and for programs, and the user's mistakes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")
pytest.importorskip("hal_conformance", reason="hal-conformance is not installed")

import hal
import hal_conformance.runner as runner_module
from hal._base import speedups
from hal._cli.app import run
from hal_conformance.report import Result, RunRecord, build_report


@pytest.fixture
def made_up(monkeypatch):
    """Let the command find this result; return how often it ran the suite."""
    calls = []
    lacks = "the device does not have the feature 'graphs'"
    results = [Result("a/test_b.py::test_c", "passed")]
    results += [
        Result(f"a/test_b.py::test_{i}", "unsupported", reason=lacks, is_gated=True)
        for i in range(60)
    ]
    record = RunRecord("acme", results={result.id: result for result in results})

    def run_suite(backend, **_):
        calls.append(backend)
        return build_report(record)

    monkeypatch.setattr(runner_module, "run", run_suite)
    installed = hal.BackendStatus("acme", "installed", "", "Acme's accelerators", "hal-acme", "1")
    monkeypatch.setattr(hal, "backends", lambda *, probe=False: (installed,))
    return calls


def test_a_backend_that_is_not_installed_is_the_users_mistake(capsys, made_up):
    for name in ("nope", "nope:1", ""):
        assert run(["conformance", name, "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"hal: asked for {name!r}; installed: acme\n"
    assert made_up == []


def test_tests_that_are_not_run_for_one_reason_are_counted(capsys, made_up):
    assert run(["conformance", "acme"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unsupported 60 tests: the device does not have the feature 'graphs'"
    assert lines[1] == f"engine     {speedups.engine()}"
    assert lines[2].split() == ["tests", "1", "passed,", "60", "unsupported"]
    assert lines[-1].split() == ["verdict", "conformant"]


def test_as_json(capsys, made_up):
    assert run(["conformance", "acme", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "conformant"
    assert len(report["tests"]) == 61


def test_a_report_that_cannot_be_written_is_told_before_the_run(capsys, made_up, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "taken.md").mkdir()
    for path in ("file/r.json", "folder.json", "taken.json"):
        assert run(["conformance", "acme", "--report", str(tmp_path / path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("hal: the report cannot be written: ")
        assert captured.err.count("\n") == 1
    assert made_up == []
    assert not (tmp_path / "taken.json").exists()


@pytest.mark.parametrize("path", ["", ".", "/", ".."])
def test_a_report_without_a_name_is_the_users_mistake(capsys, made_up, path):
    assert run(["conformance", "acme", "--report", path]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("hal: the report cannot be written: ")
    assert captured.err.count("\n") == 1
    assert made_up == []


def test_a_report_of_before_is_left_alone_until_the_new_one(capsys, made_up, tmp_path):
    (tmp_path / "r.json").write_text("old")
    assert run(["conformance", "acme", "--report", str(tmp_path / "r.json")]) == 0
    assert (tmp_path / "r.json").read_text() == "old"  # the run, made up here, writes it
    assert not (tmp_path / "r.md").exists()
    assert str(tmp_path) in capsys.readouterr().out
