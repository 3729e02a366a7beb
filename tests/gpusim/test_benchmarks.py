"""The benchmarks on gpusim: a table of two backends, and peaks beside the driver's pool."""

import json
import sys
from pathlib import Path

import pytest
import suite_runs
from child_processes import output_of, run_command

for module in ("cuda.bindings", "rocm.bindings", "rich"):
    pytest.importorskip(module)

HERE = Path(__file__).resolve().parent

BENCHMARKS = HERE.parents[1] / "benchmarks"


def run(*arguments, script="run.py"):
    # The raw bindings beside hal fill their streams, and wait for room.
    environment = suite_runs.environment("cuda", "hip", abort_on_blocked=0)
    return run_command([sys.executable, BENCHMARKS / script, *arguments], env=environment)


def test_one_run_compares_two_backends(tmp_path):
    path = tmp_path / "both.json"
    note = "hip: gpusim's, and its numbers mean nothing"
    arguments = "--device cuda --beside hip --quick --rounds 1 --groups timelines --json"
    done = run(*arguments.split(), str(path), "--note", note)
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert record["machine"]["note"] == note
    assert "CUDA" in record["machine"]["driver"]
    assert "HIP" in record["machine"]["beside"]
    assert (
        record["command"] == "python benchmarks/run.py"
        " --device cuda --beside hip --quick --rounds 1 --groups timelines"
    )
    metrics = {metric["name"]: metric["medians"] for metric in record["groups"]["timelines"]}
    ours = {f"{name}{mode}" for name in ("hal", "hal, hip") for mode in ("", ", stream", ", graph")}
    assert all(ours <= set(medians) for medians in metrics.values())
    assert {"raw", "raw hip", "raw, memory", "hal, memory"} <= set(metrics["submit"])
    assert all(value > 0 for medians in metrics.values() for value in medians.values())
    table = path.with_suffix(".md").read_text()
    assert note in table
    heads = [line for line in table.splitlines() if line.startswith("| what |")]
    rows = [line for line in table.splitlines() if line.startswith("| submit |")]
    assert len(heads) == 3  # the medians, the best samples, and the ratios of the rounds
    for head, row in zip(heads, rows, strict=True):
        assert head.count("|") == row.count("|")
        assert "| hal, hip, graph |" in head


def test_launches_and_threads_stand_beside_the_bindings(tmp_path):
    path = tmp_path / "found.json"
    arguments = "--device cuda --quick --rounds 1 --groups launches threads --json"
    done = run(*arguments.split(), str(path))
    assert done.returncode == 0, done.stderr
    groups = json.loads(path.read_text())["groups"]
    sides = {name: [set(each["medians"]) for each in found] for name, found in groups.items()}
    assert sides["launches"] == [{"hal", "raw", "raw, packing"}] * 7
    assert sides["threads"] == [{"hal", "raw"}] + [{"hal", "raw", "hal, one thread"}] * 2
    medians = [each["medians"] for found in groups.values() for each in found]
    assert all(value > 0 for each in medians for value in each.values())


@pytest.mark.parametrize("arguments", [("--beside", "hip"), ("--beside", "cpu", "--note", "x")])
def test_a_second_backend_is_another_and_has_a_note(arguments):
    done = run("--quick", *arguments)
    assert done.returncode == 2
    assert "--beside" in done.stderr


def test_peaks_stand_beside_the_drivers_pool_m3(tmp_path):
    path = tmp_path / "peaks.json"
    arguments = "cuda --scale 1024 --steps 2 --rounds 1 --sequence pyramid --seconds 0.1 --json"
    done = run(*arguments.split(), str(path), script="peak_memory.py")
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    sides = {"raw", "hal", "hal, own"}
    assert [case["queues"] for case in record["cases"]] == [1, 3]
    for case in record["cases"]:
        assert not case["failures"]
        assert sides <= set(case["peak"])
        assert sides <= set(case["pair"]["medians"])
        assert set(case["pair"]["ratios"]) >= sides - {"raw"}
        assert min(case["peak"].values()) > 0
    for tenths in record["random"].values():
        assert sides <= set(tenths[-1]["fragmentation"])


GATE = """
from cuda.bindings import driver as cu
from gate import Gate

holder = Gate(0)  # has the context
_, stream = cu.cuStreamCreate(1)
_, event = cu.cuEventCreate(2)
places = []

def is_done():
    return not cu.cuEventQuery(event)[0]

gate = Gate(0, longest=1e5)
gate.step([int(stream)])
cu.cuEventRecord(event, stream)
places.append(is_done())
gate.step([int(stream)])  # lets the stream come past the first one, and no further
cu.cuEventSynchronize(event)
cu.cuEventRecord(event, stream)
places.append(is_done())
gate.open()
cu.cuEventSynchronize(event)
places.append(gate.forced)
gate.close()

gate = Gate(0, longest=0.05)
gate.step([int(stream)])
cu.cuEventRecord(event, stream)
cu.cuEventSynchronize(event)  # what waits for the device while a gate is closed is let go
places.append(gate.forced)
gate.close()
holder.close()
print(*places)
"""


def test_a_gate_keeps_the_device_behind_and_lets_go_of_a_host_that_waits(tmp_path):
    (tmp_path / "gates.py").write_text(GATE)
    environment = suite_runs.environment("cuda") | {"PYTHONPATH": str(BENCHMARKS)}
    found = output_of([sys.executable, tmp_path / "gates.py"], env=environment)
    assert found.split() == ["False", "False", "0", "1"]
