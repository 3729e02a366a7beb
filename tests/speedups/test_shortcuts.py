"""The shortcuts of the C extension, on the CPU and on the software driver."""

import importlib.util
import os
from pathlib import Path

import gpusim
import pytest
from child_processes import printed_by, run_file

HERE = Path(__file__).parent
WITHOUT_A_DEVICE = ["case_a_forked_child_has_a_lock_of_its_own"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)


def names_in(file):
    names = [
        line.partition("(")[0].removeprefix("def ")
        for line in (HERE / file).read_text().splitlines()
        if line.startswith("def case_")
    ]
    return [name for name in names if name not in WITHOUT_A_DEVICE]


def run(spec, file, environment, cases=None):
    """Run a file's cases in one process; what it prints last is the case that failed."""
    cases = cases or names_in(file)
    variables = environment | {"HAL_SPEEDUPS": "require"}
    assert printed_by(run_file(HERE / file, [spec, *cases], 400, variables)).split() == cases


ANYWHERE = [
    "shortcut_cases.py",
    "binding_cases.py",
    "cache_cases.py",
    "deep_cases.py",
    "flow_cases.py",
    "line_cases.py",
    *(
        ["memory_cases.py"] if importlib.util.find_spec("_testcapi") else []
    ),  # of Python's own tests
    "pending_cases.py",
    "piece_cases.py",
    "recycle_cases.py",
    "transfer_cases.py",
    "waiting_cases.py",
]


@pytest.mark.parametrize("file", ANYWHERE)
def test_on_the_cpu(file):
    run("cpu", file, dict(os.environ))


ON_THE_DRIVER = [
    "pool_cases.py",
    "row_cases.py",
    "fault_cases.py",
    "full_cases.py",
    "waiter_cases.py",
]


@pytest.mark.parametrize("file", [*ANYWHERE, *ON_THE_DRIVER])
def test_on_the_software_driver(file):
    pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")
    run("cuda", file, gpusim.environment(quiet=True))


def test_without_a_device():
    run("none", "shortcut_cases.py", dict(os.environ), WITHOUT_A_DEVICE)
