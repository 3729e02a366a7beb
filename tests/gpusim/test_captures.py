"""hardware/captures.py on gpusim, whose driver takes captures as a real one does."""

import re
import sys
from pathlib import Path

import gpusim
import pytest
from child_processes import output_of

HERE = Path(__file__).resolve().parent
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_captures_and_hal_leave_each_other_alone_o1(mode):
    """Everybody works at least once, whatever the machine's speed."""
    script = HERE.parents[1] / "hardware" / "captures.py"
    command = [sys.executable, script, "--library", "driver", "--mode", mode]
    command += ["--captures", "40", "--seconds", "60"]
    found = output_of(command, env=gpusim.environment(quiet=True))
    captures = re.match(rf"driver {mode}: (\d+) captures", found)
    assert captures
    assert int(captures[1]) >= 40
