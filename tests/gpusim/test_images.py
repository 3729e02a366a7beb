"""Modules of gpusim: what loads, what is found in it, how kernels run and how they fail."""

import ctypes
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import gpusim
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")

SOURCE = r"""
__device__ int counter = 5;
extern "C" __global__ void count(int *out) { counter += 1; *out = counter; }
extern "C" __global__ void places(uint3 *out) {
  unsigned int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned int size = blockDim.x * blockDim.y * blockDim.z;
  out[2 * (block * size + thread)] = blockIdx;
  out[2 * (block * size + thread) + 1] = threadIdx;
}
extern "C" __global__ void reverse(int *data) {
  extern __shared__ int memory[];
  unsigned int first = blockIdx.x * blockDim.x;
  memory[threadIdx.x] = data[first + threadIdx.x];
  __syncthreads();
  data[first + threadIdx.x] = memory[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(32 * 2, 1) sums(const int *in, int *out) {
  __shared__ int memory[64];
  memory[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) memory[threadIdx.x] += memory[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = memory[0];
}
extern "C" __global__ void fault_in_barriers(int *data) {
  __syncthreads();
  if (threadIdx.x == 3) *(volatile int *)16 = 1;
  __syncthreads();
  data[threadIdx.x] = 1;
}
extern "C" __global__ void refuse(int n) { __syncthreads(); assert(n < 0); }
extern "C" __global__ void stop() { __trap(); }
"""


class Driver:
    """Call the driver through cuda-python, and compile for it."""

    def __init__(self):
        from cuda.bindings import driver, nvrtc  # noqa: PLC0415 - after the library

        self.cu, self._rtc = driver, nvrtc
        self.get(driver.cuInit, 0)
        self.get(driver.cuCtxSetCurrent, self.get(driver.cuDevicePrimaryCtxRetain, 0))
        self.stream = self.get(driver.cuStreamCreate, 1)
        self.image = self.compile(SOURCE)

    @staticmethod
    def get(call, *arguments):
        code, *rest = call(*arguments)
        assert int(code) == 0, f"{call.__name__}: {code.name}"
        return rest[0] if len(rest) == 1 else rest

    def compile(self, source):
        rtc, get = self._rtc, self.get
        program = get(rtc.nvrtcCreateProgram, source.encode(), b"kernels.cu", 0, [], [])
        get(rtc.nvrtcCompileProgram, program, 1, [b"--gpu-architecture=sm_90"])
        image = b" " * get(rtc.nvrtcGetCUBINSize, program)
        get(rtc.nvrtcGetCUBIN, program, image)
        get(rtc.nvrtcDestroyProgram, program)
        return image

    def module(self):
        return self.get(self.cu.cuModuleLoadData, self.image)

    def function(self, name, module):
        return self.get(self.cu.cuModuleGetFunction, module, name.encode())

    def array(self, values):
        """Return managed memory as an array."""
        address = int(self.get(self.cu.cuMemAllocManaged, values.nbytes, 1))
        raw = (ctypes.c_char * values.nbytes).from_address(address)
        array = np.frombuffer(raw, values.dtype).reshape(values.shape)
        array[...] = values
        return array

    def run(self, function, grid, block, *arguments, shared=0):
        """Launch and wait; return the code of the wait."""
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        values = tuple(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments)
        types = tuple(
            ctypes.c_void_p if isinstance(a, np.ndarray) else ctypes.c_int for a in arguments
        )
        given = (values, types) if values else 0
        self.get(self.cu.cuLaunchKernel, function, *grid, *block, shared, self.stream, given, 0)
        return int(self.cu.cuStreamSynchronize(self.stream)[0])


@pytest.fixture(scope="module")
def driver():
    gpusim.load()
    return Driver()


