"""Make the harness importable; the test run imports files one by one, not as a package."""

import faulthandler
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


PARTIAL = pytest.StashKey()


@pytest.fixture
def note_partial(request):
    """What is told a report of an exploration that has not covered a case whole."""
    return request.config.stash.setdefault(PARTIAL, []).append


def pytest_terminal_summary(terminalreporter, config):
    """Say which cases were not covered whole."""
    for report in config.stash.get(PARTIAL, ()):
        terminalreporter.write_line(f"NOT WHOLE {report}")


@pytest.fixture(autouse=True)
def no_limit_in_seconds():
    """Schedules are counted, so a slow machine is given the time that it takes."""
    faulthandler.cancel_dump_traceback_later()  # of pytest


@pytest.fixture(autouse=True)
def ended_threads_are_no_news(monkeypatch):
    """A schedule ends its threads by an exception of the harness, perhaps inside a callback."""
    hook = sys.unraisablehook

    def filtered(unraisable):
        if unraisable.exc_type is None or issubclass(unraisable.exc_type, Exception):
            hook(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", filtered)
