"""Explore, search or replay cases from the command line; see tests/schedules/README.md."""

import argparse
import sys

from schedlab.catalogue import find, names
from schedlab.choices import ScheduleError
from schedlab.explore import explore, reduce, replay, search, shrink


def main():
    parser = argparse.ArgumentParser(prog="schedlab")
    parser.add_argument("what", choices=("list", "replay", "explore", "reduce", "search"))
    parser.add_argument("case", nargs="?")
    parser.add_argument("choices", nargs="?", default="")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--bound", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out = sys.stdout.write
    if arguments.what == "list":
        out("\n".join(names()) + "\n")
        return 0
    case = find(arguments.case)
    if arguments.what == "replay":
        try:
            scheduler = replay(case, arguments.choices)
        except ScheduleError as failure:
            out(f"{failure}\n")
            return 1
        out("\n".join(scheduler.trace) + "\nno failure\n")
        return 0
    if arguments.what == "explore":
        report = explore(case, bound=arguments.bound, budget=arguments.runs)
    elif arguments.what == "reduce":
        report = reduce(case, budget=arguments.runs)
    else:
        report = search(case, range(arguments.seed, arguments.seed + arguments.runs))
    out(f"{report}\n")
    if report.failure is not None:
        out(f"{shrink(case, report.failure)}\n")
        return 1
    return 0


sys.exit(main())
