"""benchmarks/lowering.py runs, writes what it found, and draws the line where it says (C4)."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from child_processes import output_of

for module in ("rich", "click", "hal_cpu"):
    pytest.importorskip(module)

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "lowering.py"
COUNTS = [1, 2, 4, 10, 32, 100]


def test_it_measures_a_device_c4(tmp_path):
    path = tmp_path / "found.json"
    options = ["--rounds", "2", "--seconds", "3", "--json", path]
    told = output_of([sys.executable, SCRIPT, "cpu", *options])
    record = json.loads(path.read_text())
    assert record["command"] == "python benchmarks/lowering.py cpu"
    assert record["graph_commands"]["backend"] == 2
    found = [(each["command"], each["count"]) for each in record["results"]]
    assert found == [(kind, count) for kind in ("fill", "dispatch") for count in COUNTS]
    for each in record["results"]:
        for what in ("submit", "first", "ended"):
            assert set(each[what]) == {"stream", "graph"}
            assert min(each[what].values()) > 0
    assert "100 x dispatch" in told
    assert "the backend says 2" in told


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [
        ([9, 9, 9, 9], 1),
        ([10, 9, 9, 9], 2),
        ([5, 5, 9.5, 9], 10),  # what is faster for less does not count
        ([5, 5, 5, 11], 0),
    ],
)
def test_the_crossover_is_where_a_graph_is_clearly_faster_for_all_c4(monkeypatch, graphs, expected):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    before = set(sys.modules)
    try:
        script = runpy.run_path(str(SCRIPT))
    finally:
        for name in set(sys.modules) - before:
            if (SCRIPT.parent / f"{name}.py").exists():
                del sys.modules[name]
    results = [
        script["Result"](command, count, {"stream": 10, "graph": graph}, {}, {})
        for command, each in (("fill", [1] * 4), ("dispatch", graphs))
        for count, graph in zip((1, 2, 4, 10), each, strict=True)
    ]
    assert script["crossover"](results) == expected
