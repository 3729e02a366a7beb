"""The run on a free-threaded Python says what it lacks, and does not pass silently."""

import os
import sys
from pathlib import Path

from child_processes import run_command

SCRIPT = Path(__file__).parents[1] / "free_threaded.py"


def run_without(tmp_path, **environment):
    """Run the script where neither the path nor the home has an interpreter."""
    names = ("HAL_FREE_THREADED", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    given = kept | {"PATH": str(tmp_path), "HOME": str(tmp_path)} | environment
    return run_command([sys.executable, SCRIPT], env=given)


def test_a_missing_interpreter_is_told(tmp_path):
    result = run_without(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "SKIPPED: no free-threaded interpreter found" in result.stdout
    assert "HAL_FREE_THREADED" in result.stdout


def test_a_named_interpreter_that_has_the_lock_is_refused(tmp_path):
    for named in (tmp_path / "missing", "/bin/false"):
        result = run_without(tmp_path, HAL_FREE_THREADED=str(named))
        assert result.returncode == 1
        assert "is no free-threaded Python" in result.stdout
