"""Tell how the answers of two runs of the probe differ.

    python compare.py REAL SIMULATED [--documented differences.md]

Each difference is a line: the question, the first run's answer, the second's.
Those that differences.md lists are not told. The exit status is 1 if any is told.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Difference", "compare", "read_documented"]

_PATTERN = re.compile(r"^\| `(?P<pattern>[^`]+)` \|", re.MULTILINE)
_UNASKED = "setup: one device only"


class Difference(NamedTuple):
    """A question that two runs answer differently."""

    question: str
    first: Any
    second: Any


def read_documented(path: Path) -> list[str]:
    """Return the patterns of questions in the tables of a Markdown file, one a row, in order."""
    return [match["pattern"] for match in _PATTERN.finditer(path.read_text(encoding="utf-8"))]


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    """Return the differences between two runs' answers.

    A question that one run could not ask, for want of a second device, is none.
    """
    a, b = first["answers"], second["answers"]
    unasked = {name for run in (a, b) for name, answer in run.items() if answer == _UNASKED}
    found = []
    for name in [*a, *(name for name in b if name not in a)]:
        if name.partition(": ")[0] in unasked:
            continue
        one, other = a.get(name, "(not asked)"), b.get(name, "(not asked)")
        if one != other:
            found.append(Difference(name, one, other))
    return found


def is_documented(question: str, patterns: list[str]) -> str | None:
    """Return the first pattern that a question's name matches, or None."""
    return next((each for each in patterns if fnmatch.fnmatchcase(question, each)), None)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--documented", type=Path)
    given = parser.parse_args()
    patterns = read_documented(given.documented) if given.documented else []
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (given.first, given.second)]
    told = [d for d in compare(*runs) if is_documented(d.question, patterns) is None]
    for question, one, other in told:
        sys.stdout.write(f"{question}\n    {json.dumps(one)}\n    {json.dumps(other)}\n")
    sys.stderr.write(f"{len(told)} differences\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
