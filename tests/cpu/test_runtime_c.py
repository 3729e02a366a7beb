"""Run the C tests of the runtime, plain and under the sanitizers."""

import platform
import shutil
from importlib import resources
from pathlib import Path

import pytest
from child_processes import output_of, run_command

import hal

SOURCE = """
#include <cuda_fp16.h>
__global__ void halves(__half *x, __half by, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = __hfma(x[i], by, __float2half(1));
}
__global__ void sums(const float *x, float *sum) {
  __shared__ float s[64];
  float mine = s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int k = 16; k > 0; k /= 2) mine += __shfl_xor_sync(0xffffffff, mine, k);
  if (threadIdx.x == 0) atomicAdd(sum, mine + s[33]);
}
"""
FLAGS = {
    "plain": ["-O2"],
    "ucontext": ["-O2", "-DHAL_CPU_UCONTEXT"],  # for other processors than x86-64 and aarch64
    "address": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-g", "-fsanitize=thread"],
}


def tool(name):
    """Return the path of a program; skip the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here; Debian has it in g++-aarch64-linux-gnu and qemu-user-static")
    return found


@pytest.mark.parametrize("mode", FLAGS)
def test_runtime(mode, tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here; the sanitizers' flags are gcc's")
    base = [compiler, "-std=gnu11", "-pthread", *FLAGS[mode]]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if run_command([*base, probe, "-o", tmp_path / "probe"]).returncode != 0:
        pytest.skip(f"gcc has no library for {' '.join(FLAGS[mode])}")
    program = tmp_path / "runtime_test"
    base += ["-Wall", "-Wextra", "-Werror", f"-I{resources.files('hal_cpu')}"]
    output_of([*base, Path(__file__).with_name("runtime_test.c"), "-o", program])
    result = run_command([program])
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_runtime_on_arm(tmp_path):
    """On an emulated processor; `.ci/run` installs what it needs where it can."""
    program = tmp_path / "runtime_test"
    base = [tool("aarch64-linux-gnu-gcc"), "-std=gnu11", "-pthread", "-static", "-O2"]
    base += ["-Wall", "-Wextra", "-Werror", f"-I{resources.files('hal_cpu')}"]
    output_of([*base, Path(__file__).with_name("runtime_test.c"), "-o", program])
    result = run_command([tool("qemu-aarch64-static"), program])
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_kernels_compile_for_arm(monkeypatch, tmp_path):
    """By GCC 12, too, which has no `_Float16` in C++ there, and says in a macro that it had."""
    monkeypatch.setenv("HAL_CXX", tool("aarch64-linux-gnu-g++"))
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    program = hal.compile(SOURCE, target="cpu:armv8-a")
    assert sorted(program.entry_points) == ["halves", "sums"]
