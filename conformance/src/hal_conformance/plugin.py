"""The pytest plugin: options, markers, and the run if a backend is named.

pytest loads this module in every session where the distribution is installed,
so it imports pytest, and neither hal nor the suite.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

__all__ = ["MARKERS", "MODES", "pytest_addoption", "pytest_configure"]

MODES = ("auto", "stream", "graph")

MARKERS = (
    "feature(name): run where the device has the feature; every other test is core",
    "ordering: depends on the order in which the device works; worth running on many schedules",
    "destructive: run in a process of its own, since it faults, loses or leaves behind a device",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("hal", "conformance of a hal backend")
    group.addoption(
        "--hal-backend",
        metavar="NAME",
        help="the backend to prove, or a device: cuda, cuda:1; it must be there",
    )
    group.addoption(
        "--hal-report",
        metavar="FILE",
        type=Path,
        help="write the report to FILE as JSON, and as Markdown beside it",
    )
    group.addoption(
        "--hal-mode",
        choices=MODES,
        default="auto",
        help="how command buffers are lowered (the device parameter command_buffer)",
    )
    group.addoption(
        "--hal-note", metavar="TEXT", default="", help="a line for the report about where it ran"
    )
    # For the suite's own processes: where to report progress, and whether this is the
    # process of a destructive test.
    group.addoption("--hal-events", metavar="FD", type=int, help=argparse.SUPPRESS)
    group.addoption("--hal-child", action="store_true", help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the run if a backend was named."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("--hal-backend"):
        from hal_conformance.session import Session  # noqa: PLC0415 - only where it is needed

        config.pluginmanager.register(Session(config), "hal_conformance.session")
