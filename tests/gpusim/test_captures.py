"""hardware/captures.py on gpusim, whose driver takes captures as a real one does."""

import re
import subprocess
import sys
from pathlib import Path

import gpusim
import pytest

HERE = Path(__file__).resolve().parent
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_captures_and_hal_leave_each_other_alone_o1(mode):
    """Everybody works at least once, whatever the machine's speed."""
    script = HERE.parents[1] / "hardware" / "captures.py"
    command = [sys.executable, str(script), "--library", "driver", "--mode", mode]
    done = subprocess.run(
        [*command, "--captures", "40", "--seconds", "60"],
        env=gpusim.environment(quiet=True),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    captures = re.match(rf"driver {mode}: (\d+) captures", done.stdout)
    assert captures
    assert int(captures[1]) >= 40
