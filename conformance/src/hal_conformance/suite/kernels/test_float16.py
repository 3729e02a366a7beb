"""Floating-point numbers of 16 bits in kernels, arguments and fills (C1, C5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

SOURCE = """
#include <cuda_fp16.h>
#include <hip/hip_bf16.h>
#include <cmath>
__global__ void HAL_BLOCK(64) narrow(const float *x, half *a, __hip_bfloat16 *b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = __float2half(x[i]);
  b[i] = __hip_bfloat16(x[i]);
}
__global__ void HAL_BLOCK(64) widen(const half *a, const __hip_bfloat16 *b, float *x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[2 * i] = __half2float(a[i]);
  x[2 * i + 1] = (float)b[i];
}
__global__ void HAL_BLOCK(64) add(const half *a, half b, half *sums, const __hip_bfloat16 *c,
                                  __hip_bfloat16 d, __hip_bfloat16 *products) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[i] = a[i] + b;
  products[i] = c[i] * d;
}
"""
COUNT = 1 << 16


def _bfloats(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bfloat16 numbers, given by their bits, as floats."""
    wide: np.ndarray[Any, Any] = (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return wide


def _rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return floats rounded to bfloat16 numbers, as floats."""
    bits = values.view(np.uint32).astype(np.uint64)
    near = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(
        np.isnan(values), values, _bfloats((near & np.uint64(0xFFFF)).astype(np.uint16))
    )


@pytest.fixture
def program(device: hal.Device) -> hal.Executable:
    """Kernels over both types."""
    return device.compile(SOURCE, filename="float16.cpp")


def test_16_bit_numbers_narrow_and_widen_exactly_c5(device, program):
    """C5: every number widens to itself; floats narrow to the nearest, ties to even."""
    assert str(program["narrow"].signature) == "(const f32* x, f16* a, bf16* b)"
    every = np.arange(COUNT, dtype=np.uint16)
    a, b = device.upload(every.view(np.float16)), device.upload(every).view("bfloat16")
    wide = device.upload(np.zeros(2 * COUNT, np.float32))
    run = device.queue.dispatch(program["widen"], grid=COUNT // 64, args=(a, b, wide))
    found = wide.numpy(wait=run, timeout=LIMIT).reshape(COUNT, 2).T
    np.testing.assert_array_equal(found[0], every.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(found[1], _bfloats(every))
    # The middle between two neighbours, and what is next to it.
    halfway = (every.astype(np.uint32) << 16 | 0x8000).view(np.float32)
    halves = np.sort(found[0][np.isfinite(found[0])])
    middles = np.zeros(COUNT, np.float32)
    middles[1 : halves.size] = (halves[1:] + halves[:-1]) / 2
    for values in (halfway, middles, np.nextafter(middles, np.float32(0))):
        x = device.upload(values)
        run = device.queue.dispatch(program["narrow"], grid=COUNT // 64, args=(x, a, b))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(np.float16)
        np.testing.assert_array_equal(a.numpy(wait=run, timeout=LIMIT), expected)
        bits = b.view(np.uint16).numpy(timeout=LIMIT)
        np.testing.assert_array_equal(_bfloats(bits), _rounded(values))


def test_16_bit_arithmetic_and_arguments_are_rounded_once_c5(device, program):
    """C5: an argument is rounded to the nearest once, and so is a sum and a product."""
    values = np.linspace(-3, 3, 256, dtype=np.float32)
    a = device.upload(values.astype(np.float16))
    c = device.upload((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)).view("bfloat16")
    sums, products = (device.upload(np.zeros(256, np.uint16)) for _ in range(2))
    tie = 1 + 2.0**-8 + 2.0**-40  # twice rounded it would be 1
    arguments = (
        a,
        1 + 2.0**-11 + 2.0**-40,
        sums.view(np.float16),
        c,
        tie,
        products.view("bfloat16"),
    )
    run = device.queue.dispatch(program["add"], grid=4, args=arguments)
    expected = values.astype(np.float16) + np.float16(1 + 2.0**-10)
    np.testing.assert_array_equal(
        sums.view(np.float16).numpy(wait=run, timeout=LIMIT), expected.astype(np.float16)
    )
    multiplied = _bfloats(c.view(np.uint16).numpy(timeout=LIMIT)) * np.float32(1 + 2.0**-7)
    np.testing.assert_array_equal(
        _bfloats(products.numpy(timeout=LIMIT)), _rounded(multiplied.astype(np.float32))
    )
    with pytest.raises(hal.errors.InvalidArgumentError, match="'d'"):
        device.queue.dispatch(program["add"], grid=4, args=(*arguments[:4], 1e39, arguments[5]))
    with pytest.raises(hal.errors.ArgumentTypeError, match="takes a buffer of bfloat16"):
        device.queue.dispatch(program["add"], grid=4, args=(*arguments[:3], a, 1, arguments[5]))


def test_fills_of_16_bit_numbers_are_rounded_once_c1(device):
    """C1: a number becomes an element of the buffer's type."""
    for dtype, bits in (("bfloat16", 0x3F81), (np.float16, 0x3C04)):
        buffer = device.allocate(8, dtype=dtype)
        device.queue.fill(buffer, 1 + 2.0**-8 + 2.0**-40)
        found = buffer.numpy(timeout=LIMIT)
        assert found.shape == (4,)
        assert found.view(np.uint16).tolist() == [bits] * 4
