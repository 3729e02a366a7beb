"""Run the core's tests and random programs on a free-threaded Python, without the interpreter lock.

For `make check`, or by hand. The interpreter is the one that ``HAL_FREE_THREADED`` names, else
``python3.14t`` or ``python3.13t`` of the path, of pyenv or of uv. It gets an environment of its own
below .venv. Where there is no interpreter, or pip cannot get what the tests need, this says so
and why, and succeeds. Arguments go to pytest, in the place of what runs otherwise.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv" / "free-threaded"
NAMES = ("python3.14t", "python3.13t")
HOW = """\
To give one, set HAL_FREE_THREADED to its path, or have it on the path as python3.14t or
python3.13t. It comes with: uv python install 3.14t; pyenv install 3.14t; Python's source,
built with ./configure --disable-gil; and some distributions' packages.
"""
LIBRARIES = (
    *("numpy", "pluggy", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis"),
    *("hatchling", "editables", "anyio", "trio"),
)
MEMBERS = ("hal_core", "hal_cpu", "conformance")
NO_LOCK = "import sys, venv; sys.exit(sys._is_gil_enabled())"
RUNS = (
    (
        "the core's tests",
        {},
        ["-m", "not check", "-n", "auto", "--maxprocesses", "4", "tests/core"],
    ),
    (
        "random programs that close queues and devices",
        {"HAL_SEEDS": "10"},
        ["tests/core/engine/test_closing_threads.py"],
    ),
)
SECONDS = 900
"""The most that one of them may take; both take some minutes on two idle processors."""
ENVIRONMENT = os.environ | {"PYTHON_GIL": "0", "HAL_SPEEDUPS": "0"}


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(command, environment=ENVIRONMENT, seconds=None, **options):
    """Run a command; return its status, and 124 if it took too long and was killed."""
    words = [*map(str, command)]
    # In a group of its own, since pytest's processes would outlive it.
    process = subprocess.Popen(words, env=environment, cwd=ROOT, process_group=0, **options)
    try:
        return process.wait(seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    say(f"this took longer than {seconds} s: {' '.join(words)}")
    return 124


def is_free_threaded(python):
    try:
        return run([python, "-c", NO_LOCK], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def candidates():
    """Yield the interpreters to try, the newest of each place first."""
    yield from filter(None, map(shutil.which, NAMES))
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    for folder in (
        Path(os.environ.get("PYENV_ROOT") or home / ".pyenv", "versions"),
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python"),
    ):
        for name in NAMES:
            yield from sorted(folder.glob(f"*/bin/{name}"), reverse=True)


def set_up(python):
    """Return the interpreter of an environment for a Python; None if pip cannot fill it."""
    inner, stamp = FOLDER / "bin" / "python", FOLDER / ".made-of"
    made_of = " ".join([str(python), *LIBRARIES, *MEMBERS])
    if stamp.exists() and stamp.read_text() == made_of and is_free_threaded(inner):
        return inner
    if run([python, "-m", "venv", "--clear", FOLDER]) != 0:
        return None
    install = [inner, "-m", "pip", "--disable-pip-version-check", "-qq", "--no-input", "install"]
    if run([*install, "--only-binary", ":all:", *LIBRARIES]) != 0:
        return None
    members = itertools.chain.from_iterable(("-e", f"./{each}") for each in MEMBERS)
    if run([*install, "--no-deps", "--no-build-isolation", *members]) != 0:
        return None
    stamp.write_text(made_of)
    return inner


def main():
    named = os.environ.get("HAL_FREE_THREADED")
    if named and not is_free_threaded(named):
        say(f"HAL_FREE_THREADED={named} is no free-threaded Python with its venv module")
        return 1
    python = named or next(filter(is_free_threaded, candidates()), None)
    if python is None:
        say(f"SKIPPED: no free-threaded interpreter found\n{HOW}")
        return 0
    inner = set_up(python)
    if inner is None:
        say(
            f"SKIPPED: {python} is there, but what the tests need cannot be installed for it, as "
            "pip says above; it needs a package index with wheels for that Python"
        )
        return 0
    statuses = []
    with tempfile.TemporaryDirectory() as folder:
        pytest = [inner, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest.append(f"--basetemp={folder}/pytest")
        if sys.argv[1:]:
            return run([*pytest, *sys.argv[1:]])
        for title, environment, arguments in RUNS:
            say(f"{python}, no interpreter lock: {title}")
            statuses.append(run([*pytest, *arguments], ENVIRONMENT | environment, SECONDS))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
