"""One run of the suite on a backend: open it, skip, judge, and report."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

import hal
from hal.native import FEATURES
from hal_conformance import child
from hal_conformance.bench import Bench
from hal_conformance.profile import ProfileError, load_profile
from hal_conformance.report import Result, RunRecord, build_report, scrub, write_report

__all__ = ["BENCH", "FAILED", "SUITE", "TIME_LIMIT", "Session"]

SUITE: Final = Path(__file__).parent / "suite"

TIME_LIMIT: Final = 100
"""Seconds that one test may take, if it does not say otherwise."""

BENCH: Final = pytest.StashKey[Bench]()
FAILED: Final = pytest.StashKey[bool]()
"""Whether a test's own code failed, on its item."""


class Session:
    """The plugin of one run; registered if a backend was named."""

    def __init__(self, config: pytest.Config) -> None:
        if not any(map(config.pluginmanager.hasplugin, ("timeout", "pytest_timeout"))):
            message = "the conformance suite needs pytest-timeout; install it, or load it with -p"
            raise pytest.UsageError(message)
        self._config = config
        self._is_child: bool = config.getoption("--hal-child")
        self._events: int | None = config.getoption("--hal-events")
        spec: str = config.getoption("--hal-backend")
        self._backend = spec.partition("?")[0].partition(":")[0]
        self._run = RunRecord(
            spec, config.getoption("--hal-mode"), note=config.getoption("--hal-note")
        )
        self._ids: dict[str, str] = {}  # pytest's id of a test to ours
        self._planned: dict[str, str] = {}  # our id to why the test is skipped
        self._gated: set[str] = set()
        self._report: dict[str, Any] | None = None
        try:
            profile = load_profile(self._backend)
        except ProfileError as error:
            raise pytest.UsageError(str(error)) from error
        self._profile = profile
        parameters = {} if self._run.mode == "auto" else {"command_buffer": self._run.mode}
        self._bench = config.stash[BENCH] = Bench(spec, profile, parameters)
        self._run.profile = {
            "unsupported": dict(sorted(profile.unsupported.items())),
            "expected_failures": dict(sorted(profile.expected_failures.items())),
        }

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Set the tests' ids and time limits, and apply the profile."""
        mine = [item for item in items if item.path.is_relative_to(SUITE)]
        self._ids = {item.nodeid: _id(item) for item in mine}
        files = {item.path for item in mine}
        if not files >= set(SUITE.rglob("test_*.py")):
            self._run.is_complete = False
        elif not self._is_child:
            self._run.problems += self._profile.problems(self._ids.values())
        for item in mine:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIME_LIMIT))
            name = self._ids[item.nodeid]
            unsupported = self._profile.reason_unsupported(name)
            expected = self._profile.reason_expected(name)
            if unsupported is not None:
                self._skip(item, unsupported)
            elif expected is not None and not self._is_child:
                item.add_marker(pytest.mark.xfail(reason=expected, strict=True))

    def pytest_deselected(self) -> None:
        """Note that a part of the suite was chosen."""
        self._run.is_complete = False

    # The run

    def pytest_collection_finish(self) -> None:
        """Spare the collector what pytest knows of the tests; many of them ask for a collection."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Open the backend, or end the run; skip the tests of features that it lacks."""
        if session.testsfailed or session.config.option.collectonly:
            return
        # A choice of tests came after the ids.
        chosen = [item for item in session.items if item.nodeid in self._ids]
        self._tell({"tests": [self._ids[item.nodeid] for item in chosen]})
        try:
            self._open()
        except hal.HalError as error:
            self._run.reason = scrub(f"{type(error).__name__}: {error}")
            pytest.exit(f"{self._run.backend} cannot be opened: {error}", returncode=1)
        features = self._bench.features()
        for item in chosen:
            for marker in item.iter_markers("feature"):
                if marker.args[0] not in features:
                    self._skip(item, f"the device does not have the feature {marker.args[0]!r}")
                    self._gated.add(self._ids[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report that a test begins."""
        if nodeid in self._ids:
            self._tell({"started": self._ids[nodeid]})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test that skips itself: profiles declare what a backend cannot do."""
        try:
            report = yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - reported
            # A time limit that strikes here, or an error at a place without a line number, which
            # a time limit may strike too: that fails a test, and must not end the run.
            report = _plain_report(item, call, error)
        if item.nodeid not in self._ids:
            return report
        is_skip = report.skipped and not hasattr(report, "wasxfail")
        if is_skip and self._ids[item.nodeid] not in self._planned:
            report.outcome = "failed"
            report.longrepr = f"a test must not skip itself: {report.longrepr}"
        if call.excinfo is not None and call.when != "teardown":
            item.stash[FAILED] = True
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a destructive test in a process of its own."""
        if (
            self._is_child
            or pyfuncitem.nodeid not in self._ids
            or pyfuncitem.get_closest_marker("destructive") is None
        ):
            return None
        identifier = self._ids[pyfuncitem.nodeid]
        child.run_test(SUITE, identifier, self._run.backend, self._run.mode, TIME_LIMIT - 5)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the result of one phase of a test."""
        name = self._ids.get(report.nodeid)
        if name is None:
            return
        status, reason = self._judge(name, report)
        before = self._run.results.get(name, Result(name, "passed"))
        seconds = before.seconds + report.duration
        if before.status == "passed" or status == "failed":
            gated = name in self._gated
            self._run.results[name] = Result(name, status, seconds, reason, is_gated=gated)
        else:
            self._run.results[name] = Result(
                name, before.status, seconds, before.reason, is_gated=before.is_gated
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the result of a test."""
        result = self._run.results.get(self._ids.get(nodeid, ""))
        if result is not None:
            self._tell({"ended": result.id, "status": result.status, "reason": result.reason})

    # The end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the devices, write the report, and set the exit status to its verdict."""
        left = self._bench.close()
        if self._is_child or session.config.option.collectonly:
            return
        if not (self._ids or self._run.reason):
            return  # pytest has refused its arguments, and tells the user
        if session.exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}:
            self._run.problems.append("the run was interrupted, or a test could not be collected")
        self._run.problems += [f"left behind at the end: {scrub(line)}" for line in left]
        for name in self._ids.values():
            self._run.results.setdefault(name, Result(name, "not_run", reason="not reached"))
        self._report = build_report(self._run)
        path: Path | None = self._config.getoption("--hal-report")
        if path is not None:
            write_report(self._report, path)
        self._tell({"report": self._report})
        if self._report["verdict"] in {"failed", "not_run"} and not session.exitstatus:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Describe the verdict."""
        report = self._report
        if report is None:
            return
        verdict = report["verdict"].replace("_", " ")
        good = report["verdict"] in {"conformant", "partial"}
        terminalreporter.section(
            f"hal conformance of {report['backend']}: {verdict}", green=good, red=not good
        )
        for line in (report["reason"], *report["problems"]):
            if line:
                terminalreporter.line(line)

    def _open(self) -> None:
        """Open the shared device, and note its description."""
        device = self._bench.device()
        info = device.info
        self._run.device = {
            "name": info.name,
            "architecture": info.architecture,
            "compute_units": info.compute_units,
            "memory": f"{info.total_memory / 2**30:.0f} GiB",
            "driver": scrub(info.driver),
        }
        features = self._bench.features()
        self._run.supported = sorted(features)
        self._run.unsupported = sorted((FEATURES | {"kernels"}) - features)
        self._run.versions = {
            backend.distribution: backend.version
            for backend in hal.backends()
            if backend.name == device.backend and backend.distribution
        }
        for name in ("pytest", "hypothesis", "numpy"):
            self._run.versions = {**self._run.versions, name: metadata.version(name)}

    def _skip(self, item: pytest.Item, reason: str) -> None:
        self._planned[self._ids[item.nodeid]] = reason
        item.add_marker(pytest.mark.skip(reason=reason))

    def _judge(self, name: str, report: pytest.TestReport) -> tuple[str, str]:
        """Return the status and the reason of one phase of a test."""
        if report.passed:
            return "passed", ""
        if report.skipped and hasattr(report, "wasxfail"):
            return "expected_failure", self._profile.reason_expected(name) or ""
        if report.skipped:
            return "unsupported", self._planned.get(name, "")
        if "[XPASS(strict)]" in str(report.longrepr):
            expected = self._profile.reason_expected(name)
            return "failed", f"it passed, and the profile expects it to fail: {expected}"
        return "failed", scrub(_first_line(report))

    def _tell(self, event: dict[str, Any]) -> None:
        """Write a line to the process that started this run."""
        if self._events is not None:
            line = json.dumps(event) + "\n"
            with open(self._events, "w", encoding="utf-8", closefd=False) as pipe:
                pipe.write(line)
                pipe.flush()


def _id(item: pytest.Item) -> str:
    """Return a test's id, relative to the suite: it does not depend on the installation."""
    return f"{item.path.relative_to(SUITE).as_posix()}::{item.nodeid.partition('::')[2]}"


def _plain_report(
    item: pytest.Item, call: pytest.CallInfo[None], error: BaseException
) -> pytest.TestReport:
    """Return the report of a test whose failure pytest cannot describe."""
    cause = call.excinfo.value if call.excinfo is not None else error
    assert call.when != "collect"  # noqa: S101 - a phase of a test
    return pytest.TestReport(
        item.nodeid,
        item.location,
        dict(item.keywords),
        "failed",
        f"{type(cause).__name__}: {cause}",
        call.when,
        duration=call.duration,
        start=call.start,
        stop=call.stop,
    )


def _first_line(report: pytest.TestReport) -> str:
    """Return the first line of a report's exception, with the phase if that is not the call."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    first = " ".join(text.splitlines()[0].split()) if text else "it failed and says nothing"
    return first if report.when == "call" else f"at {report.when}: {first}"
