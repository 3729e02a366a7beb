"""Run the suite on the mutants, and keep which tests notice which of them.

    python tests/conformance/matrix.py           the tests that notice none so far, new ones among
                                                 them, on one mutant after another until they do
    python tests/conformance/matrix.py NAME...   all tests on these mutants (a minute each)
    python tests/conformance/matrix.py --all     all tests on all mutants (about two hours)
    python tests/conformance/matrix.py --check   each test on the mutants that it notices

With -j N so many mutants are tried at once, each in a process with a folder of its own. With
--part K/M only each M-th mutant is; what the table says of the others stays.

What comes of it is `caught.json` beside this file: for each test up to three
mutants that it fails on, and none for a test that passed on all; the cases of
one test count as one. `unnoticed.py` says why such a test stands in the suite
all the same.

A mutant may end the process of the suite, or hang in test after test: what is
left is then run in another process, until the mutant's time is over.
"""

# ruff: noqa: T201 - the script prints

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
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


def observe(patches, tests=()):
    """Run tests of the suite with patches; return those that failed and those that were run."""
    statuses = {}
    deadline = time.monotonic() + SECONDS

    def note(event):
        if "ended" in event:
            statuses[event["ended"]] = event["status"]
        if time.monotonic() > deadline:
            raise TimeOverError

    with patched(patches) as values, variables(values):
        try:
            for _ in range(STARTS):
                report = runner.run("cpu", tests=tests, on_event=note)
                states = {test["id"]: test["status"] for test in report["tests"]}
                tests = [test for test, status in states.items() if status == "not_run"]
                statuses |= {test: state for test, state in states.items() if state != "not_run"}
                if not tests:
                    break
        except TimeOverError:
            pass
    failed = {plain(test) for test, status in statuses.items() if status == "failed"}
    return failed, {plain(test) for test in statuses}


def job(name, tests):
    """Run tests, by default all, on a mutant; return what `observe` does, and the seconds."""
    mutant = find(name)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, variables({"TMPDIR": folder}):
        found = observe((*mutant.patches, *HASTE), tests)
    return *found, time.monotonic() - begin


def add(jobs, count):
    """Run jobs, pairs of a mutant's name and tests, so many at once; keep the table up to date."""
    with ProcessPoolExecutor(count, max_tasks_per_child=1) as pool:
        running = {pool.submit(job, name, tests): name for name, tests in jobs}
        for each in as_completed(running):
            name = running[each]
            failed, seen, seconds = each.result()
            table = load()
            for test in seen:
                others = [other for other in table.get(test, ()) if other != name]
                table[test] = [*others, name] if test in failed else others
            save(table)
            print(f"{name}: {len(failed)} of {len(seen)} failed, {seconds:.0f} s", flush=True)


def main(arguments):
    """Run the script; see above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--part", default="1/1", metavar="K/M")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="mutants at once")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.part.split("/"))
    chosen = [find(name) for name in options.names] or MUTANTS[part - 1 :: parts]
    names = [mutant.name for mutant in reversed(chosen)]  # the last tables' take longest
    forgotten = names if options.all else ()
    before = load()
    save({t: [n for n in before.get(t, ()) if n not in forgotten] for t in collect()})
    if options.all or options.names:
        add([(name, ()) for name in names], options.j)
    elif options.check:
        table = load()
        noticed = {name: [test for test in table if name in table[test]] for name in names}
        add([(name, tests) for name, tests in noticed.items() if tests], options.j)
    else:
        for start in range(0, len(names), options.j):
            tests = [test for test, noticed in load().items() if not noticed]
            if tests:
                add([(name, tests) for name in names[start : start + options.j]], options.j)
    table = load()
    never = [test for test, noticed in table.items() if not noticed]
    print(f"{len(never)} of {len(table)} tests notice no mutant", *never, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1:])
