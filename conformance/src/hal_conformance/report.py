"""Build, write and read reports of runs, as JSON and as Markdown.

Tests are sorted by id, and no report names a path of the machine, so that
reports can be compared and committed.
"""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hal._base.speedups import engine

__all__ = [
    "SCHEMA",
    "STATUSES",
    "VERDICTS",
    "Result",
    "RunRecord",
    "build_report",
    "markdown",
    "one_line",
    "scrub",
    "write_report",
]

SCHEMA: Final = 1
"""The version of the report's form; it rises when a key changes its meaning."""

STATUSES: Final = ("passed", "failed", "unsupported", "expected_failure", "not_run")
VERDICTS: Final = ("conformant", "partial", "failed", "not_run")

_ABSOLUTE: Final = re.compile(r"(?<![\w./~])/(?:[\w.+@~-]+/)+(?=[\w.+@~-])")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test.

    Attributes
    ----------
    id
        The test's stable id: ``semaphores/test_values.py::test_gaps[2]``.
    status
        One of `STATUSES`.
    seconds
        How long it took, set-up and clean-up included.
    reason
        Why it did not pass; empty if it did.
    is_gated
        Whether it was not run because the device lacks an optional feature,
        which does not count against it.
    """

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    is_gated: bool = False


@dataclass(slots=True)
class RunRecord:
    """The data of a report, collected while the suite runs.

    Attributes
    ----------
    backend
        The device specification that was asked for.
    mode
        How command buffers were run: ``"auto"``, ``"stream"``, ``"graph"``.
    note
        A note on where it ran, from its user; may be empty.
    is_complete
        Whether the whole suite was selected, not a part of it.
    reason
        Why nothing was run; empty if it was.
    problems
        Problems that fail the run besides its tests.
    """

    backend: str
    mode: str = "auto"
    note: str = ""
    is_complete: bool = True
    reason: str = ""
    device: Mapping[str, object] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    supported: Sequence[str] = ()
    unsupported: Sequence[str] = ()
    profile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)


def build_report(run: RunRecord) -> dict[str, Any]:
    """Return the report of a run, ready for JSON."""
    results = sorted(run.results.values(), key=lambda result: result.id)
    counts = Counter(result.status for result in results)
    command = f"pytest --pyargs hal_conformance.suite --hal-backend {run.backend}"
    if run.mode != "auto":
        command += f" --hal-mode {run.mode}"
    report = {
        "schema": SCHEMA,
        "verdict": _verdict(run, results),
        "reason": run.reason,
        "backend": run.backend,
        "mode": run.mode,
        "note": run.note,
        "complete": run.is_complete,
        "device": run.device,
        "engine": engine(),
        "versions": {**_own_versions(), **run.versions},
        "features": {"supported": sorted(run.supported), "unsupported": sorted(run.unsupported)},
        "profile": run.profile,
        "problems": list(run.problems),
        "counts": {status: counts[status] for status in STATUSES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command,
        "tests": [
            {
                "id": result.id,
                "status": result.status,
                "seconds": round(result.seconds, 3),
                "reason": result.reason,
            }
            for result in results
        ],
    }
    scrubbed: dict[str, Any] = _scrub_all(report)
    return scrubbed


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write a report as JSON to `path`, a line for each test, and as Markdown beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**report, "tests": []}, indent=2, ensure_ascii=False)
    lines = ",\n".join(f"    {json.dumps(test, ensure_ascii=False)}" for test in report["tests"])
    if lines:
        text = text.removesuffix("[]\n}") + f"[\n{lines}\n  ]\n}}"
    path.write_text(text + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(report), encoding="utf-8")


def markdown(report: Mapping[str, Any]) -> str:
    """Return a report as Markdown."""
    lines = [f"# Conformance of {report['backend']}: {report['verdict'].replace('_', ' ')}", ""]
    if report["reason"]:
        lines += [report["reason"], ""]
    facts = {"backend": report["backend"], "command buffers": report["mode"]}
    if report["note"]:
        facts["note"] = report["note"]
    facts |= {key: str(value) for key, value in (report["device"] or {}).items()}
    if "engine" in report:
        facts["engine"] = report["engine"]
    facts |= dict(report["versions"])
    facts["features"] = ", ".join(report["features"]["supported"]) or "none"
    facts["features that it lacks"] = ", ".join(report["features"]["unsupported"]) or "none"
    facts["date"] = report["date"]
    lines += ["| what | which |", "|---|---|"]
    lines += [f"| {key} | {one_line(value)} |" for key, value in facts.items()]
    lines += ["", "## Tests", "", f"| area | {' | '.join(map(_title, STATUSES))} |"]
    lines += ["|---|" + "---:|" * len(STATUSES)]
    areas: dict[str, Counter[str]] = {}
    for test in report["tests"]:
        areas.setdefault(test["id"].partition("/")[0], Counter())[test["status"]] += 1
    for area, counts in sorted(areas.items()):
        lines.append(f"| {area} | {' | '.join(str(counts[status]) for status in STATUSES)} |")
    totals = " | ".join(str(report["counts"][status]) for status in STATUSES)
    lines.append(f"| all | {totals} |")
    if not report["complete"]:
        lines += ["", "A part of the suite was run."]
    if report["problems"]:
        lines += ["", "## Problems", "", *(f"- {problem}" for problem in report["problems"])]
    for status in STATUSES[1:]:
        tests = [test for test in report["tests"] if test["status"] == status]
        if tests and len(tests) < len(report["tests"]):
            lines += ["", f"## {_title(status).capitalize()}", "", "| test | reason |", "|---|---|"]
            lines += [f"| `{test['id']}` | {one_line(test['reason'])} |" for test in tests]
    lines += ["", "## Reproduce", "", "```sh", report["command"], "```", ""]
    return "\n".join(lines)


def scrub(text: str) -> str:
    """Return a text with absolute paths shortened to their last part."""
    return _ABSOLUTE.sub("", text)


def one_line(text: str) -> str:
    """Return a text as it may stand in a cell of a table in Markdown."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _verdict(run: RunRecord, results: Iterable[Result]) -> str:
    statuses = {result.status for result in results if not result.is_gated}
    if run.reason or not statuses - {"not_run"}:
        return "failed" if run.problems or "failed" in statuses else "not_run"
    if run.problems or "failed" in statuses:
        return "failed"
    return "conformant" if run.is_complete and statuses == {"passed"} else "partial"


def _own_versions() -> dict[str, str]:
    """Return the versions of this package and its dependencies."""
    versions = {name: _version(name) for name in ("hal-core", "hal-conformance")}
    versions["python"] = platform.python_version()
    versions["platform"] = f"{platform.system()} {platform.machine()}"
    return versions


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _scrub_all(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: _scrub_all(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrub_all(each) for each in value]
    return value


def _title(status: str) -> str:
    return status.replace("_", " ")
