"""Test what holds for the repository as a whole."""

import ast
import importlib
import re
import runpy
import tomllib
import types
from collections import Counter
from pathlib import Path

import pytest

import hal

ROOT = Path(__file__).parents[1]
MEMBERS = ("hal_core", "hal_cpu", "hal_cuda", "hal_hip", "hal_mpi", "hal_nccl", "conformance")
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text()) for name in (".", *MEMBERS)
}
PACKAGES = {
    Path(package).name: ROOT / name / package
    for name in MEMBERS
    for package in PROJECTS[name]["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}
LEFT_BY_TOOLS = {"__pycache__", "build", "dist", "htmlcov", "shared"}


def modules(package):
    """Yield the dotted name and path of each module of a package."""
    for path in sorted(PACKAGES[package].rglob("*.py")):
        parts = path.relative_to(PACKAGES[package].parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def source_files():
    """Yield every text file that belongs to the repository."""
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            if path.name in LEFT_BY_TOOLS or (path.name.startswith(".") and path.name != ".ci"):
                continue
            if path.is_dir():
                folders.append(path)
            elif path != Path(__file__) and path.suffix not in {".png", ".pyc", ".so"}:
                yield path


def has_public_definitions(path):
    body = ast.parse(path.read_text()).body
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(part, definitions) and part.name[0] != "_" for part in body)


def links(text):
    """Return the paths that a document links to, without its examples."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [path for path in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose) if ":" not in path]


def test_every_member_has_one_version():
    assert len({project["project"]["version"] for project in PROJECTS.values()}) == 1


def test_the_changelog_knows_the_version():
    version = PROJECTS["."]["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_plugins_require_the_core_of_their_minor_version():
    major, minor, _ = map(int, PROJECTS["."]["project"]["version"].split("."))
    required = f"hal-core>={major}.{minor},<{major}.{minor + 1}"
    for name in set(MEMBERS) - {"hal_core"}:
        assert required in PROJECTS[name]["project"]["dependencies"], name


def test_the_core_needs_numpy_and_pluggy_alone():
    requirements = PROJECTS["hal_core"]["project"]["dependencies"]
    assert [re.match(r"[\w-]+", text).group() for text in requirements] == ["numpy", "pluggy"]


def test_settings_of_tools_are_in_the_root_only():
    for name in MEMBERS:
        assert set(PROJECTS[name]["tool"]) == {"hatch"}, name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(package):
    assert (PACKAGES[package] / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_docstring(package):
    for name, path in modules(package):
        assert ast.get_docstring(ast.parse(path.read_text())), name


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_what_exists(package):
    for name, path in modules(package):
        # Of these packages the `__init__` says what is public.
        is_inside = name.startswith(("hal.collectives.", "hal.demo.", "hal.flow."))
        if is_inside or "._" in name or ".suite." in name or not has_public_definitions(path):
            continue
        module = importlib.import_module(name)
        assert isinstance(getattr(module, "__all__", None), list), f"{name} has no __all__"
        missing = [entry for entry in module.__all__ if not hasattr(module, entry)]
        assert not missing, name
        assert len(set(module.__all__)) == len(module.__all__), name


def test_hal_exports_what_exists_and_is_documented():
    assert len(set(hal.__all__)) == len(hal.__all__)
    undocumented = [name for name in hal.__all__ if not getattr(hal, name).__doc__]
    assert not undocumented
    expected = {*hal.__all__, "annotations"}  # the latter is what the future statement leaves
    hidden = [name for name in vars(hal) if name[0] != "_" and name not in expected]
    assert not [name for name in hidden if not isinstance(getattr(hal, name), types.ModuleType)]


def test_no_file_names_a_machine():
    pattern = re.compile(r"(?<![\w.~-])/(?:work|root|home|Users)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_links_in_documents_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in source_files()
        if path.suffix == ".md"
        for target in links(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


def test_what_is_left_to_make_check_exists():
    for name in runpy.run_path(str(ROOT / "tests" / "conftest.py"))["CHECK"]:
        file, _, test = name.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert f"def {test}(" in text if test else "def test_" in text, name


def test_the_architecture_names_every_module_once():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## Where the code is\n")[2].partition("\n## ")[0]
    core, named = PACKAGES["hal"], Counter()
    for folder, listed in re.findall(r"^- \*\*(.*?)\*\*(.*(?:\n  .*)*)", section, re.MULTILINE):
        place = "" if folder == "Public modules" else folder.strip("`") + "/"
        named.update(f"{place}{name}.py" for name in re.findall(r"`(\w+)`", listed))
    found = {path.relative_to(core).as_posix() for path in core.rglob("*.py")}
    assert named == Counter(name for name in found if not name.endswith("__init__.py"))


def test_the_architecture_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rules = [line for line in text.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    assert len(rules) > 30
    roots = [ROOT, PACKAGES["hal"], *(path.parent for path in PACKAGES.values())]
    named = set(re.findall(r"`([\w/]+/\w+\.py)`", text))
    assert len(named) > 100
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()
