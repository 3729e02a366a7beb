"""What is said where there is no bindings, no runtime, no device, or an old runtime."""

import shutil
import subprocess

import build
import gpusim
import pytest
from child_processes import printed_by, run_alone

OPEN = """
    import hal
    try:
        hal.create_device("hip")
    except hal.errors.BackendUnavailableError as error:
        print(error.native_code, error)
    else:
        print("opened")
"""


def say(tmp_path, source=OPEN, **environment):
    return printed_by(run_alone(tmp_path, source, **environment))


def test_without_a_runtime_the_paths_are_told(tmp_path):
    said = say(tmp_path, ROCM_PATH=str(tmp_path))
    assert "libamdhip64.so" in said
    assert "ROCM_PATH" in said


def test_without_a_device_the_native_reason_is_told(tmp_path):
    said = say(tmp_path, ROCM_PATH=str(gpusim.rocm_folder()), **gpusim.variables(devices=0))
    assert said.startswith("100 ")
    assert "hipErrorNoDevice" in said


@pytest.mark.parametrize("version", ["7.2.2", "6.0.1"])
def test_older_bindings_are_refused_with_the_reason(tmp_path, monkeypatch, version):
    from hal.errors import BackendUnavailableError  # noqa: PLC0415
    from hal_hip import _bindings  # noqa: PLC0415

    monkeypatch.setattr(_bindings, "version", lambda: version)
    with pytest.raises(BackendUnavailableError, match=rf"{version}.*10.*interpreter lock.*pip"):
        _bindings.check()


def test_bindings_that_are_not_there_are_named(monkeypatch):
    from hal.errors import BackendUnavailableError  # noqa: PLC0415
    from hal_hip import _bindings  # noqa: PLC0415

    monkeypatch.setattr(_bindings.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(_bindings, "version", lambda: "")
    with pytest.raises(BackendUnavailableError, match="pip install 'hip-python>=10'"):
        _bindings.check()


OLD = """
typedef int error;
#define HIP __attribute__((visibility("default"))) error
HIP hipInit(unsigned flags) { return 0; }
HIP hipGetDeviceCount(int *count) { *count = 1; return 0; }
HIP hipRuntimeGetVersion(int *version) { *version = 50221153; return 0; }
HIP hipGetLastError(void) { return 0; }
"""


def test_a_runtime_that_is_too_old_is_named_with_what_it_lacks(tmp_path):
    (tmp_path / "lib").mkdir()
    source = tmp_path / "old.c"
    source.write_text(OLD)
    target = tmp_path / "lib" / "libamdhip64.so"
    command = [*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    said = say(tmp_path, ROCM_PATH=str(tmp_path))
    assert "version 5.2.21153" in said
    assert "hipLaunchHostFunc" in said


def test_loading_the_plugin_loads_no_bindings(tmp_path):
    source = """
    import sys
    import hal
    assert [each.name for each in hal.backends() if each.name == "hip"] == ["hip"]
    print(sorted(name for name in sys.modules if name.startswith("rocm")))
    """
    assert say(tmp_path, source) == "[]\n"


def test_the_optional_goes_where_functions_are_missing(tmp_path):
    """A runtime without graphs, pools and hiprtc opens, and says so by its features."""
    folder = tmp_path / "rocm"
    (folder / "lib").mkdir(parents=True)
    shutil.copy(gpusim.rocm_folder() / "lib" / "libamdhip64.so", folder / "lib")
    source = """
    from rocm.bindings import hip
    known = hip.has_symbol
    gone = ("hipGraph", "hipMemPool", "hipHostRegister", "hipModuleOccupancy")
    hip.has_symbol = lambda name: not name.startswith(gone) and known(name)
    import hal
    device = hal.create_device("hip")
    print(sorted(device._native.features))
    device.close()
    """
    said = say(tmp_path, source, ROCM_PATH=str(folder), **gpusim.variables(devices=1))
    left = ["external_streams", "memory_sharing", "peer_access", "stream_values", "timestamps"]
    assert said == f"{left}\n"


def test_pools_that_do_not_work_are_not_declared(tmp_path):
    """The attribute says that there are pools, and the first use fails."""
    source = """
    import hal
    device = hal.create_device("hip")
    print("async_allocations" in device._native.features)
    device.close()
    """
    for failing in ("hipMemPoolCreate:1:801", "hipMallocFromPoolAsync:2:1", "hipFreeAsync:1:999"):
        said = say(
            tmp_path, source, ROCM_PATH=str(gpusim.rocm_folder()), **gpusim.variables(fail=failing)
        )
        assert said == "False\n", failing
