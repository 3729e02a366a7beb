"""Run the suite on the mutants, and keep which tests notice which of them.

    python tests/conformance/matrix.py           the tests that notice none so far, new ones among
                                                 them, on one mutant after another until they do
    python tests/conformance/matrix.py NAME...   all tests on these mutants (a minute each)
    python tests/conformance/matrix.py --all     all tests on all mutants (about two hours)
    python tests/conformance/matrix.py --check   each test on the mutants that it notices

What comes of it is `caught.json` beside this file: for each test up to three
mutants that it fails on, and none for a test that passed on all; the cases of
one test count as one. `unnoticed.py` says why such a test stands in the suite
all the same.

One process runs at a time. A mutant may end it, or hang in test after test: what
is left is then run in another process, until the mutant's time is over.
"""

# ruff: noqa: T201 - the script prints

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from mutants import HASTE, MUTANTS, find, patched

from hal_conformance import runner

TABLE = Path(__file__).parent / "caught.json"
NAMES = 3
"""How many mutants are kept for a test."""
SECONDS = 400.0
"""How long the suite may run on one mutant."""
STARTS = 50
"""How often it may be started on one mutant."""


class TimeOverError(Exception):
    """Report that a mutant has had its time."""


def plain(test):
    """Return a test's id without its case."""
    return test.partition("[")[0]


def load():
    """Return the table: the mutants that each test notices."""
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def save(table):
    """Write the table, a line for each test."""
    order = {mutant.name: number for number, mutant in enumerate(MUTANTS)}
    lines = []
    for test in sorted(table):
        names = sorted({name for name in table[test] if name in order}, key=order.get)[:NAMES]
        lines.append(f"{json.dumps(test)}: {json.dumps(names)}")
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@contextlib.contextmanager
def variables(values):
    """Set variables of the environment, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def collect():
    """Return the ids of the suite's tests, without cases."""
    with variables({"HAL_CPU_DEVICES": "none"}):
        return sorted({plain(test["id"]) for test in runner.run("cpu")["tests"]})


def observe(patches, mode="auto", tests=(), seconds=SECONDS):
    """Run tests of the suite with patches; return those that failed and those that were run."""
    statuses = {}
    deadline = time.monotonic() + seconds

    def note(event):
        if "ended" in event:
            statuses[event["ended"]] = event["status"]
        if time.monotonic() > deadline:
            raise TimeOverError

    with patched(patches) as values, variables(values):
        try:
            for _ in range(STARTS):
                report = runner.run("cpu", mode=mode, tests=tests, on_event=note)
                states = {test["id"]: test["status"] for test in report["tests"]}
                tests = [test for test, status in states.items() if status == "not_run"]
                statuses |= {test: state for test, state in states.items() if state != "not_run"}
                if not tests:
                    break
        except TimeOverError:
            pass
    failed = {plain(test) for test, status in statuses.items() if status == "failed"}
    return failed, {plain(test) for test in statuses}


def add(mutant, tests=()):
    """Run tests, by default all, on a mutant, and bring the table up to date."""
    begin = time.monotonic()
    failed, seen = observe((*mutant.patches, *HASTE), mutant.mode, tests)
    table = load()
    for test in seen:
        others = [name for name in table.get(test, ()) if name != mutant.name]
        table[test] = [*others, mutant.name] if test in failed else others
    save(table)
    seconds = time.monotonic() - begin
    print(f"{mutant.name}: {len(failed)} of {len(seen)} failed, {seconds:.0f} s", flush=True)


def main(arguments):
    """Run the script; see above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    before = {} if options.all else load()
    save({test: before.get(test, []) for test in collect()})
    if options.all or options.names:
        for mutant in [find(name) for name in options.names] or MUTANTS:
            add(mutant)
    elif options.check:
        for mutant in MUTANTS:
            tests = [test for test, names in load().items() if mutant.name in names]
            if tests:
                add(mutant, tests)
    else:
        for mutant in MUTANTS:
            tests = [test for test, names in load().items() if not names]
            if tests:
                add(mutant, tests)
    table = load()
    never = [test for test, names in table.items() if not names]
    print(f"{len(never)} of {len(table)} tests notice no mutant", *never, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1:])
