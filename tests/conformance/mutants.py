"""Keep wrong copies of the core and of the reference backend, and run the suite on them.

A mutant is one or a few textual patches that make one mistake, and the tests of
the suite that must fail for it. The patches are applied as the modules are
imported, in a child process and in those that it starts; no file is changed.
They stand in the tables of the folder `tables`, by what the mistakes are in.

    python tests/conformance/mutants.py NAME [TEST...]   tests of the suite on one mutant, or on
                                                         "all"; by default those named for it

The suite as a whole is run on them by `matrix.py`, which keeps in `caught.json`
which tests notice which mutants.
"""

# ruff: noqa: T201 - the script prints

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutant_tables import read_mutants

from hal_conformance.child import command, environment

SUITE = Path(importlib.util.find_spec("hal_conformance").origin).parent / "suite"
WORKERS = 2
SECONDS = 90.0
"""What the run of one mutant may take; one that takes more has died."""
ATTEMPTS = 4
"""How often a test may run on a mutant, of which one must notice it."""
INTERNAL_ERROR = 3
"""What pytest exits with if it breaks off by a mistake of its own, or of a plugin."""

SITE = '''
"""Patch modules as they are imported; Python imports this file by itself."""

import importlib.machinery
import json
import os
import sys

with open(os.environ["HAL_MUTANT"], encoding="utf-8") as file:
    PATCHES = json.load(file)


class Loader(importlib.machinery.SourceFileLoader):
    """Give a patched text to all that ask, and compile it, past the cache of compiled modules."""

    def get_data(self, path):
        if path != self.path:
            return super().get_data(path)
        text = super().get_data(path).decode()
        for module, old, new in PATCHES:
            if module == self.name:
                assert text.count(old) == 1, (module, old)
                text = text.replace(old, new)
        return text.encode()

    def get_code(self, fullname):
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)


class Finder:
    """Find the modules that are to be patched where they are found without this."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in {module for module, _, _ in PATCHES}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
'''


class PatchError(Exception):
    """Report a patch that does not apply any more."""


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must occur exactly once in a module's file, by `new`."""

    module: str
    old: str
    new: str

    def check(self):
        """Raise unless it applies."""
        path = find_source(self.module)
        times = path.read_text(encoding="utf-8").count(self.old)
        if times != 1:
            message = f"{self.old!r} occurs {times} times in {path.name}, not once: mend the mutant"
            raise PatchError(message)


@functools.cache
def find_source(module):
    """Return where a module's file is."""
    return Path(importlib.util.find_spec(module).origin)


@dataclass(frozen=True)
class Mutant:
    """Which mistake is made, and which tests must fail for it: files, or tests in them."""

    name: str
    tests: tuple
    patches: tuple


@dataclass(frozen=True)
class Outcome:
    """The results of a run.

    Attributes
    ----------
    statuses
        Of each test that was run, by id; none if the process died.
    died
        How the process ended, if that was before it could report.
    """

    statuses: dict
    died: str
    seconds: float
    output: str

    def failed(self):
        """Return the ids of the tests that failed."""
        return [name for name, status in self.statuses.items() if status == "failed"]

    def missed(self, tests):
        """Return those of `tests`, which may have several cases, of which no case failed."""
        failed = self.failed()
        return [
            test
            for test in ([] if self.died else tests)
            if not any(
                name == test or name.startswith((f"{test}[", f"{test}::")) for name in failed
            )
        ]


HASTE = (
    # What a mutant never does is waited for less long.
    Patch("hal_conformance.suite.support", "LIMIT: Final = 10.0", "LIMIT: Final = 2.0"),
    Patch("hal_conformance.session", "TIME_LIMIT: Final = 100", "TIME_LIMIT: Final = 9"),
    Patch("hal_conformance.bench", "_SECONDS: Final = 5.0", "_SECONDS: Final = 0.5"),
)

PROGRAMS = {"HAL_CONFORMANCE_PROGRAMS": "60"}
"""Random programs that look for a mutant: on a busy machine as many as on any other."""


