"""A machine without a driver, a device or the bindings: said, and nothing else."""

import textwrap

import gpusim
import pytest
from child_processes import run_alone

TELL = """
import hal
from hal.errors import BackendUnavailableError
status = next(each for each in hal.backends(probe=True) if each.name == "cuda")
print(status.state, "|", status.reason)
try:
    hal.create_device("cuda")
except BackendUnavailableError as error:
    print(type(error).__name__, "|", error.__cause__.native_code if error.__cause__ else None)
"""


def test_the_plugin_loads_no_library(tmp_path):
    done = run_alone(
        tmp_path,
        """
        import sys, hal
        import hal_cuda.plugin
        assert hal_cuda.plugin.hal_backend().name == "cuda"
        hal.backends()
        print(sorted(name for name in sys.modules if name.split(".")[0] == "cuda"))
        print([line for line in open("/proc/self/maps") if "libcuda" in line])
        """,
    )
    assert done.stdout == "[]\n[]\n", done.stderr


def test_without_a_driver(tmp_path):
    done = run_alone(tmp_path, TELL)
    if "available" in done.stdout.split():
        pytest.skip("this machine has a driver of its own")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("unavailable | ")
    assert "driver" in first
    assert second.startswith("BackendUnavailableError")


def test_without_a_device(tmp_path):
    done = run_alone(tmp_path, TELL, **gpusim.environment(devices=0))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("unavailable | ")
    assert "CUDA_ERROR_NO_DEVICE" in first
    assert second.startswith("BackendUnavailableError")


@pytest.mark.parametrize("code", [34, 803, 999])
def test_a_driver_that_does_not_start(tmp_path, code):
    done = run_alone(tmp_path, TELL, **gpusim.environment(fail=f"cuInit:1:{code},cuInit:2:{code}"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unavailable | ")
    assert "cuInit failed with CUDA_ERROR_" in done.stdout


def test_an_error_that_the_bindings_do_not_know(tmp_path):
    done = run_alone(tmp_path, TELL, **gpusim.environment(fail="cuInit:1:77,cuInit:2:77"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unavailable | ")
    assert "77" in done.stdout


def test_without_the_bindings(tmp_path):
    hide = """
    import sys
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "cuda" or name.startswith("cuda."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Hide())
    """
    program = textwrap.dedent(hide) + TELL
    done = run_alone(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unavailable | ")
    assert "pip install cuda-bindings" in done.stdout
