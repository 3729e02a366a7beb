"""Warps on the processor: who waits for whom, and what fails (C5)."""

import re

import numpy as np
import pytest

import hal

PLACES = r"""
__global__ void HAL_BLOCK(32) leaves_out_itself(int *x) {
  if (threadIdx.x < 20) x[threadIdx.x] = __shfl_sync(0xffff, threadIdx.x, 3);
}
__global__ void HAL_BLOCK(32) names_those_at_a_barrier(int *x) {
  if (threadIdx.x < 20) x[threadIdx.x] = __ballot_sync(0xffffffff, 1);
  __syncthreads();
}
__global__ void HAL_BLOCK(64) names_those_elsewhere(int *x) {
  if (threadIdx.x == 40)
    __syncwarp(0x300);
  else if (threadIdx.x == 41)
    x[0] = __any_sync(0x300, 1);
}
__global__ void HAL_BLOCK(32) disagree(int *x) {
  x[0] = __reduce_add_sync(threadIdx.x < 31 ? 0xffffffff : 0xc0000000, 1);
}
__global__ void HAL_BLOCK(32) differ(int *x) {
  x[0] = threadIdx.x < 20 ? __shfl_up_sync(~0u, x[1], 1) : __shfl_xor_sync(~0u, x[1], 1);
}
"""
FAULTS = {
    "leaves_out_itself": r"k.cu:3: __shfl_sync\(\): its mask 0x0000ffff leaves out lane 16, which",
    "names_those_at_a_barrier": r"k.cu:6: __ballot_sync\(\): its mask 0xffffffff names the lanes "
    r"0xfff00000, which do not come: they wait at a __syncthreads\(\)",
    "names_those_elsewhere": r"k.cu:11: __syncwarp\(\): its mask 0x00000300 names the lanes "
    r"0x00000200, which do not come: they wait at __any_sync\(\) in line 13 of k.cu",
    "differ": r"k.cu:19: __shfl_up_sync\(\): its mask 0xffffffff names the lanes "
    r"0xfff00000, which do not come: they wait at __shfl_xor_sync\(\) in line 19 of k.cu",
    "disagree": r"k.cu:16: __reduce_add_sync\(\): its mask 0xffffffff names the lanes 0x80000000",
}


@pytest.fixture(scope="module")
def places(device):
    return device.compile(PLACES, filename="k.cu")


@pytest.mark.parametrize("name", FAULTS)
def test_a_mask_that_leaves_threads_out_fails_its_submission_c5(device, places, name):
    x = device.upload(np.zeros(64, np.int32))
    run = device.queue.dispatch(places[name], grid=1, args=(x,))
    where = re.escape(f"kernel '{name}', block (0, 0, 0): ")
    with pytest.raises(hal.errors.WorkFailedError, match=where + FAULTS[name]):
        run.wait(timeout=60)
    device.queue.fill(x, 1).wait(timeout=60)  # the device and its queue live


def run(device, body, block=64, grid=1, count=64, head=""):
    """Run a kernel over ``unsigned *x``; return what it left there."""
    source = f"{head}\n__global__ void HAL_BLOCK({block}) k(unsigned *x) {{ {body} }}"
    x = device.upload(np.zeros(count, np.uint32))
    device.queue.dispatch(device.compile(source)["k"], grid=grid, args=(x,)).wait(timeout=60)
    return x.numpy()


def test_threads_that_have_returned_are_not_waited_for_c5(device):
    found = run(
        device,
        "if (threadIdx.x % 3 == 0) return;"
        "unsigned all = __ballot_sync(0xffffffff, 1);"
        "if (threadIdx.x % 3 == 1) return;"
        "x[threadIdx.x] = all & ~__ballot_sync(0xffffffff, threadIdx.x < 40);",
        block=50,
    )
    for i in range(50):
        warp = range(i // 32 * 32, min(i // 32 * 32 + 32, 50))
        first = sum(1 << j % 32 for j in warp if j % 3)
        second = sum(1 << j % 32 for j in warp if j % 3 == 2 and j < 40)
        assert found[i] == (first & ~second if i % 3 == 2 else 0)


def test_warps_that_pass_different_numbers_of_calls_meet_at_a_barrier_c5(device):
    """A warp's threads wait for one another alone; a barrier waits for all."""
    found = run(
        device,
        "__shared__ unsigned sum[96]; unsigned v = threadIdx.x;"
        "for (int i = 0; i <= threadIdx.x / 32; i++) v = __shfl_xor_sync(~0u, v, 1);"
        "sum[threadIdx.x] = v; __syncthreads();"
        "x[threadIdx.x] = sum[(threadIdx.x + 32) % 96];"
        "__syncthreads(); x[threadIdx.x] += __shfl_down_sync(~0u, v, 40);",
        block=96,
        count=96,
    )
    i = np.arange(96)
    held = np.where(i // 32 % 2 == 0, i ^ 1, i)
    assert (found == held[(i + 32) % 96] + held).all()


def test_the_active_threads_are_those_of_a_branch_c5(device):
    found = run(
        device,
        "if (threadIdx.x & 1) { if (threadIdx.x & 2) x[threadIdx.x] = __activemask(); }"
        "else x[threadIdx.x] = __activemask(); __syncthreads();"
        "if (__activemask() != ~0u) x[0] = 1;",
    )
    expected = {0: 0x55555555, 1: 0, 2: 0x55555555, 3: 0x88888888}
    assert [found[i] for i in range(64)] == [expected[i % 4] for i in range(64)]


def test_functions_know_their_own_thread_after_a_call_c5(device):
    found = run(
        device,
        "x[blockIdx.x * 32 + threadIdx.x] = twice();",
        block=32,
        grid=2,
        head="__device__ unsigned twice() { unsigned v = __shfl_xor_sync(~0u, threadIdx.x, 31);"
        "return v * 100 + threadIdx.x + blockIdx.x * 10000; }",
    )
    i = np.arange(64)
    assert (found == (31 - i % 32) * 100 + i % 32 + i // 32 * 10000).all()


def test_any_type_goes_through_a_shuffle_c5(device):
    found = run(
        device,
        "Three v = {threadIdx.x, threadIdx.x * 2.5, (char)threadIdx.x};"
        "v = __shfl_sync(0xffffffffffffffff, v, threadIdx.x + 1, 4);"
        "x[threadIdx.x] = v.a + (unsigned)v.b + v.c;",
        block=32,
        head="struct Three { unsigned a; double b; char c; };",
    )
    i = (np.arange(32) // 4 * 4) + (np.arange(32) + 1) % 4
    assert (found[:32] == i + (i * 2.5).astype(int) + i).all()


def test_the_width_of_a_warp_is_that_of_the_device_c5(device):
    assert device.info.warp_size == 32
    assert run(device, "x[threadIdx.x] = warpSize;")[0] == 32
