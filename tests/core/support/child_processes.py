"""Run programs of the tests in processes of their own."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from core_harness import LIMIT

TESTS = Path(__file__).resolve().parents[2]


def assert_quiet(result):
    """Fail unless the child ended well and had nothing to say on stderr."""
    if result.returncode or result.stderr:
        pytest.fail(f"the child ended with {result.returncode}:\n{result.stdout}{result.stderr}")


def run_python(folder, source, *, timeout=300.0, arguments=(), watchdog=True):
    """Run a program in a child process; one that hangs tells where all its threads are, and ends.

    A program that forks does without the `watchdog`, whose thread its child would miss.
    """
    text = textwrap.dedent(source)
    if watchdog:
        text = (
            f"import faulthandler; faulthandler.dump_traceback_later({timeout}, exit=True)\n{text}"
        )
    path = folder / "program.py"
    # Who is started in the background ignores Ctrl-C, and so would its children.
    first = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    path.write_text(first + text, encoding="utf-8")
    return run_file(path, arguments, timeout + LIMIT, dict(os.environ))


def run_alone(folder, source, **variables):
    """Run a program in a child process with these variables and no others, so with no driver."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return run_file(path, (), 300.0, {"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables})


def run_pytest(arguments, variables, timeout=None):
    """Run tests of this clone in a process with an environment; `stdout` is all that it said.

    Its temporary files are its own: two runs at once disturb each other as they clean one folder.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [*command, f"--basetemp={folder}/pytest", *map(str, arguments)],
            env=variables,
            cwd=TESTS.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def run_command(command, *, timeout=300.0, **options):
    """Run a command to its end; what it says on either stream comes as text."""
    words = [*map(str, command)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def output_of(command, **options):
    """Run a command that has to end well; return what it prints."""
    return printed_by(run_command(command, **options))


def printed_by(done):
    """Return what a process that has to end well has printed."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def run_file(path, arguments, timeout, variables):
    """Run a program, which can import hal and what the tests share as they do themselves."""
    shared = [each for each in sys.path if Path(each).is_relative_to(TESTS)]
    given = variables.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join([*filter(None, [given]), *shared])
    return run_command([sys.executable, path, *arguments], timeout=timeout, env=variables)
