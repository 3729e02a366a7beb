"""Load code that was compiled by others, for others (C5)."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUDA_SOURCE = """
struct Range { float low, high; };

extern "C" __global__ void clamp_rows(const float* in, float* out, Range range, int columns) {
  __shared__ float row[256];
  const int column = threadIdx.x;
  if (column < columns) row[column] = in[blockIdx.x * columns + column];
  __syncthreads();
  if (column < columns) {
    const float value = row[columns - 1 - column];
    out[blockIdx.x * columns + column] = fminf(fmaxf(value, range.low), range.high);
  }
}
"""


@triton.jit
def row_softmax(out, source, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(source + row * columns + offsets, mask=mask, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + offsets, values / tl.sum(values, axis=0), mask=mask)


def capability(device):
    """Return the compute capability as a number, 90 for sm_90."""
    return int(device.info.architecture.removeprefix("sm_").rstrip("af"))


def test_a_cubin_of_triton(device):
    source = ASTSource(
        row_softmax,
        signature={"out": "*fp32", "source": "*fp32", "columns": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": 1024},
    )
    built = triton.compile(source, target=GPUTarget("cuda", capability(device), 32))
    program = device.load(built.asm["cubin"])
    kernel = program[built.metadata.name]
    rows, columns = 64, 1000
    values = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    given, out = device.upload(values), device.upload(np.full_like(values, np.nan))
    # Triton appends pointers to scratch memory that this kernel does not use.
    scratch = [device.allocate(256) for _ in kernel.signature.parameters[3:]]
    device.queue.dispatch(
        kernel,
        grid=rows,
        block=32 * built.metadata.num_warps,
        shared_memory=built.metadata.shared,
        args=(out, given, np.int32(columns), *scratch),
    )
    wanted = np.exp(values.astype(np.float64))
    wanted /= wanted.sum(axis=1, keepdims=True)
    assert np.abs(out.numpy() - wanted).max() < 1e-6


@pytest.mark.parametrize("kind", ["cubin", "ptx", "fatbin"])
def test_an_image_of_nvcc(device, tmp_path, kind):
    nvcc = shutil.which("nvcc")
    assert nvcc, "there is no nvcc on the PATH"
    text, image = tmp_path / "clamp.cu", tmp_path / f"clamp.{kind}"
    text.write_text(CUDA_SOURCE, encoding="utf-8")
    architecture = f"-arch=sm_{capability(device)}"
    subprocess.run([nvcc, f"-{kind}", architecture, "-o", image, text], check=True)
    program = device.load(image)
    values = np.random.default_rng(2).normal(size=(100, 200)).astype(np.float32)
    given, out = device.upload(values), device.upload(np.full_like(values, np.nan))
    bounds = np.array((-0.5, 0.75), dtype=[("low", np.float32), ("high", np.float32)])
    # The image names no parameters: numpy scalars and buffers of its own sizes.
    device.queue.dispatch(
        program["clamp_rows"], grid=100, block=256, args=(given, out, bounds[()], np.int32(200))
    )
    assert np.array_equal(out.numpy(), values[:, ::-1].clip(-0.5, 0.75))
