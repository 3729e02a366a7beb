"""Collectives over a library with NCCL's interface, on the software drivers (G1 to G4)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import nccl_harness
import pytest

built = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nccl")


@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_on_streams_g2(folder, provider, size):
    """Every program of the suite's, against numpy."""
    assert "done" in nccl_harness.run(folder, provider, "results", str(size))


@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("case", ["late", "errors"])
def test_failures_on_streams_g3(folder, provider, case):
    """Time-outs and the library's errors end the group, and nothing else."""
    assert "done" in nccl_harness.run(folder, provider, case)


def test_ranks_meet_in_each_way_g4(folder, tmp_path):
    assert "done" in nccl_harness.run(folder, "nccl", "meeting", str(tmp_path))


def test_the_measurements_of_hardware_run(folder, tmp_path):
    """Small, with the ranks as threads: every part finds numbers for every side."""
    script = Path(__file__).parents[2] / "hardware" / "collectives.py"
    path = tmp_path / "found.json"
    nccl_harness.run_script(folder, "nccl", script, "--threads", "--quick", "--json", path)
    found = json.loads(path.read_text())
    assert {row["kind"] for row in found["rates"]} >= {"all_reduce", "all_to_all"}
    assert all({"hal", "raw"} <= set(row["sides"]) for row in found["rates"][:3])
    assert all(row["hal"] > 0 and row["by hand"] > 0 for row in found["overlap"])
    assert set(found["semaphore"]) == {"one process", "one process, shareable", "two processes"}


@built
@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("case", ["direct", "errors", "late"])
def test_with_the_extension_g3(folder, provider, case):
    assert "done" in nccl_harness.run(folder, provider, case, speedups="require")


@built
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_extension_does_the_same_g1(folder, seed):
    both = [
        nccl_harness.run(folder, "nccl", "same", seed, speedups=how) for how in ("0", "require")
    ]
    assert both[0] == both[1]
