"""The two programs of `delayed_programs.py`, with a few random delays; by hand with any number."""

import sys
from pathlib import Path

import delayed_programs
import pytest
import suite_runs

PROGRAM = Path(__file__).with_name("delayed_programs.py")
RUNS = 3
SECONDS = 200


def test_on_the_cpu(monkeypatch):
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)  # which would last
    delayed_programs.main("cpu", RUNS)


@pytest.mark.parametrize("settings", [{}, {"mode": "stepped", "seed": 1}], ids=["free", "stepped"])
@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_on_the_software_driver(backend, settings):
    pytest.importorskip({"cuda": "cuda.bindings", "hip": "rocm.bindings"}[backend])
    arguments = [str(PROGRAM), backend, str(RUNS), str(bool(settings) * RUNS)]
    done = suite_runs.run_python(arguments, suite_runs.environment(backend, **settings), SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]
