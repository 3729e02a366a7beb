"""The import of the C extension, and what is told where there is none."""

from __future__ import annotations

import importlib
import sysconfig
import types

import pytest

from hal._base import speedups


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


@pytest.mark.parametrize("setting", ["", "1", "require"])
def test_an_extension_that_is_there_is_used(load, setting):
    there = types.ModuleType("there")
    assert load(lambda _: there, setting) == (there, "")


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
