"""Random calls do the same, and raise the same, with the C extension and without."""

import importlib.util
import os
import sys
from pathlib import Path

import gpusim
import pytest
from child_processes import output_of

PROGRAM = Path(__file__).with_name("random_calls.py")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)


def lines(spec, seed, speedups, environment):
    variables = environment | {"HAL_SPEEDUPS": speedups}
    return output_of([sys.executable, PROGRAM, spec, seed], env=variables).splitlines()


@pytest.mark.parametrize("seed", range(1, 41))
def test_on_the_cpu(seed):
    environment = dict(os.environ)
    assert lines("cpu", seed, "require", environment) == lines("cpu", seed, "0", environment)


@pytest.mark.parametrize("seed", range(41, 61))
def test_on_the_software_driver(seed):
    pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")
    environment = gpusim.environment(quiet=True)
    assert lines("cuda", seed, "require", environment) == lines("cuda", seed, "0", environment)
