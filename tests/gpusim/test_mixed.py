"""Several devices in one process: of one backend, with peer copies, and of three."""

from pathlib import Path

import pytest
import suite_runs

HERE = Path(__file__).resolve().parent

BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}
ALL = ("cpu", "cuda:0", "hip:0", "cuda:1", "hip:1")
SCHEDULES = [None, *range(1, suite_runs.seeds(2) + 1)]
"""Free mode, and stepped mode with each of these seeds."""
SECONDS = 300.0


def run(case, names, seed):
    """Run a case in a process of its own."""
    for backend, module in BINDINGS.items():
        if any(name.startswith(backend) for name in names):
            pytest.importorskip(module)
    backends = [backend for backend in BINDINGS if any(n.startswith(backend) for n in names)]
    settings = {} if seed is None else {"mode": "stepped", "seed": seed}
    arguments = ["-W", "error", str(HERE / "mixed.py"), case, str(seed or 0), *names]
    done = suite_runs.run_python(arguments, suite_runs.environment(*backends, **settings), SECONDS)
    assert (done.returncode, done.stdout) == (0, "done\n"), f"seed {seed}: {done.stdout[-20000:]}"


@pytest.mark.parametrize("seed", SCHEDULES)
def test_numbers_go_round_three_backends_through_the_hosts_memory_s3(seed):
    run("relay", ALL, seed)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_nobody_runs_ahead_of_a_round_s3(seed):
    run("fan", ALL, seed)


def test_a_failure_reaches_who_waits_for_it_on_every_backend_s5():
    run("failures", ALL, None)


def test_a_lost_device_takes_no_other_along_s5():
    run("losses", ("cpu", "cuda:0", "hip:0"), None)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("backend", BINDINGS)
def test_lost_hardware_takes_all_its_virtual_devices_along_s5(backend, seed):
    run("virtual", [backend], seed)
