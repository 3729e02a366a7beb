"""Run the suite from a program, in a process that a test may crash.

``hal conformance`` calls `run`. The suite's process reports progress through a
pipe; if it ends without a report, one is built from that progress.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hal_conformance.child import command, environment
from hal_conformance.report import Result, RunRecord, build_report, write_report

__all__ = ["Event", "run"]

Event = dict[str, Any]
"""What is told: ``{"tests": ids}`` once, ``{"started": id}`` and
``{"ended": id, "status": ..., "reason": ...}`` for each test, ``{"report": report}`` at the end."""

_SILENCE_SECONDS: Final = 300.0
"""How long the suite may tell nothing: three times what a test may take."""


@dataclass(slots=True)
class _Progress:
    """The progress of a run."""

    tests: list[str] = field(default_factory=list)
    running: str = ""
    results: dict[str, Result] = field(default_factory=dict)
    report: dict[str, Any] | None = None

    def note(self, event: Event) -> None:
        """Note one event."""
        if "tests" in event:
            self.tests = event["tests"]
        elif "started" in event:
            self.running = event["started"]
        elif "ended" in event:
            name = event["ended"]
            self.results[name] = Result(name, event["status"], reason=event["reason"])
            self.running = ""
        elif "report" in event:
            self.report = event["report"]


def run(
    backend: str,
    *,
    mode: str = "auto",
    note: str = "",
    report: Path | None = None,
    tests: Sequence[str] = (),
    on_event: Callable[[Event], object] | None = None,
) -> dict[str, Any]:
    """Run the suite on a backend and return the report; blocks until it is over.

    `mode` is ``"auto"``, ``"stream"`` or ``"graph"``; `note` says in the report
    where it ran; `report` is the file to
    write the report to, with its Markdown beside it; `tests` are ids or
    folders of the suite, by default all; `on_event` is called with each
    `Event` as it comes. Raises `ValueError` if pytest refuses the arguments
    or cannot collect, with what it said.
    """
    suite = Path(__file__).parent / "suite"
    reading, writing = os.pipe()
    progress = _Progress()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        arguments = command(
            [
                *(str(suite / test) for test in tests or [""]),
                *("--hal-backend", backend, "--hal-mode", mode, "--hal-events", str(writing)),
                f"--hal-note={note}",
                "--tb=short",
            ],
            folder,
        )
        process = subprocess.Popen(  # noqa: S603 - the command is our own
            arguments,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
        )
        try:
            os.close(writing)
            _follow(reading, process, progress, on_event)
            status = process.wait()
        finally:
            os.close(reading)
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    found = progress.report
    if found is None:
        if not progress.tests:
            raise ValueError(said.strip() or f"pytest exited with {status}")
        found = _report_of_the_dead(RunRecord(backend, mode, note), progress, status)
    if report is not None:
        write_report(found, report)
    return found


def _follow(
    reading: int,
    process: subprocess.Popen[bytes],
    progress: _Progress,
    on_event: Callable[[Event], object] | None,
) -> None:
    """Read events until the pipe's other end is closed, or no event comes for too long."""
    rest = b""
    deadline = time.monotonic() + _SILENCE_SECONDS
    while True:
        # A test's process may outlive the run and keep the pipe open.
        ready, _, _ = select.select([reading], [], [], 1.0)
        if not ready:
            if process.poll() is not None:
                return
            if time.monotonic() > deadline:
                process.kill()
                return
            continue
        data = os.read(reading, 1 << 16)
        if not data:
            return
        deadline = time.monotonic() + _SILENCE_SECONDS
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            progress.note(event)
            if on_event is not None:
                on_event(event)


def _report_of_the_dead(record: RunRecord, progress: _Progress, status: int) -> dict[str, Any]:
    """Return the report of a run whose process ended before it wrote one."""
    ending = f"by signal {-status}" if status < 0 else f"with status {status}"
    where = f"in {progress.running}" if progress.running else "between two tests"
    record.problems.append(f"the suite's process ended {ending} {where}")
    for name in progress.tests:
        result = progress.results.get(name)
        if result is None:
            died = name == progress.running
            result = (
                Result(name, "failed", reason=f"the process ended {ending}")
                if died
                else Result(name, "not_run", reason="not reached")
            )
        record.results[name] = result
    return build_report(record)
