"""The examples that run on several ranks: the same losses however many there are, and by whom."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from child_processes import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))


def train(*launcher, options=()):
    command = [*launcher, sys.executable, EXAMPLES / "data_parallel.py", *options]
    (line,) = output_of(command, timeout=120).splitlines()
    return json.loads(line)


@pytest.fixture(scope="module")
def alone():
    """The losses of one rank."""
    found = train()
    assert (found["ranks"], found["provider"]) == (1, "embedded")
    assert found["losses"][-1] < found["losses"][0] / 4
    return np.array(found["losses"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_by_threads_g2(alone, ranks):
    found = train(options=("--threads", ranks))
    assert (found["ranks"], found["provider"]) == (ranks, "embedded")
    assert np.allclose(found["losses"], alone, rtol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_by_mpiexec_g2(alone, ranks):
    assert MPIEXEC, "no mpiexec beside the interpreter: pip install mpich mpi4py"
    found = train(MPIEXEC, "-n", ranks)
    assert (found["ranks"], found["provider"]) == (ranks, "mpi")
    assert np.allclose(found["losses"], alone, rtol=1e-4)


def test_a_layer_over_ranks_of_mpiexec_g2():
    assert MPIEXEC, "no mpiexec beside the interpreter: pip install mpich mpi4py"
    found = output_of([MPIEXEC, "-n", 2, sys.executable, EXAMPLES / "tensor_parallel.py"])
    assert sorted(line[:20] for line in found.splitlines()) == [
        "rank 0 of 2 (mpi): o",
        "rank 1 of 2 (mpi): o",
    ]
