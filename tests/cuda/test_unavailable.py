"""A machine without a driver, a device or the bindings: said, and nothing else."""

import textwrap

import gpusim
import pytest
from child_processes import printed_by, run_alone

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


def say(tmp_path, program=TELL, **environment):
    return printed_by(run_alone(tmp_path, program, **environment))


def test_the_plugin_loads_no_library(tmp_path):
    said = say(
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
    assert said == "[]\n[]\n"


def test_without_a_driver(tmp_path):
    said = say(tmp_path)
    if "available" in said.split():
        pytest.skip("this machine has a driver of its own")
    first, second = said.splitlines()
    assert first.startswith("unavailable | ")
    assert "driver" in first
    assert second.startswith("BackendUnavailableError")


def test_without_a_device(tmp_path):
    first, second = say(tmp_path, **gpusim.environment(devices=0)).splitlines()
    assert first.startswith("unavailable | ")
    assert "CUDA_ERROR_NO_DEVICE" in first
    assert second.startswith("BackendUnavailableError")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        *((known, "cuInit failed with CUDA_ERROR_") for known in (34, 803, 999)),
        (77, "77"),  # which the bindings do not know
    ],
)
def test_a_driver_that_does_not_start(tmp_path, code, words):
    said = say(tmp_path, **gpusim.environment(fail=f"cuInit:1:{code},cuInit:2:{code}"))
    assert said.startswith("unavailable | ")
    assert words in said


def test_without_the_bindings(tmp_path):
    hide = """
    import sys
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "cuda" or name.startswith("cuda."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Hide())
    """
    said = say(tmp_path, textwrap.dedent(hide) + TELL)
    assert said.startswith("unavailable | ")
    assert "pip install cuda-bindings" in said