@contextlib.contextmanager
def patched(patches):
    """Give the environment variables of a process, and of its children, that has the patches."""
    for patch in patches:
        patch.check()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITE, encoding="utf-8")
        chosen = Path(folder, "patches.json")
        texts = [(patch.module, patch.old, patch.new) for patch in patches]
        chosen.write_text(json.dumps(texts), encoding="utf-8")
        path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        # The patches are of Python lines, for which the C extension would stand in.
        more = {"HAL_SPEEDUPS": "0"}
        if any(patch.module.startswith(("hal_cpu._", "hal.dialect")) for patch in patches):
            more["HAL_CACHE_DIR"] = str(Path(folder, "cache"))  # the key of an image is of files
        yield {"HAL_MUTANT": str(chosen), "PYTHONPATH": os.pathsep.join(path)} | more


def run(patches, tests, seconds=SECONDS, *, is_first=True):
    """Run tests of the suite on the reference backend with patches; return the `Outcome`."""
    with patched(patches) as variables, tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        arguments = [*(str(SUITE / test) for test in tests), "--hal-backend", "cpu", "--tb=line"]
        arguments += ["--hal-report", str(report)]
        begin = time.monotonic()
        died = output = ""
        try:
            done = subprocess.run(
                command(arguments, folder),
                env=environment() | variables | PROGRAMS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
            output = done.stdout.decode(errors="replace")
            if done.returncode < 0:
                died = f"the suite's process was ended by signal {-done.returncode}"
            elif done.returncode == INTERNAL_ERROR and is_first:
                # pytest itself broke off. If chance had a part in it, it does not do so twice.
                return run(patches, tests, seconds, is_first=False)
            elif done.returncode > 1 or not report.exists():
                # No such test, a module that cannot be imported: that is no mistake found.
                message = f"pytest exited with {done.returncode}\n{output}"
                raise RuntimeError(message)
        except subprocess.TimeoutExpired as error:
            died = f"the suite's process did not end within {seconds:g} seconds"
            output = (error.stdout or b"").decode(errors="replace")
        seconds = time.monotonic() - begin
        if died:
            return Outcome({}, died, seconds, output)
        found = json.loads(report.read_text(encoding="utf-8"))["tests"]
    statuses = {test["id"]: test["status"] for test in found if test["status"] != "not_run"}
    return Outcome(statuses, "", seconds, output)


def attempt(mutant, tests=()):
    """Run tests on a mutant once, by default those that are named for it; return the `Outcome`."""
    return run((*mutant.patches, *HASTE), tests or mutant.tests)


def run_mutant(mutant, attempts=ATTEMPTS):
    """Run a mutant's tests on it, those that missed it several times; return the `Outcome`.

    Some mistakes show only where a thread of the core comes before another, which the tests
    leave to the system. So a test may miss such a mistake once, but not in each attempt.
    """
    outcome = attempt(mutant)
    for _ in range(attempts - 1):
        missed = outcome.missed(mutant.tests)
        if not missed:
            break
        again = attempt(mutant, missed)
        outcome = Outcome(
            outcome.statuses | again.statuses,
            again.died,
            outcome.seconds + again.seconds,
            outcome.output + again.output,
        )
    return outcome


TABLES = (
    *("native", "dialect", "semaphore", "queue", "resource", "memory", "buffer", "collective"),
    *("coarse", "host", "state", "flow"),  # those that many tests notice
)


def table(name):
    """Return the mutants of a table."""
    found = read_mutants(Path(__file__).parent / "tables" / f"{name}.txt")
    return [
        Mutant(name, tests, tuple(Patch(*patch) for patch in patches))
        for name, tests, patches in found
    ]


MUTANTS = tuple(mutant for name in TABLES for mutant in table(name))


def find(name):
    """Return the mutant of a name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def main(arguments):
    """Run the script; see above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("tests", metavar="TEST", nargs="*")
    options = parser.parse_args(arguments)
    mutants = MUTANTS if options.name == "all" else [find(options.name)]

    def one(mutant):
        return mutant, attempt(mutant, options.tests)

    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, outcome in pool.map(one, mutants):
            failed = sorted({name.partition("[")[0] for name in outcome.failed()})
            found = outcome.died or f"{len(outcome.failed())} of {len(outcome.statuses)} failed"
            print(f"{mutant.name}: {found}, {outcome.seconds:.1f} s", *failed, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1:])
