"""Run what the documents show, and look for what they promise to mention."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import run_command

import hal
from hal.native import NativeDevice, NativeDriver

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RULES = {
    "semaphores.md": [f"S{number}" for number in range(1, 10)],
    "queues.md": [f"Q{number}" for number in range(1, 8)],
    "memory.md": [f"M{number}" for number in range(1, 4)],
    "command-buffers.md": [f"C{number}" for number in range(1, 5)],
}

_FENCE = re.compile(r"^```(?P<info>.*)\n(?P<code>(?:(?!```).*\n)*?)```$", re.MULTILINE)


def program(text: str) -> str:
    """Return a page's runnable Python blocks as one program, each on its lines of the page.

    Everything else becomes empty lines, so that a traceback tells the page's lines.
    """
    lines = [""] * text.count("\n")
    for block in _FENCE.finditer(text):
        if block["info"].strip() == "python":
            first = text.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's program in a process of its own."""
    script = folder / "page.py"
    script.write_text(program(text), encoding="utf-8")
    return run_command([sys.executable, "-W", "error", "-X", "faulthandler", script], cwd=folder)


def title(page: Path) -> str:
    """Return what a test calls a page."""
    return page.relative_to(ROOT).as_posix()


RUNNABLE = [page for page in PAGES if program(page.read_text(encoding="utf-8")).strip()]


@pytest.mark.parametrize("page", RUNNABLE, ids=title)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    done = run(page.read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_python_blocks_are_marked_as_runnable_or_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0, "a block is not closed"
    for block in _FENCE.finditer(text):
        info = block["info"].strip()
        if info.split(" ")[0] in {"py", "python", "python3", "pycon"}:
            assert info in {"python", "python no-run"}
            compile(block["code"], title(page), "exec")


def test_a_failing_example_is_found_and_located(tmp_path: Path) -> None:
    text = "text\n\n```python no-run\n1 / 0\n```\n\n```python\nvalue = 1\n```\n\n"
    assert run(text, tmp_path).returncode == 0
    done = run(f"{text}```python\nassert value == 2\n```\n", tmp_path)
    assert done.returncode == 1
    assert "line 12," in done.stderr


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in DOCS.glob("*.md") if f"]({page.name})" not in index]
    assert missing == ["README.md"]


@pytest.mark.parametrize("page", RULES)
def test_every_rule_has_its_section_in_order(page: str) -> None:
    headings = re.findall(r"^## ([A-Z]\d+)\. ", (DOCS / page).read_text(), re.MULTILINE)
    assert headings == RULES[page]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_modules_named_in_the_text_exist(page: Path) -> None:
    package = ROOT / "hal_core" / "src" / "hal"
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("Code: "):
            code, _, tests = line.partition("Tests: ")
            named = re.findall(r"`([\w/]+\.py)`", code)
            assert named, line
            assert [name for name in named if not (package / name).is_file()] == []
            for folder in re.findall(r"`(tests/\w+)`", tests):
                assert (ROOT / folder).is_dir(), line


def test_every_rule_that_names_tests_has_some() -> None:
    folders = (ROOT / "tests" / "core", ROOT / "conformance" / "src" / "hal_conformance" / "suite")
    sources = [path.read_text() for folder in folders for path in folder.rglob("test_*.py")]
    tests = set(re.findall(r"def test_\w+?(_[a-z]\d+)\(", "\n".join(sources)))
    named = {
        suffix
        for page in DOCS.glob("*.md")
        for suffix in re.findall(r"`-k (_\w+)`", page.read_text(encoding="utf-8"))
    }
    assert named - tests == set()


def test_every_error_stands_in_the_table() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\| `(\w+)` \|", text, flags=re.MULTILINE)
    found = {name: (builtin, status) for name, builtin, status in rows}
    assert found.keys() == set(hal.errors.__all__)
    for name, (builtin, status) in found.items():
        kind = getattr(hal.errors, name)
        assert kind.status == status
        builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        assert builtins == ([builtin] if builtin else [])


def test_every_primitive_stands_in_the_guide() -> None:
    text = (DOCS / "write-a-backend.md").read_text(encoding="utf-8")
    for kind in (NativeDriver, NativeDevice):
        for name in kind.__abstractmethods__:
            assert f"`{name}`" in text or f"def {name}(" in text, name
