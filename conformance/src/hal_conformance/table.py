"""Render the table of features from reports that are kept, into a document.

    python -m hal_conformance.table REPORTS DOCUMENT [--check]

REPORTS is a folder of reports, DOCUMENT the Markdown file whose text between
the two lines of `MARKERS` is replaced. With ``--check`` nothing is written, and
the exit status is 1 if the text is not what the reports give.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from hal_conformance.report import one_line

__all__ = ["AREAS", "MARKERS", "area", "cell", "load", "place", "render"]

MARKERS: Final = ("<!-- conformance: begin -->", "<!-- conformance: end -->")

AREAS: Final = (
    # The title of a row, and the tests that it counts; the first match counts.
    ("timeline semaphores (S1 to S9)", ("semaphores/*",)),
    ("failures, lost devices (S5)", ("failure/*",)),
    ("queues, transfers, host calls (Q1 to Q6)", ("queues/*",)),
    ("files (Q4)", ("files/*",)),
    ("indirect dispatch (C1)", ("command_buffers/test_indirect.py*",)),
    ("graphs and streams alike (C4)", ("command_buffers/test_lowering.py*",)),
    ("command buffers (C1 to C3)", ("command_buffers/*",)),
    ("kernels (C5)", ("kernels/*", "executables/*")),
    (
        "allocation in the order of a queue (M3)",
        (
            "memory/test_alloca.py*",
            "memory/test_dealloca.py*",
            "memory/test_transient.py*",
            "memory/test_stream_order.py*",
            "memory/test_starv*.py*",
            "memory/test_recorded_memory.py*",
            "memory/test_bad_input.py*",
        ),
    ),
    ("import of host memory (M1)", ("memory/test_import.py*",)),
    ("buffers and views (M1, M2)", ("memory/*",)),
    ("arrays of other libraries, DLPack (M2)", ("interop/*",)),
    ("devices and their features", ("devices/*",)),
    ("any calls in any order", ("model/*",)),
    ("tracked buffers, virtual devices (hal.flow)", ("flow/*",)),
    ("collectives (G1 to G4)", ("collectives/*",)),
)
OTHERS: Final = "others"


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the reports of a folder, by the names of their files, in order."""
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }


def area(test: str) -> str:
    """Return which row of the table a test's id belongs to."""
    for title, patterns in AREAS:
        if any(fnmatch(test.partition("[")[0], pattern) for pattern in patterns):
            return title
    return OTHERS


def cell(counts: Mapping[str, int]) -> str:
    """Describe the results of some tests by the number in each status."""
    total = sum(counts.values())
    ran = total - counts.get("not_run", 0)
    if not ran:
        return "not run"
    if counts.get("failed"):
        return f"**{counts['failed']} of {total} failed**"
    if counts.get("unsupported", 0) == total:
        return "unsupported"
    passed = counts.get("passed", 0)
    return f"passed ({total})" if passed == total else f"partial ({passed} of {total})"


def render(reports: Mapping[str, Mapping[str, Any]], folder: str) -> str:
    """Return the table; `folder` is where the document finds the reports."""
    columns = list(reports.values())
    rows = [
        ["", *(f"{each['backend']}, {each['mode']}" for each in columns)],
        ["---"] * (len(columns) + 1),
        ["ran on", *(_place(each) for each in columns)],
        ["engine", *(one_line(each.get("engine", "not recorded")) for each in columns)],
    ]
    counted = [_counts(each["tests"]) for each in columns]
    rows += [
        [title, *(cell(counts.get(title, {})) for counts in counted)]
        for title in (*(title for title, _ in AREAS), OTHERS)
        if any(title in counts for counts in counted)
    ]
    rows.append(["all", *(cell(each["counts"]) for each in columns)])
    links = (f"{folder}/{Path(name).with_suffix('.md')}" for name in reports)
    rows.append(
        [
            "verdict",
            *(
                f"[{each['verdict'].replace('_', ' ')}]({link}), {each['date']}"
                for each, link in zip(columns, links, strict=True)
            ),
        ]
    )
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows) + "\n"


def place(document: str, table: str) -> str:
    """Return a document with the table between its markers; raises `ValueError` without them."""
    begin, end = MARKERS
    found = re.findall(f"{re.escape(begin)}\n.*?{re.escape(end)}", document, re.DOTALL)
    if len(found) != 1:
        message = f"the document has no place for the table: lines {begin} and {end}, once each"
        raise ValueError(message)
    return document.replace(found[0], f"{begin}\n\n{table}\n{end}")


def _place(report: Mapping[str, Any]) -> str:
    """Describe what a report's tests ran on."""
    name = (report["device"] or {}).get("name", "nothing")
    return one_line(f"{name}: {report['note']}" if report["note"] else name)


def _counts(tests: Sequence[Mapping[str, str]]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for test in tests:
        counts.setdefault(area(test["id"]), Counter())[test["status"]] += 1
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hal_conformance.table",
        description="Render the table of features from reports into a document.",
    )
    parser.add_argument("reports", type=Path, metavar="REPORTS", help="a folder of reports")
    parser.add_argument("document", type=Path, metavar="DOCUMENT", help="a Markdown file")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    options = parser.parse_args(arguments)
    try:
        folder = os.path.relpath(options.reports, options.document.parent)
        text = options.document.read_text(encoding="utf-8")
        wanted = place(text, render(load(options.reports), Path(folder).as_posix()))
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    if options.check:
        return int(text != wanted)
    options.document.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
