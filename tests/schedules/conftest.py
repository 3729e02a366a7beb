"""Report what was not explored whole, and keep quiet about threads that a schedule ended."""

import faulthandler
import itertools
import sys

import pytest


@pytest.fixture
def note_partial(record_property):
    """Return a function to note the report of an exploration that has not covered a case whole."""
    return lambda report: record_property("not whole", str(report))


def pytest_terminal_summary(terminalreporter):
    """List the cases that were not covered whole, by whatever process."""
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        for name, text in getattr(report, "user_properties", ()):
            if name == "not whole" and report.when == "call":
                terminalreporter.write_line(f"NOT WHOLE {text}")


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
