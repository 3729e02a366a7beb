"""Every test of the suite can fail: it notices a mutant, or a reason says why it need not."""

import ast
from fnmatch import fnmatchcase

import matrix
from conformance_harness import SUITE
from mutants import MUTANTS
from unnoticed import REASONS

HINT = "run python tests/conformance/matrix.py"
TESTS = matrix.load()
UNNOTICED = [test for test, names in TESTS.items() if not names]


def test_every_test_is_in_the_table():
    here = {
        f"{path.relative_to(SUITE).as_posix()}::{node.name}"
        for path in SUITE.rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert len(here) > 500
    assert set(TESTS) == here, HINT


def test_what_the_table_says_was_noticed_is_a_mutant():
    named = {name for names in TESTS.values() for name in names}
    assert named <= {mutant.name for mutant in MUTANTS}, HINT


def test_what_notices_nothing_has_a_reason():
    assert not [
        test for test in UNNOTICED if not any(fnmatchcase(test, glob) for glob in REASONS)
    ], "add a mutant to a table of mutants.py, or a reason to unnoticed.py"


def test_no_reason_is_stale():
    assert not [glob for glob in REASONS if not any(fnmatchcase(test, glob) for test in UNNOTICED)]
    assert not [glob for glob in REASONS if TESTS.get(glob)]


def test_most_tests_notice_a_mutant():
    assert len(UNNOTICED) < len(TESTS) / 10