def elf(machine, kind=3):
    """Return an ELF header and no more."""
    header = bytearray(128)
    header[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<HHI", header, 16, kind, machine, 1)
    struct.pack_into("<Q", header, 40, 64)
    struct.pack_into("<HHHHHH", header, 52, 64, 0, 0, 64, 0, 0)
    return bytes(header)


@pytest.mark.parametrize(
    ("image", "codes"),
    [
        (b"no image at all, but a text" + bytes(64), {200}),
        (bytes(64), {200}),
        (b".version 8.0\n.target sm_50\n" + bytes(64), {209, 218, 222}),
        (elf(190), {200, 209}),
        (elf(224), {200, 209}),
        (elf(62, kind=2), {200, 209}),
        (b"\x50\xed\x55\xba" + bytes(64), {200, 209}),
    ],
    ids=["text", "zeros", "PTX", "cubin", "HSACO", "program", "fat binary"],
)
def test_other_images_are_refused_with_a_drivers_code(driver, image, codes):
    code = int(driver.cu.cuModuleLoadData(image)[0])
    assert code in codes


def test_an_image_with_damaged_tables_is_refused(driver):
    image = bytearray(driver.image)
    (offset,) = struct.unpack_from("<Q", image, 40)
    (count,) = struct.unpack_from("<H", image, 60)
    for section in range(count):  # every symbol table lies past the end
        place = offset + section * 64
        (kind,) = struct.unpack_from("<I", image, place + 4)
        if kind in {2, 11}:
            struct.pack_into("<Q", image, place + 24, 1 << 40)
    assert int(driver.cu.cuModuleLoadData(bytes(image))[0]) == 200


def test_kernels_are_found_with_their_parameters(driver):
    module = driver.module()
    assert driver.get(driver.cu.cuModuleGetFunctionCount, module) == 7
    function = driver.function("sums", module)
    assert driver.get(driver.cu.cuFuncGetParamInfo, function, 0) == [0, 8]
    assert driver.get(driver.cu.cuFuncGetParamInfo, function, 1) == [8, 8]
    assert int(driver.cu.cuFuncGetParamInfo(function, 2)[0]) == 1
    attribute = driver.cu.CUfunction_attribute
    threads = attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    shared = attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    assert driver.get(driver.cu.cuFuncGetAttribute, threads, function) == 64
    assert driver.get(driver.cu.cuFuncGetAttribute, shared, function) == 256
    assert int(driver.cu.cuModuleGetFunction(module, b"counter")[0]) == 500
    driver.get(driver.cu.cuModuleUnload, module)


def test_each_load_has_variables_of_its_own(driver):
    first, second = driver.module(), driver.module()
    out = driver.array(np.zeros(1, np.int32))
    for module, expected in ((first, 6), (first, 7), (second, 6), (first, 8)):
        assert driver.run(driver.function("count", module), (1,), (1,), out) == 0
        assert out[0] == expected
    driver.get(driver.cu.cuModuleUnload, first)
    assert driver.run(driver.function("count", second), (1,), (1,), out) == 0
    assert out[0] == 7
    assert driver.get(driver.cu.cuModuleGetGlobal, second, b"counter")[1] == 4
    for name in (b"hal_kernel_count", b"gpusim_assert", b"missing"):
        assert int(driver.cu.cuModuleGetGlobal(second, name)[0]) == 500
    driver.get(driver.cu.cuModuleUnload, second)


def test_every_thread_of_every_block_runs_once(driver):
    module = driver.module()
    grid, block = (3, 2, 2), (4, 3, 2)
    out = driver.array(np.full((12, 24, 2, 3), 99, np.uint32))
    assert driver.run(driver.function("places", module), grid, block, out) == 0
    expected = [
        [[(bx, by, bz), (x, y, z)] for z in range(2) for y in range(3) for x in range(4)]
        for bz in range(2)
        for by in range(2)
        for bx in range(3)
    ]
    np.testing.assert_array_equal(out, np.array(expected))


def test_barriers_and_shared_memory(driver):
    module = driver.module()
    data = driver.array(np.arange(1024, dtype=np.int32))
    function = driver.function("reverse", module)
    assert driver.run(function, (4,), (256,), data, shared=1024) == 0
    np.testing.assert_array_equal(data, np.arange(1024).reshape(4, 256)[:, ::-1].ravel())
    sums = driver.array(np.zeros(16, np.int32))
    assert driver.run(driver.function("sums", module), (16,), (64,), data, sums) == 0
    np.testing.assert_array_equal(sums, np.asarray(data).reshape(16, 64).sum(1))


@pytest.mark.parametrize(
    ("name", "argument", "code"),
    [("fault_in_barriers", None, {700}), ("refuse", 1, {710}), ("stop", None, {715, 719})],
)
def test_a_fault_in_a_kernel_is_a_code_and_not_the_end(name, argument, code):
    program = f"""
        import numpy as np
        from test_images import Driver, gpusim
        driver = Driver()
        module = driver.module()
        data = driver.array(np.zeros(64, np.int32))
        arguments = {{"fault_in_barriers": (data,), "refuse": ({argument},), "stop": ()}}[{name!r}]
        print(driver.run(driver.function({name!r}, module), (1,), (8,), *arguments))
        gpusim.load().reset()  # the same thread of the driver goes on
        data = driver.array(np.arange(64, dtype=np.int32))
        sums = driver.array(np.zeros(1, np.int32))
        print(driver.run(driver.function("sums", module), (1,), (64,), data, sums), sums[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=gpusim.environment(quiet=True, devices=2),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert int(first) in code
    assert second == "0 2016"
    assert ("Assertion `n < 0` failed" in done.stderr) == (name == "refuse")
