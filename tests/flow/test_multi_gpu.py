"""hardware/multi_gpu.py, run small: on the cpu and on a software driver; and what it notices."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import suite_runs
from child_processes import output_of

pytest.importorskip("PIL", reason="the demo extra is not installed")

from PIL import Image

from digits.network import Replica
from hal.flow import Flow

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "hardware"
PARTS = ["transfers", "hops", "merging", "rates", "training", "programs"]


BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}


@pytest.mark.parametrize("backend", ["cpu", "cuda", "hip"])
def test_every_part_passes(tmp_path, backend):
    if backend in BINDINGS:
        pytest.importorskip(BINDINGS[backend], reason="the backend's bindings are not installed")
    command = [sys.executable, FOLDER / "multi_gpu.py", "--backend", backend, "--quick"]
    command += ["--json", tmp_path / "found.json", "--picture", tmp_path / "found.png"]
    output_of(command, env=suite_runs.environment(backend) if backend in BINDINGS else None)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["passed"]
    assert found["machine"]["virtual"] == (backend == "cpu")
    assert list(found["parts"]) == PARTS
    assert all(part["passed"] and part["rows"] for part in found["parts"].values())
    ways = {row["way"] for row in found["parts"]["transfers"]["rows"]}
    expected = {"direct", "staged", "the other's pinned memory"}
    assert ways == expected | ({"between backends"} if backend in BINDINGS else set())
    became = {row["became"] for row in found["parts"]["merging"]["rows"]}
    assert became == {"streaming", "copy"}
    has_raw = ["raw GB/s" in row for row in found["parts"]["rates"]["rows"]]
    assert all(has_raw) if backend == "cuda" else not any(has_raw)
    with Image.open(tmp_path / "found.png") as picture:
        assert picture.width == 1800


@pytest.fixture
def script(monkeypatch):
    """The script's modules, imported for this test."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ["multi_gpu", "multi_gpu_findings", "multi_gpu_parts", "multi_gpu_picture"]
    names.append("multi_gpu_rates")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("multi_gpu")
    for name in names:
        sys.modules.pop(name, None)


def one_byte_short(monkeypatch, parts):
    copy = Flow.copy

    def short(self, source, target, **options):
        return copy(self, source, target, **options, size=max(0, source.size - 1))

    monkeypatch.setattr(Flow, "copy", short)


def another_kernel(monkeypatch, parts):
    monkeypatch.setattr(parts, "SOURCE", parts.SOURCE.replace("theirs[i]", "theirs[i / 2]"))


def another_text(monkeypatch, parts):
    monkeypatch.setattr(parts, "TELLING", parts.TELLING.replace("x[%d] is", "x[%d] was"))


def not_merged(monkeypatch, parts):
    monkeypatch.setattr(Replica, "merge", lambda self: None)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("transfers", one_byte_short),
        ("hops", another_kernel),
        ("merging", another_kernel),
        ("training", not_merged),
        ("programs", another_text),
    ],
)
def test_what_is_wrong_is_noticed(script, monkeypatch, tmp_path, part, change):
    change(monkeypatch, sys.modules["multi_gpu_parts"])
    path = tmp_path / "found.json"
    arguments = ["--backend", "cpu", "--quick", "--only", part, "--json", str(path)]
    assert script.main(arguments) == 1
    assert json.loads(path.read_text(encoding="utf-8"))["parts"][part]["problems"]


def test_a_part_that_fails_does_not_end_the_others(script, monkeypatch, tmp_path, capsys):
    def fails(devices, settings, found):
        found.row(seen=1)
        message = "the cable was unplugged"
        raise RuntimeError(message)

    monkeypatch.setitem(script.PARTS, "hops", fails)
    path = tmp_path / "found.json"
    arguments = ["--backend", "cpu", "--quick", "--only", "hops", "programs", "--json", str(path)]
    assert script.main(arguments) == 1
    found = json.loads(path.read_text(encoding="utf-8"))
    assert not found["passed"]
    assert found["parts"]["hops"]["rows"] == [{"seen": 1}]
    assert found["parts"]["hops"]["problems"] == ["RuntimeError: the cable was unplugged"]
    assert found["parts"]["programs"]["passed"]
    assert "FAILED" in capsys.readouterr().out
