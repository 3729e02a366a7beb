"""`__launch_bounds__` limits the threads of a block, as on a GPU (C5)."""

import numpy as np
import pytest

import hal
from hal.errors import InvalidArgumentError

LIMIT = 10.0
SOURCE = """
#define WIDTH 32
enum class Size { large = 96 };
template <int A, int B> struct Product { static constexpr int value = A * B; };
__global__ void __launch_bounds__(64) plain(int *x) { x[threadIdx.x] = 1; }
__global__ __launch_bounds__(WIDTH * 2, 4) void product(int *x) { x[threadIdx.x] = 1; }
__launch_bounds__(Product<4, 5>::value, 2) __global__ void type(int *x) { x[threadIdx.x] = 1; }
__global__ void __launch_bounds__((int)Size::large) HAL_BLOCK(96) of_enum(int *x) { x[0] = 1; }
__global__ void __launch_bounds__(4096) more(int *x) { x[threadIdx.x] = 1; }
__global__ void none(int *x) { x[threadIdx.x] = 1; }
__global__ void __launch_bounds__(64) barrier(int *x) { __syncthreads(); x[threadIdx.x] = 1; }
"""
LIMITS = {
    "plain": 64,
    "product": 64,
    "type": 20,
    "of_enum": 96,
    "more": 1024,
    "none": 1024,
    "barrier": 64,
}


@pytest.fixture(scope="module")
def compiled():
    with hal.create_device("cpu") as device:
        yield device, device.compile(SOURCE)


@pytest.mark.parametrize("name", LIMITS)
def test_a_block_has_so_many_threads_at_most_c5(compiled, name):
    device, program = compiled
    kernel, most = program[name], LIMITS[name]
    assert kernel.max_threads_per_block == most
    x = device.upload(np.zeros(1024, np.int32))
    for block in (most + 1, (most // 2, 3)):
        with pytest.raises(InvalidArgumentError, match=f"'{name}'.*takes 1 to {most} on cpu:0"):
            device.queue.dispatch(kernel, grid=1, block=block, args=(x,))
    device.queue.dispatch(kernel, grid=1, block=most, args=(x,)).wait(LIMIT)
    assert x.numpy(timeout=LIMIT)[0] == 1


def test_bounds_that_are_no_constant_are_the_compilers_to_refuse(compiled):
    device, _ = compiled
    with pytest.raises(hal.errors.CompilationError, match="bound"):
        device.compile("__global__ void __launch_bounds__(unbound) k(int *x) { x[0] = 1; }")
