"""The import of the C extension, and what is told where there is none."""

import importlib
import sysconfig
import types

import pytest

from hal._base import sources, speedups


@pytest.fixture
def load(monkeypatch):
    """Import the extension with an importer and a setting of the environment."""

    def call(importer, setting):
        monkeypatch.setattr(importlib, "import_module", importer)
        monkeypatch.setenv("HAL_SPEEDUPS", setting)
        return speedups._load()

    return call


def raising(**details):
    def importer(_):
        raise ImportError("undefined symbol", **details)

    return importer


NOT_THERE = raising(name="hal._speedups")
BROKEN = raising(name="hal._speedups", path="speedups.so")


def extension(**attributes):
    there = types.ModuleType("there")
    vars(there).update(attributes)
    return there


@pytest.mark.parametrize("setting", ["", "1", "require"])
def test_an_extension_of_the_sources_beside_it_is_used(load, setting):
    there = extension(sources=sources.digest(speedups._SOURCES))
    assert load(lambda _: there, setting) == (there, "")


def test_a_wheel_has_no_sources_to_compare_with(load, monkeypatch, tmp_path):
    monkeypatch.setattr(speedups, "_SOURCES", str(tmp_path / "none"))
    there = extension(sources=1)
    assert load(lambda _: there, "require") == (there, "")


@pytest.mark.parametrize("attributes", [{"sources": -1}, {}], ids=["other sources", "older"])
def test_an_extension_of_other_sources_is_left_out_with_a_warning(load, attributes):
    stale = extension(**attributes)
    with pytest.warns(RuntimeWarning, match=r"built from other sources.*make speedups") as warned:
        module, reason = load(lambda _: stale, "")
    assert len(warned) == 1
    assert module is None
    assert "make speedups" in reason
    with pytest.raises(ImportError, match=r"HAL_SPEEDUPS=require: .*built from other sources"):
        load(lambda _: stale, "require")


def test_the_digest_is_of_the_c_files_alone(tmp_path):
    (tmp_path / "b.c").write_text("int b;")
    (tmp_path / "notes.txt").write_text("ignored")
    first = sources.digest(str(tmp_path))
    (tmp_path / "notes.txt").write_text("still ignored")
    assert sources.digest(str(tmp_path)) == first
    (tmp_path / "a.h").write_text("int a;")
    second = sources.digest(str(tmp_path))
    (tmp_path / "a.h").write_text("int c;")
    assert len({first, second, sources.digest(str(tmp_path))}) == 3


def test_it_is_not_looked_at_where_the_environment_leaves_it_out(load):
    module, reason = load(lambda _: pytest.fail("it was imported"), "0")
    assert module is None
    assert reason.startswith("HAL_SPEEDUPS=0 in the environment")


@pytest.mark.parametrize(
    ("importer", "free_threaded", "words"),
    [
        (NOT_THERE, False, "was not built: install a C compiler"),
        (NOT_THERE, True, "no C extension for a free-threaded Python"),
        (BROKEN, False, "cannot be loaded: undefined symbol"),
        (raising(name="missing"), False, "cannot be loaded: undefined symbol"),
    ],
    ids=["not built", "free-threaded", "broken", "needs what is missing"],
)
def test_the_reason_for_its_absence_is_told(load, monkeypatch, importer, free_threaded, words):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: int(free_threaded))
    module, reason = load(importer, "")
    assert module is None
    assert words in reason
    with pytest.raises(ImportError, match=f"HAL_SPEEDUPS=require: .*{words}"):
        load(importer, "require")


def test_the_engine_in_words(monkeypatch):
    monkeypatch.setattr(speedups, "module", None)
    monkeypatch.setattr(speedups, "why_not", "REASON")
    assert speedups.engine() == "plain Python; REASON"
    monkeypatch.setattr(speedups, "module", types.ModuleType("there"))
    assert speedups.engine() == "with its C extension"
