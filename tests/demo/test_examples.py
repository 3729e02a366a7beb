"""Every example runs to its end; the benchmarks measure something."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from child_processes import output_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN_ELSEWHERE = {
    "data_parallel",  # tests/collectives runs it, on several ranks
    "training",  # test_training.py runs it, and looks at what it writes
    "triton_launch",  # on a GPU, by hand
}


def run(*command: object) -> str:
    return output_of([sys.executable, *command])


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(
    "path",
    [each for each in EXAMPLES if each.stem not in RUN_ELSEWHERE],
    ids=lambda path: path.stem,
)
def test_example(path):
    assert run(str(path)).strip()


def test_a_quick_benchmark(tmp_path):
    path = tmp_path / "numbers.json"
    run(
        str(ROOT / "benchmarks" / "run.py"),
        *("--quick", "--rounds", "1", "--json", str(path)),
        *("--groups", "timelines", "pipeline", "kernels"),
    )
    record = json.loads(path.read_text())
    names = [metric["name"] for metric in record["groups"]["timelines"]]
    assert "submit" in names
    assert "500 pending: release" in names
    assert all(metric["medians"]["hal"] > 0 for metric in record["groups"]["timelines"])
    assert {metric["unit"] for metric in record["groups"]["kernels"]} == {"GB/s", "GFLOP/s"}
    (pipeline,) = record["groups"]["pipeline"]
    assert set(pipeline["medians"]) == {"hal.flow", "hal, by hand"}
    assert all(value > 0 for value in pipeline["medians"].values())
    assert record["machine"]["processors"] >= 1
    asked = "--device cpu --quick --rounds 1 --groups timelines pipeline kernels"
    assert record["command"] == f"python benchmarks/run.py {asked}"
