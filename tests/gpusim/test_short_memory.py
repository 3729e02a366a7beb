"""Random programs of temporaries where the memory of the device ends, with and without its pool."""

from pathlib import Path

import pytest
import suite_runs

from hal_conformance.suite.model import short_programs as short

HERE = Path(__file__).resolve().parent

PROGRAMS = 40


@pytest.mark.parametrize("pool", ["true", "false"])
def test_programs_on_a_device_without_more_memory_m3(backend, pool):
    variables = suite_runs.environment(backend, memory=short.TOTAL)
    arguments = [str(HERE / "short_memory.py"), backend, pool, str(PROGRAMS)]
    done = suite_runs.run_python(arguments, variables, 300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout[-20000:]
