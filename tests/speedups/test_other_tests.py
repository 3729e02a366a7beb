"""Other tests, which run on the plain engine themselves, run once more with the C extension."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CORE = [f"core/{path.name}" for path in sorted(TESTS.glob("core/*")) if any(path.glob("test_*"))]
CORE.remove("core/programs")  # they compile, and submit nothing
OTHERS = ["cuda/test_captures.py", "demo", "flow", "unit/test_docs.py", "vendor"]
"""The other tests of `cuda`, and those of `hip`, call the drivers without the engine."""
GPUSIM = ["blocked_launches", "every_call", "mixed", "odd_input", "short_memory", "stream_memory"]
LIMIT = 900
"""Seconds for one folder; the longest takes an eighth of that."""


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("tests", [*CORE, *OTHERS, *(f"gpusim/test_{name}.py" for name in GPUSIM)])
def test_with_the_extension(tests):
    if importlib.util.find_spec("hal._speedups") is None:
        pytest.skip("the C extension is not built")
    faulthandler.cancel_dump_traceback_later()  # of pytest: the run has a limit of its own
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not check"]
    hidden = {name for name in os.environ if name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, f"--basetemp={folder}/pytest", str(TESTS / tests)],
            env={name: value for name, value in os.environ.items() if name not in hidden}
            | {"HAL_SPEEDUPS": "require"},
            cwd=TESTS.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-30000:]
