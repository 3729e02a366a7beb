"""The translation of HIP to CUDA (tests/hip_on_cuda), over gpusim's CUDA face."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import gpusim
import pytest
from child_processes import run_alone
from hip_harness import translation_folder

PLUGIN = Path(__file__).parents[2] / "hal_hip" / "src" / "hal_hip"


def exported(library: Path):
    """Return the functions that a library defines for others."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def used():
    """Return the names of HIP's functions that the plugin mentions."""
    names = set()
    for path in PLUGIN.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    names = {name for name in names if re.fullmatch(r"hip(?:rtc)?[A-Z]\w+", name)}
    from rocm.bindings import hip, hiprtc  # noqa: PLC0415

    functions = {
        name
        for name in names
        if callable(getattr(hip, name, None) or getattr(hiprtc, name, None))
        and not isinstance(getattr(hip, name, None) or getattr(hiprtc, name, None), type)
    }
    # hip-python binds this name to the newer structure's function.
    return functions - {"hipGetDeviceProperties"} | {"hipGetDevicePropertiesR0600"}


@pytest.mark.parametrize(
    "folder", [gpusim.rocm_folder, translation_folder], ids=["face", "translation"]
)
def test_every_function_that_the_plugin_calls_is_there(folder):
    there = {"hipGetLastError"}
    for name in ("libamdhip64.so", "libhiprtc.so"):
        there |= exported(folder() / "lib" / name)
    functions = used()
    assert len(functions) > 60
    assert functions - there == set()


PROGRAM = """
    import numpy as np
    import hal

    source = '''
    __global__ void scale(float a, const float *x, float *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = a * x[i];
    }
    '''
    devices = [hal.create_device(f"hip:{index}") for index in range(2)]
    print(devices[0].info.architecture, devices[0].info.warp_size, devices[0].info.uuid)
    n = 1000
    results = []
    for device in devices:
        x = device.upload(np.arange(n, dtype=np.float32))
        y = device.upload(np.zeros(n, dtype=np.float32))
        kernel = device.compile(source)["scale"]
        with device.record() as commands:
            commands.fill(y, 0)
            commands.barrier()
            commands.dispatch(kernel, grid=4, block=256, args=(2.0, x, y, n))
        ready, done = hal.create_semaphore(), hal.create_semaphore()
        device.queue.execute(commands, wait=[ready.at(1)], signal=[done.at(1)])
        ready.signal(1)
        done.wait(1, timeout=20)
        np.testing.assert_array_equal(y.numpy(), 2 * np.arange(n, dtype=np.float32))
        results.append(y)
    try:
        devices[0].compile("__global__ void f(int *p) { p[0] = missing; }", filename="f.cpp")
    except hal.errors.CompilationError as error:
        print("f.cpp" in str(error))
    try:
        devices[0].load(b"nonsense")
    except hal.errors.OperationError as error:
        print("HSACO" in str(error))
    for device in devices:
        device.close()
    print("closed")
"""


@pytest.mark.parametrize("mode", ["free", "stepped"])
def test_the_plugin_runs_unchanged_on_a_cuda_driver(tmp_path, mode):
    library = gpusim.built()
    settings = gpusim.variables(mode=mode, seed=3)
    done = run_alone(
        tmp_path,
        PROGRAM,
        ROCM_PATH=str(translation_folder()),
        LD_LIBRARY_PATH=str(library),
        HIP_ON_CUDA_NVRTC=str(library),
        **settings,
    )
    assert done.returncode == 0, done.stderr
    device, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"sm_90 32 GPU-[0-9a-f]{16}", device)
    assert rest == ["True", "True", "closed"]


COMPILE = """
    import sys
    import hal
    from hal_conformance import kernels
    from hal_conformance.suite.kernels import test_functions
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
        load_nvidia_dynamic_lib("nvrtc")
    except RuntimeError as error:
        sys.exit(f"no NVRTC: {error}")
    for source in (kernels.SOURCE, test_functions.SOURCE):
        print(hal.compile(source, target="hip:sm_90").images[0].image[:4])
"""


