"""The core compiled to native modules: built from a copy, installed, and proven."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

if not all(importlib.util.find_spec(name) for name in ("hatchling", "hatch_mypyc", "pip")):
    pytest.skip("wheels are compiled with hatchling, hatch-mypyc and pip", allow_module_level=True)
if not any(map(shutil.which, ("cc", "gcc", "clang"))):
    pytest.skip("compiling the core takes a C compiler: gcc or clang", allow_module_level=True)
if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
    pytest.skip("compiling the core takes Python's headers (python3-dev)", allow_module_level=True)

from wheelhouse import ROOT, build_wheels, create_environment

BUILDING = 300
"""Seconds for the C compiler; it takes a seventh of that on an idle processor."""
PROVING = 400
"""Seconds for the suite; it takes a tenth of that."""
NOT_READ = {"FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "PYTHONPATH", "PYTHONHOME"}


def variables(**more):
    """Return this environment without what changes how programs behave."""
    return {key: value for key, value in os.environ.items() if key not in NOT_READ} | more


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the programs of an environment with the compiled core, hal-cpu and the suite."""
    faulthandler.cancel_dump_traceback_later()  # of pytest: what is started has limits of its own
    folder = tmp_path_factory.mktemp("compiled")
    copy = folder / "hal_core"
    shutil.copytree(ROOT / "hal_core", copy)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, copy]
    done = subprocess.run(
        command,
        env=variables(HATCH_BUILD_HOOKS_ENABLE="1", MYPYPATH="src"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILDING,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    (core,) = folder.glob("hal_core-*.whl")
    assert not core.name.endswith("none-any.whl")
    others = build_wheels(folder / "others", ROOT / "hal_cpu", ROOT / "conformance")
    wanted = f"hal-core[cli] @ {core.as_uri()}"
    return create_environment(folder / "environment", wanted, *others.values())


def run(command, cwd, seconds):
    return subprocess.run(
        command,
        cwd=cwd,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_the_engine_is_compiled_and_the_rest_is_not(compiled, tmp_path):
    code = (
        "from hal._devices import device; from hal._engine import stream; "
        "print(stream.__file__, device.__file__)"
    )
    done = run([compiled / "python", "-W", "error", "-c", code], tmp_path, 50)
    assert done.returncode == 0, done.stderr
    engine, rest = map(Path, done.stdout.split())
    assert engine.is_relative_to(compiled.parent)
    assert engine.suffix == ".so"
    assert rest.suffix == ".py"
    assert not list((ROOT / "hal_core").rglob("*.so"))


@pytest.mark.timeout(BUILDING + PROVING + 200)
def test_the_compiled_core_is_conformant(compiled, tmp_path):
    faulthandler.cancel_dump_traceback_later()
    command = [compiled / "hal", "conformance", "cpu", "--report", "r.json"]
    done = run(command, tmp_path, PROVING)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "conformant"
    assert report["complete"]
    assert report["problems"] == []
    assert report["counts"]["passed"] > 1500


WORK = """
import gc
import numpy as np
import hal

device = hal.create_device("cpu")
queue, buffer, array = device.queue, device.allocate(64, dtype="f4"), np.zeros(16, "f4")
source = "__global__ void twice(float *x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2; }"
kernel = device.compile(source)["twice"]
semaphore = hal.create_semaphore()
recordings = []
for mode in ("graph", "stream"):
    with device.record(slots=1, command_buffer=mode) as commands:
        commands.dispatch(kernel, grid=1, block=1, args=(commands.slots[0], 16))
        commands.fill(buffer, 2.0)
    recordings.append(commands)


def work(value):
    for commands in recordings:
        queue.execute(commands, bindings=[buffer])
    queue.fill(buffer, 1.0, wait=semaphore.at(value), signal=semaphore.at(value + 1))
    queue.dispatch(kernel, grid=1, block=1, args=(buffer, 16))
    queue.write(buffer, array)
    queue.read(buffer, array)
    queue.dealloca(queue.alloca(64))
    queue.call(int)
    queue.barrier(wait=hal.Fence([semaphore.at(1), queue.barrier()])).wait()
    semaphore.wait(value + 1)


for value in range(10):
    work(value)
gc.collect()
gc.disable()
for value in range(10, 60):
    work(value)
print(gc.collect())
"""


def test_work_leaves_no_cycles_to_the_collector(compiled, tmp_path):
    """A function in a compiled function is a cycle, and one in a dispatch a cycle for each."""
    done = run([compiled / "python", "-c", WORK], tmp_path, 50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]


DROPPED = """
import weakref
import numpy as np
import hal

device = hal.create_device("cpu")
buffer, gone = device.allocate(1 << 20), hal.create_semaphore()
array = np.zeros(1 << 20, np.uint8)
weakref.finalize(array, gone.signal, 1)
done = device.queue.write(buffer, array)
del array
done.wait(20)
gone.wait(1, 20)
print(gone.query())
"""


def test_what_work_kept_alive_goes_outside_of_the_lock(compiled, tmp_path):
    """A compiled function drops what a variable holds after its last use, locked or not (Q5)."""
    done = run([compiled / "python", "-c", DROPPED], tmp_path, 50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]
