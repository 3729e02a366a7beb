"""A plugin of the suite's pytest: a test that fails on gpusim shows the seed and the history.

In stepped mode, where work goes on while somebody asks the driver, who polls numbers in memory
asks it each time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator

import pytest

from hal._engine import memory_events

LINES = 300
"""How much of a test's history is shown."""

if os.environ.get("GPUSIM_MODE") == "stepped":
    memory_events._LOOK_SECONDS = 0.0  # type: ignore[misc]

_library = ctypes.CDLL(os.environ["GPUSIM_SHOWN"], ctypes.RTLD_GLOBAL)
_library.gpusim_history.restype = ctypes.c_size_t
_library.gpusim_history.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def history() -> list[str]:
    """Return what gpusim did since the test began, a line each."""
    text = ctypes.create_string_buffer(_library.gpusim_history(None, 0) + (1 << 16))
    _library.gpusim_history(text, len(text))
    return text.value.decode(errors="replace").splitlines()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let the history begin with the test."""
    _library.gpusim_clear_history()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the history to the report of a phase that failed."""
    report = yield
    if report.failed:
        lines = history()
        left_out = [f"({len(lines) - LINES} lines before these)"] if len(lines) > LINES else []
        seed = f"gpusim, seed {os.environ.get('GPUSIM_SEED', '(free mode)')}"
        report.sections.append((seed, "\n".join(left_out + lines[-LINES:])))
    return report