def test_the_suites_kernels_compile_by_the_real_nvrtc_c5(tmp_path):
    folder = str(translation_folder())
    path = os.environ.get("LD_LIBRARY_PATH", "")
    done = run_alone(tmp_path, COMPILE, ROCM_PATH=folder, LD_LIBRARY_PATH=path)
    if done.stderr.startswith("no NVRTC"):
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert done.stdout.splitlines() == [r"b'\x7fELF'"] * 2, done.stderr


ENTRIES = """
    import ctypes
    from rocm.bindings import hip

    def ok(result):
        assert int(result[0]) == 0, result
        return result[1] if len(result) == 2 else result[1:]

    assert ok(hip.hipGetDeviceCount()) == 2
    # Nothing of size zero, and nothing at all, are no errors in HIP.
    assert int(ok(hip.hipMalloc(0)) or 0) == 0
    ok(hip.hipFree(None))
    # Codes are HIP's, and the last one is kept until it is asked for.
    kind = hip.hipMemcpyKind.hipMemcpyDeviceToDeviceNoCU
    assert hip.hipMemcpyAsync(0, 0, 8, kind, None)[0].name == "hipErrorInvalidMemcpyDirection"
    assert hip.hipGetLastError()[0].name == "hipErrorInvalidMemcpyDirection"
    assert hip.hipGetLastError()[0].name == "hipSuccess"
    assert hip.hipSetDevice(7)[0].name == "hipErrorInvalidDevice"
    # A device for each thread, without a context of the driver's being made by the caller.
    ok(hip.hipSetDevice(1))
    stream = ok(hip.hipStreamCreateWithFlags(1))
    assert ok(hip.hipStreamGetDevice(stream)) == 1
    name = hip.hipDeviceAttribute_t
    for attribute, value in (
        (name.hipDeviceAttributeWarpSize, 32),
        (name.hipDeviceAttributeMaxThreadsPerBlock, 1024),
        (name.hipDeviceAttributeMemoryPoolsSupported, 1),
    ):
        assert ok(hip.hipDeviceGetAttribute(attribute, 1)) == value, attribute
    properties = ok(hip.hipGetDeviceProperties(1))
    assert (properties.warpSize, properties.maxThreadsPerBlock) == (32, 1024)
    memory = ok(hip.hipMallocManaged(4096, 1))
    found = ok(hip.hipPointerGetAttributes(memory))
    kinds = hip.hipMemoryType
    assert (found.type, found.device, found.isManaged) == (kinds.hipMemoryTypeManaged, 1, 1)
    host = ctypes.create_string_buffer(64)
    assert ok(hip.hipPointerGetAttributes(host)).type == kinds.hipMemoryTypeUnregistered
    ok(hip.hipMemset(memory, 7, 64))
    ok(hip.hipMemcpy(host, memory, 64, hip.hipMemcpyKind.hipMemcpyDefault))
    assert host.raw == b"\\x07" * 64
    # A value in memory is waited for.
    ok(hip.hipStreamWriteValue64(stream, memory, 42, 0))
    ok(hip.hipStreamWaitValue64(stream, memory, 42, 0, 2**64 - 1))
    assert hip.hipStreamWaitValue64(stream, memory, 42, 0, 1)[0].name == "hipErrorNotSupported"
    ok(hip.hipStreamSynchronize(stream))
    assert hip.hipDeviceEnablePeerAccess(0, 0)[0].name == "hipSuccess"
    assert hip.hipDeviceEnablePeerAccess(0, 0)[0].name == "hipErrorPeerAccessAlreadyEnabled"
    ok(hip.hipFree(memory))
    ok(hip.hipStreamDestroy(stream))
    print("done")
"""


def test_entry_points_have_hips_own_rules(tmp_path):
    done = run_alone(
        tmp_path,
        ENTRIES,
        ROCM_PATH=str(translation_folder()),
        LD_LIBRARY_PATH=str(gpusim.built()),
        **gpusim.variables(),
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
