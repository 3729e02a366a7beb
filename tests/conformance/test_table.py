"""The table of the model's cases: complete, and every id in it exists."""

import ast
import re

from conformance_harness import ROOT, SUITE

TABLE = ROOT / "conformance" / "iree-cases.md"
CASES = 207


def table():
    """Return ``(section, case, what stands beside it)`` for every row."""
    section, rows = "", []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        row = re.fullmatch(r"\| (\w+) \| (.+) \|", line)
        if row and row.group(1) != "case":
            rows.append((section, *row.groups()))
    return rows


def test_every_case_is_there_once():
    rows = table()
    assert len(rows) == CASES
    assert len({row[:2] for row in rows}) == CASES


def test_every_case_has_a_test_or_a_reason():
    for section, case, beside in table():
        says_why = re.match(r"(none|to come): \w", beside)
        assert says_why or re.fullmatch(r"`[^`]+`(, `[^`]+`)*", beside), f"{section} {case}"


def test_every_id_exists():
    defined = set()
    for path in SUITE.rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                defined.add(f"{path.relative_to(SUITE).as_posix()}::{node.name}")
    named = {name for row in table() for name in re.findall(r"`([^`]*::[^`]*)`", row[2])}
    assert len(named) > 50
    assert named <= defined, sorted(named - defined)
