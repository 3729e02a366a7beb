"""What is found of the files that installers write, as `importlib.metadata` finds it."""

import re
import sys
import zipfile
from importlib import metadata

import pytest

from hal._backends.installed import entry_points

GROUP = "made.up"
TEXT = """
[console_scripts]
other = other:main

[made.up]
# a comment
one = package.module:attribute.inner [extra]
two=module
[made.up.other]
three = module
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A folder that alone is searched."""
    metadata.metadata("pytest")  # has it import what it reads records with, while that is found
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def announce(folder, record="made_up-1.0.dist-info", text=TEXT):
    info = folder / record
    info.mkdir(parents=True)
    name, version = record.rpartition(".")[0].split("-")
    (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(text)


def found():
    return {(*each[:2], each.distribution.lower(), each.version) for each in entry_points(GROUP)}


def expected():
    """Return what `importlib.metadata` finds, with the distributions' names as pip writes them."""
    return {
        (each.name, each.value, re.sub("[-_.]+", "-", each.dist.name).lower(), each.dist.version)
        for each in metadata.entry_points(group=GROUP)
    }


def test_those_of_this_interpreter():
    ours = {(each.name, each.value) for each in entry_points("console_scripts")}
    assert ours == {(e.name, e.value) for e in metadata.entry_points(group="console_scripts")}
    assert ours


def test_the_lines_of_a_group(path):
    announce(path)
    announce(path, "Other_Name-2.egg-info", "[made.up]\nfour = module:name\n")
    (path / "file.egg-info").write_text("Name: file")
    (path / "empty-1.dist-info").mkdir()
    assert found() == expected()
    assert {name for name, *_ in found()} == {"one", "two", "four"}


def test_the_first_distribution_of_a_name_counts(path, monkeypatch):
    later = path / "later"
    announce(path, "made_up-2.0.dist-info", "[made.up]\nnew = module\n")
    announce(later, "Made.Up-1.0.dist-info")
    monkeypatch.setattr(sys, "path", [str(path), str(path / "missing"), str(later)])
    assert {name for name, *_ in found()} == {"new"}
    assert found() == expected()


def test_what_is_no_text_on_the_path_is_passed_over(path, monkeypatch):
    """As by imports: a path object, which many programs append, broke every call."""
    announce(path)
    monkeypatch.setattr(sys, "path", [path / "later", b"/", None, str(path)])
    announce(path / "later", "other-1.0.dist-info", "[made.up]\nnew = module\n")
    assert {name for name, *_ in found()} == {"one", "two"}


def test_an_archive_on_the_path_is_searched(path, monkeypatch):
    archive = path / "plugins.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("made_up-1.0.dist-info/METADATA", "Name: made-up\nVersion: 1.0\n")
        file.writestr("made_up-1.0.dist-info/entry_points.txt", TEXT)
    monkeypatch.setattr(sys, "path", [str(path), str(archive)])
    assert found() == expected()
    assert len(found()) == 2


def test_finders_of_others_are_asked(path, monkeypatch):
    announce(path / "elsewhere")

    class Finder:
        @staticmethod
        def find_distributions(_):
            return [metadata.Distribution.at(path / "elsewhere" / "made_up-1.0.dist-info")]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert found() == expected()
    assert len(found()) == 2


@pytest.mark.parametrize("value", ["os.path:sep", "os.path : sep [extra]", "os:path.sep"])
def test_what_a_value_names_is_imported(path, value):
    announce(path, text=f"[made.up]\nname = {value}\n")
    (entry,) = entry_points(GROUP)
    assert entry.load() == "/"


def test_a_module_alone_is_imported(path):
    announce(path, text="[made.up]\nname = sys\n")
    (entry,) = entry_points(GROUP)
    assert entry.load() is sys
