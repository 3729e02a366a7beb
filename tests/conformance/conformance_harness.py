"""Run the conformance suite in child processes, with profiles and backends made up for a test."""

import json
import os
import re
import textwrap
from pathlib import Path

from child_processes import run_command

from hal_conformance.child import command, environment
from hal_conformance.report import STATUSES, VERDICTS

__all__ = ["ROOT", "SUITE", "Installed", "check_report", "statuses"]

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "conformance" / "src" / "hal_conformance" / "suite"

KEYS = {
    "schema": int,
    "verdict": str,
    "reason": str,
    "backend": str,
    "mode": str,
    "note": str,
    "complete": bool,
    "device": dict,
    "engine": str,
    "versions": dict,
    "features": dict,
    "profile": dict,
    "problems": list,
    "counts": dict,
    "date": str,
    "command": str,
    "tests": list,
}
"""The keys of a report, in their order; kept reports of earlier runs name no engine."""


class Installed:
    """Announce plugins and profiles as an installer does, and run the suite where they are seen."""

    def __init__(self, folder):
        self.folder = folder
        self.path = [str(folder)]
        self.variables = {}

    def announce(self, group, name, value):
        """Record a distribution with one entry point."""
        info = self.folder / f"made_up_{len(list(self.folder.iterdir()))}-1.0.dist-info"
        info.mkdir()
        title = info.name.split("-")[0]
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    def profile(self, source, backend="cpu"):
        """Announce a profile whose module has this text."""
        (self.folder / "made_up_profile.py").write_text(textwrap.dedent(source))
        self.announce("hal.conformance", backend, "made_up_profile:profile")

    def environment(self):
        path = [*self.path, *filter(None, [os.environ.get("PYTHONPATH")])]
        return environment() | self.variables | {"PYTHONPATH": os.pathsep.join(path)}

    def run(self, *arguments, tests=("",), backend="cpu", cwd=None):
        """Run the suite's pytest; return its result, and the report if there is one."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        options = [*(str(SUITE / test) for test in tests), "--hal-report", str(report)]
        if backend is not None:
            options += ["--hal-backend", backend]
        words = command([*options, *arguments], self.folder)
        done = run_command(words, env=self.environment(), cwd=cwd)
        written = json.loads(report.read_text()) if report.exists() else None
        return done, written


def statuses(report):
    """Return the status of each test that was run or skipped, by id."""
    return {test["id"]: test["status"] for test in report["tests"] if test["status"] != "not_run"}


def check_report(report):
    """Check the form of a report."""
    assert list(report) == list(KEYS)
    assert all(value is None or type(value) is KEYS[key] for key, value in report.items())
    assert report["schema"] == 1
    assert report["verdict"] in VERDICTS
    assert list(report["counts"]) == list(STATUSES)
    ids = [test["id"] for test in report["tests"]]
    assert ids == sorted(set(ids))
    for test in report["tests"]:
        assert list(test) == ["id", "status", "seconds", "reason"]
        assert test["status"] in STATUSES
        assert (test["status"] == "passed") == (test["reason"] == "")
        assert re.match(r"[a-z_]+/test_\w+\.py::test_", test["id"])
    for status in STATUSES:
        counted = sum(test["status"] == status for test in report["tests"])
        assert report["counts"][status] == counted
    assert not re.search(r"(?<![\w.:])/(?:home|root|tmp|usr|work|var)/", repr(report))
