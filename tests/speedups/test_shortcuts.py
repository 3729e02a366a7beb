"""The shortcuts of the C extension, on the CPU and on the software driver."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gpusim
import pytest

CASES, POOL_CASES = (
    Path(__file__).with_name(name) for name in ("shortcut_cases.py", "pool_cases.py")
)


def names_in(file):
    return [
        line.partition("(")[0].removeprefix("def ")
        for line in file.read_text().splitlines()
        if line.startswith("def case_")
    ]


NAMES = names_in(CASES)
WITH_FAULTS = [
    "case_a_call_that_fails_twice_fails_the_operation",
    "case_an_event_that_is_not_recorded_is_recorded_by_python_s7",
    "case_an_event_of_what_a_signal_issues_is_not_recorded_s7",
    "case_a_wait_that_fails_is_repeated_by_python_i1",
]
WITHOUT_A_DEVICE = ["case_a_forked_child_has_a_lock_of_its_own"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)


def run(spec, case, environment, cases=CASES):
    done = subprocess.run(
        [sys.executable, str(cases), spec, case],
        env=environment | {"HAL_SPEEDUPS": "require"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "case", [name for name in NAMES if name not in {*WITH_FAULTS, *WITHOUT_A_DEVICE}]
)
def test_on_the_cpu(case):
    run("cpu", case, dict(os.environ))


@pytest.fixture
def simulated():
    """The environment of a process on the software driver."""
    pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")
    return gpusim.environment(quiet=True) | {"PYTHONPATH": str(Path(gpusim.__file__).parent)}


@pytest.mark.parametrize("case", [name for name in NAMES if name not in WITHOUT_A_DEVICE])
def test_on_the_software_driver(case, simulated):
    run("cuda", case, simulated)


@pytest.mark.parametrize("case", names_in(POOL_CASES))
def test_memory_of_the_drivers_pool(case, simulated):
    run("cuda", case, simulated, POOL_CASES)


@pytest.mark.parametrize("case", WITHOUT_A_DEVICE)
def test_without_a_device(case):
    run("none", case, dict(os.environ))
