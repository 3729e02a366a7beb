"""Start Python processes: for a run, and for each destructive test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["ChildError", "command", "environment", "run_test"]

_TAIL: Final = 30
"""Lines of a failed child's output that are told."""


_UNREAD: Final = frozenset({"BUILD_NUMBER", "CI"})
"""Where these are set, pytest tells whole differences, for which two megabytes need minutes."""


class ChildError(Exception):
    """A test failed in its process, or ended it."""


def command(arguments: Sequence[str], folder: str | Path) -> list[str]:
    """Return the command that runs pytest with only this suite's plugins and settings.

    The result must not depend on other installed plugins or on the working directory, nor on other
    runs of pytest: by default all of a user's share one folder, and disturb each other as they
    clean it. So temporary files lie below `folder`, which the caller removes.
    """
    suite = Path(__file__).parent / "suite"
    prefix = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-c", os.devnull]
    plugins = ["-p", "hal_conformance.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    settings = ["--rootdir", str(suite), "--basetemp", str(Path(folder, "temporary"))]
    return [*prefix, *plugins, *settings, "-W", "error", *arguments]


def environment() -> dict[str, str]:
    """Return the environment for such a process."""
    names = os.environ.items()
    rest = {
        name: value
        for name, value in names
        if not name.startswith("PYTEST_") and name not in _UNREAD
    }
    return rest | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": os.path.join(tempfile.gettempdir(), "hal-conformance"),
    }


def run_test(suite: Path, identifier: str, backend: str, mode: str, seconds: float) -> None:
    """Run one test, by its id, in a fresh process; raises `ChildError` unless it passes."""
    options = ["--hal-backend", backend, "--hal-mode", mode, "--hal-child"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(  # noqa: S603 - the command is our own
                command([str(suite / identifier), *options, "--tb=short"], folder),
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                text=True,
            )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if error.stdout else ""
        message = f"its process did not end within {seconds} seconds\n{_tail(output)}"
        raise ChildError(message) from None
    if done.returncode:
        raise ChildError(f"{_ending(done.returncode)}\n{_tail(done.stdout)}")


def _ending(status: int) -> str:
    if status < 0:
        return f"its process was ended by signal {-status}"
    return f"it failed in its process, which exited with {status}"


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-_TAIL:])
