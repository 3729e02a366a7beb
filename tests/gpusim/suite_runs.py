"""Run the conformance suite on gpusim, each time in a process of its own.

    python tests/gpusim/suite_runs.py BACKEND [--mode MODE] [--seed SEED] [--programs N]
                                      [--own] [--memory] [--plain] [ARGUMENTS OF PYTEST]

BACKEND is cuda, hip or, for comparison and without gpusim, cpu. Without a seed the
whole suite runs, in free mode; with one, the tests marked ``ordering``, in stepped
mode; or the tests that the arguments name. With ``--own`` allocas do without the driver's
pool, with ``--memory`` semaphores without its events. With ``--plain`` the engine is Python
alone; otherwise it has its C extension.
This is how a run that failed is repeated: equal seeds give equal schedules as far as
the host's threads let them.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import gpusim

from hal_conformance import child

__all__ = [
    "Outcome",
    "Run",
    "Runs",
    "check",
    "environment",
    "perform",
    "plan",
    "programs",
    "seeds",
    "worth",
]

HERE: Final = Path(__file__).resolve().parent
SUITE: Final = Path(child.__file__).parent / "suite"
MODES: Final = ("graph", "stream")
AT_ONCE: Final = 2
REPORT: Final = "report.json"
SECONDS: Final = 400.0
"""How long one run may take. The longest takes an eighth of it on two idle processors."""

_building: Final = threading.Lock()


class Run(NamedTuple):
    """One run: with a seed of None the whole suite in free mode, with programs only so many."""

    backend: str
    mode: str
    seed: int | None = None
    programs: int = 0
    own: bool = False
    plain: bool = False
    memory: bool = False

    def __str__(self) -> str:
        """Return a test's id."""
        mode = f"{self.mode}, own pool" if self.own else self.mode
        mode = f"{mode}, memory" if self.memory else mode
        mode = f"{mode}, plain" if self.plain else mode
        programs = f"{self.programs} programs, " if self.programs else ""
        return mode if self.seed is None else f"{mode}, {programs}seed {self.seed}"

    @property
    def device(self) -> str:
        """The name of the device that is tested."""
        given = ["async_allocations=false"] * self.own + ["semaphores=memory"] * self.memory
        return f"{self.backend}?{'&'.join(given)}" if given else self.backend

    @property
    def command(self) -> str:
        """Return the command that repeats the run."""
        seed = "" if self.seed is None else f" --seed {self.seed}"
        programs = f" --programs {self.programs}" if self.programs else ""
        more = f"{seed}{programs}{' --own' * self.own}{' --memory' * self.memory}"
        more += " --plain" * self.plain
        return f"python tests/gpusim/suite_runs.py {self.backend} --mode {self.mode}{more}"


class Outcome(NamedTuple):
    """Keep how a run ended: the process's status, all it said, its report, and its seconds."""

    status: int
    output: str
    report: dict[str, Any] | None
    seconds: float


def seeds(otherwise: int) -> int:
    """Return how many seeds are tried: ``HAL_SEEDS`` of the environment, or the given number."""
    return int(os.environ.get("HAL_SEEDS") or otherwise)


def plan(backend: str, otherwise: int) -> list[Run]:
    """Return the runs for a backend: the suite in each mode, and `seeds` over the modes.

    The whole suite runs with the C extension in both modes, and without it in one, another for
    HIP than for CUDA. And without the driver's pool, and without its events: the suite once, and
    every other pair and every third one of seeds.
    """
    stepped = [
        Run(
            backend,
            MODES[seed % 2],
            seed,
            own=seed // 2 % 2 == 1,
            plain=seed // 4 % 2 == 1,
            memory=seed % 3 == 0,
        )
        for seed in range(1, seeds(otherwise) + 1)
    ]
    whole = [Run(backend, mode) for mode in MODES]
    whole += [Run(backend, MODES[backend == "hip"], plain=True)]
    whole += [Run(backend, MODES[0], own=True), Run(backend, MODES[1], memory=True)]
    return [*whole, Run(backend, MODES[0], memory=True, plain=True), *stepped]


def programs(*backends: str) -> list[Run]:
    """Return runs of 100 random programs a seed for each mode and engine, with ``HAL_SEEDS``."""
    count = seeds(0)
    return [
        Run(each, mode, count, 100 * count, plain=plain)
        for each in backends
        for mode in MODES
        for plain in (False, True)
        if count
    ]


def environment(*backends: str, **settings: object) -> dict[str, str]:
    """Return variables with which these backends' bindings find gpusim, and nothing else.

    Builds what is not built. Settings are those of `gpusim.environment`; there
    are two devices, and a launch that finds its stream full ends the process.
    ``GPUSIM_SHOWN`` is the library of the last backend.
    """
    settings = {"devices": 2, "quiet": 1, "abort_on_blocked": 1, **settings}
    variables = dict(os.environ)
    with _building:
        if "cuda" in backends:
            variables = gpusim.environment(**settings)
            variables["GPUSIM_SHOWN"] = str(gpusim.built() / gpusim.DRIVER)
        if "hip" in backends:
            folder = gpusim.rocm_folder()
            variables |= gpusim.variables(**settings)
            variables |= {
                "ROCM_PATH": str(folder),
                "GPUSIM_SHOWN": str(folder / "lib" / "libamdhip64.so"),
            }
    return variables


