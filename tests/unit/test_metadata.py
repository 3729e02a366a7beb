"""What the members of the workspace say of themselves, and what hal tells users to install."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEMBERS = [path.parent for path in sorted(ROOT.glob("*/pyproject.toml"))]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]
SOURCES = [path for member in MEMBERS for path in member.glob("src/**/*.py")]
OWN_EXAMPLE = {"./hal_acme"}
"""The plugin whose writing a page tells of."""


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_the_readme_renders_without_the_repository(member):
    """A package index shows it with nothing beside it, so that a relative link leads nowhere."""
    text = (member / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# hal-")
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_the_metadata_says_whom_it_is_for(member):
    project = tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = project["classifiers"]
    least = int(project["requires-python"].removeprefix(">=3."))
    for minor in range(least, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in said
    for begin in ("Development Status", "Intended Audience", "Operating System", "Topic"):
        assert [each for each in said if each.startswith(begin)], begin
    assert said == sorted(said, key=lambda each: each.split(" :: "))
    assert project["description"]
    assert project["keywords"]


def test_advice_names_what_can_be_installed_from_here():
    """No distribution of the workspace is on an index: it is installed from its folder."""
    found = []
    for path in (*PAGES, *SOURCES):
        for line in re.findall(r"pip install ([^\n]+)", path.read_text(encoding="utf-8")):
            for word in re.findall(r"(?:\./)?\bhal[-_]\w+|\./\w+", line.partition("#")[0]):
                folder = ROOT / word
                if word not in OWN_EXAMPLE and (
                    not word.startswith("./") or not (folder / "pyproject.toml").is_file()
                ):
                    found.append(f"{path.relative_to(ROOT)}: {word}")
    assert found == []
