"""Other tests, which run on the plain engine themselves, run once more with the C extension."""

import faulthandler
import importlib.util
import os
from pathlib import Path

import pytest
from child_processes import run_pytest

TESTS = Path(__file__).parents[1]
CORE = [f"core/{path.name}" for path in sorted(TESTS.glob("core/*")) if any(path.glob("test_*"))]
CORE.remove("core/programs")  # they compile, and submit nothing
NONE_OF_C = ["--ignore", TESTS / "core/commands/test_hazards.py"]
"""They put commands in order, of which C knows nothing."""
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
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    variables["HAL_SPEEDUPS"] = "require"
    done = run_pytest(["-m", "not check", *NONE_OF_C, TESTS / tests], variables, LIMIT)
    assert done.returncode == 0, done.stdout[-30000:]
