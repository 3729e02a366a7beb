"""docs/bug-classes.md names what would find each class of mistakes; all of it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "bug-classes.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", TEXT, re.MULTILINE))
FOLDERS = {"suite": ROOT / "conformance" / "src" / "hal_conformance" / "suite"}
SCHEDULES = ROOT / "tests" / "schedules" / "schedlab"


def strings(*names: str) -> set[str]:
    """Return every text that stands in modules of the schedules."""
    return {
        node.value
        for name in names
        for node in ast.walk(ast.parse((SCHEDULES / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


CASES = strings("cases.py", "faults.py", "memory.py", "refusals.py", "shortage.py")
SCENARIOS = (SCHEDULES / "scenarios.txt").read_text(encoding="utf-8").splitlines()
CASES |= {line.partition(" | ")[0] for line in SCENARIOS}
MUTANTS = {
    line.removeprefix("= ")
    for path in (SCHEDULES / "planted").glob("*.txt")
    for line in path.read_text(encoding="utf-8").splitlines()
}


def is_case(name: str) -> bool:
    """Return whether a case has a name; some are put together of a word and a primitive."""
    first, _, rest = name.partition(" ")
    title = name.partition(", ")[0]
    return name in CASES or title in CASES or (first == "refused" and rest in CASES)


def functions(file: Path) -> set[str]:
    """Return the names of a file's tests, or of those that it takes from its harness."""
    text = file.read_text(encoding="utf-8")
    return set(re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))


def test_every_class_has_a_row() -> None:
    assert list(map(int, ROWS)) == list(range(1, 66))


@pytest.mark.parametrize("number", ROWS)
def test_what_a_row_names_exists(number: str) -> None:
    row = ROWS[number]
    found = 0
    for folder, path, name in re.findall(r"`(\w+)/([\w/]+\.py)::(\w+)`", row):
        file = FOLDERS.get(folder, ROOT / "tests" / folder) / path
        assert file.is_file(), file
        assert name in functions(file), f"{file} has no {name}"
        found += 1
    for kind, names in re.findall(r"\b([Cc]ase|mutant)s? ((?:`[^`]+`(?:, | and )?)+)", row):
        for name in re.findall(r"`([^`]+)`", names):
            assert is_case(name) if kind != "mutant" else name in MUTANTS, f"no {kind} {name!r}"
            found += 1
    assert found, "it names nothing"
