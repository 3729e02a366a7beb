"""Odd arguments that reach a vendor's driver: the plugins let no error of their bindings through.

The calls are those of tests/core/support/odd_calls.py, of the classes whose methods
end in the driver; a child process for each.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import suite_runs

HERE = Path(__file__).resolve().parent
CORE = HERE.parent / "core" / "support"

BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}
SECONDS = 300.0


@pytest.mark.parametrize("batch", ["Buffer", "Device", "Executable", "Queue"])
@pytest.mark.parametrize("backend", BINDINGS)
def test_odd_arguments_are_taken_or_refused_with_an_error_of_ours(tmp_path, backend, batch):
    pytest.importorskip(BINDINGS[backend])
    done = subprocess.run(
        [sys.executable, str(CORE / "odd_calls.py"), f"hal.{batch}", backend],
        cwd=tmp_path,
        env=suite_runs.environment(backend),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    *found, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == []
    assert last["calls"] > 1000
