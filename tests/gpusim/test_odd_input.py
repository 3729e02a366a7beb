"""Odd arguments that reach a vendor's driver: the plugins let no error of their bindings through.

The calls are those of tests/core/support/odd_calls.py, of the classes whose methods
end in the driver; a child process for each.
"""

import json
import sys
from pathlib import Path

import pytest
import suite_runs
from child_processes import output_of

HERE = Path(__file__).resolve().parent
CORE = HERE.parent / "core" / "support"


@pytest.mark.parametrize("batch", ["Buffer", "Device", "Executable", "Queue"])
def test_odd_arguments_are_taken_or_refused_with_an_error_of_ours(tmp_path, backend, batch):
    command = [sys.executable, CORE / "odd_calls.py", f"hal.{batch}", backend]
    said = output_of(command, cwd=tmp_path, env=suite_runs.environment(backend))
    *found, last = [json.loads(line) for line in said.splitlines()]
    assert found == []
    assert last["calls"] > 1000
