"""Random programs of temporaries where the memory of the device ends, with and without its pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

short = pytest.importorskip("hal_conformance.suite.model.short_programs")

# The test run imports files one by one, not as a package.
HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import suite_runs  # noqa: E402

BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}
PROGRAMS = 40


@pytest.mark.parametrize("pool", ["true", "false"])
@pytest.mark.parametrize("backend", BINDINGS)
def test_programs_on_a_device_without_more_memory_m3(backend, pool):
    pytest.importorskip(BINDINGS[backend])
    done = subprocess.run(
        [sys.executable, str(HERE / "short_memory.py"), backend, pool, str(PROGRAMS)],
        env=suite_runs.environment(backend, memory=short.TOTAL),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=50,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout[-20000:]