def run_python(
    arguments: Sequence[str], variables: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process with an environment; return how it ended, and all it said."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *arguments],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def run_program(text: str, variables: dict[str, str], seconds: float) -> None:
    """Run a Python program in such a process; raise what it said if it failed."""
    done = run_python(["-c", text], variables, seconds)
    assert done.returncode == 0, done.stdout


def _command(run: Run, folder: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a run; arguments that do not begin with a dash are tests.

    What it writes, and its report, lie in the folder.
    """
    tests = [each for each in arguments if not each.startswith("-")]
    options = [each for each in arguments if each.startswith("-")]
    options += ["--hal-backend", run.device, "--hal-mode", run.mode, "--tb=short", "-rf"]
    options += ["--hal-report", str(Path(folder, REPORT))]
    # Pytest's own way keeps what C writes in a file, and a process that aborts takes it along.
    options += ["--capture=sys"]
    if run.seed is not None and not tests:
        options += ["-m", "ordering"]
    paths = [str(SUITE / test) for test in tests or [""]]
    plugin = [] if run.backend == "cpu" else ["-p", "suite_history"]
    return child.command([*plugin, *options, *paths], folder)


def perform(
    run: Run,
    arguments: Sequence[str] = (),
    started: set[int] | None = None,
    seconds: float | None = SECONDS,
    **settings: object,
) -> Outcome:
    """Run the suite to its end, or for so long; then the stacks of its threads are in the output.

    `arguments` are tests by their ids, and more options of pytest's. While it
    runs, `started` holds the id of the process, which leads a group of its own.
    `settings` are more of those of `gpusim.environment`.
    """
    # Tests of several devices take two, or one that is opened several times.
    settings["devices"] = 1 if run.mode == "stream" else 2
    if run.seed is not None:
        settings |= {"mode": "stepped", "seed": run.seed}
    found = environment(run.backend, **settings)
    found["HAL_SPEEDUPS"] = "0" if run.plain else "require"
    if run.programs:
        arguments = [*arguments, "model/test_machine.py"]
        found["HAL_CONFORMANCE_PROGRAMS"] = str(run.programs)
        found["HAL_CONFORMANCE_SEED"] = str(run.seed or 0)
    changed = {name: value for name, value in found.items() if os.environ.get(name) != value}
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            _command(run, folder, arguments),
            env={**child.environment(), **changed, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if started is not None:
            started.add(process.pid)
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler is on
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            _end(process.pid)
            output, _ = process.communicate()
            output += f"\nit did not end within {seconds} seconds"
        finally:
            if started is not None:
                started.discard(process.pid)
        report = Path(folder, REPORT)
        written = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    return Outcome(process.returncode, output, written, time.monotonic() - begin)


def _end(group: int) -> None:
    """End a run and the processes of its tests."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def check(run: Run, outcome: Outcome) -> None:
    """Raise `AssertionError`, with all there is to know, unless the run went as it has to."""
    report = outcome.report or {}
    counts = report.get("counts", {})
    good = (
        outcome.status == 0
        and report["verdict"] == ("conformant" if run.seed is None else "partial")
        and not report["problems"]
        and not report["profile"]["unsupported"]
        and not report["profile"]["expected_failures"]
        and not counts["failed"]
        and counts["passed"] > (0 if run.programs else 1500 if run.seed is None else 400)
        and (run.backend == "cpu" or "gpusim" in report["device"]["name"])
    )
    if not good:
        told = (
            f"status {outcome.status}, {report.get('verdict')}, {report.get('problems')}, {counts}"
        )
        message = f"{run.backend}: {run}: {told}\n{worth(outcome.output)}\nTo repeat: {run.command}"
        raise AssertionError(message)


def worth(output: str) -> str:
    """Return what a run said, its threads last and without the dots of tests that passed.

    Who reads it may see no more than its beginning and its end.
    """
    said = re.sub(r"^\.+ +\[ *\d+%\]\n", "", output, flags=re.MULTILINE)
    parts = said[-60000:].split("\n\n")
    return "\n\n".join(sorted(parts, key=lambda part: part.startswith("Thread 0x")))


class Runs:
    """Make the runs of a test module, two at once, in the order in which the tests ask for them."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Begin with the first."""
        self._started: set[int] = set()
        self._is_over = False
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures = {run: self._pool.submit(self._perform, run) for run in runs}

    def _perform(self, run: Run) -> Outcome:
        if self._is_over:
            return Outcome(-1, "not begun", None, 0.0)
        return perform(run, (), self._started, None if run.programs else SECONDS)

    def outcome(self, run: Run) -> Outcome:
        """Return what came of a run, when it is over."""
        faulthandler.cancel_dump_traceback_later()  # of pytest: a run has a limit of its own
        future: Future[Outcome] = self._futures.get(run) or self._pool.submit(self._perform, run)
        return future.result()

    def close(self) -> None:
        """End what still runs."""
        self._is_over = True
        for group in list(self._started):
            _end(group)
        self._pool.shutdown(cancel_futures=True)


def main() -> int:
    """Make one run and show it."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="Other arguments go to pytest."
    )
    parser.add_argument("backend", choices=["cpu", "cuda", "hip"])
    parser.add_argument("--mode", default="auto", choices=["auto", *MODES])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--programs", type=int, default=0, help="random programs and no more")
    parser.add_argument("--own", action="store_true", help="with async_allocations=false")
    parser.add_argument("--memory", action="store_true", help="with semaphores=memory")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="0: no limit")
    parser.add_argument("--plain", action="store_true", help="without the C extension")
    given, rest = parser.parse_known_args()
    run = Run(
        given.backend, given.mode, given.seed, given.programs, given.own, given.plain, given.memory
    )
    outcome = perform(run, rest, seconds=given.seconds or None)
    sys.stdout.write(f"{outcome.output}\n{outcome.seconds:.1f} s\n")
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())
