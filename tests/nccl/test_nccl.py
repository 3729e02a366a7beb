"""Collectives over a library with NCCL's interface, on the software drivers (G1 to G4)."""

from __future__ import annotations

import nccl_harness
import pytest


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
