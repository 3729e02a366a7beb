"""Compile a Triton kernel, and launch it through hal on buffers of hal's and tensors of PyTorch.

Needs a CUDA device, triton and torch.
"""

# ruff: noqa: T201 - an example shows and checks what it found

import numpy as np
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import hal

COUNT, BLOCK = 100_000, 1024


@triton.jit
def saxpy(x, y, a, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, D103, N803 - Triton's own way
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, a * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


def main() -> None:
    """Run on the first CUDA device."""
    with hal.create_device("cuda") as device:
        types = {"x": "*fp32", "y": "*fp32", "a": "fp32", "n": "i32", "BLOCK": "constexpr"}
        source = ASTSource(saxpy, types, constexprs={"BLOCK": BLOCK})
        target = GPUTarget("cuda", int(device.info.architecture.removeprefix("sm_")), 32)
        compiled = triton.compile(source, target=target)

        # Triton adds two pointers to scratch memory, which this kernel does not use.
        described = {
            "signature": "(const f32* x, f32* y, f32 a, i32 n, ptr scratch, ptr profile)",
            "block": 32 * compiled.metadata.num_warps,
            "shared_memory": compiled.metadata.shared,
        }
        program = hal.Program.from_images(compiled.asm["cubin"], kernels={"saxpy": described})
        kernel, grid = device.load(program)["saxpy"], triton.cdiv(COUNT, BLOCK)

        numbers = np.arange(COUNT, dtype=np.float32)
        x, y = device.upload(numbers), device.upload(np.ones_like(numbers))
        device.queue.dispatch(kernel, grid=grid, args=(x, y, 2.0, COUNT, None, None))
        np.testing.assert_array_equal(y.numpy(), 2 * numbers + 1)

        tensor = torch.arange(COUNT, dtype=torch.float32, device="cuda")
        result = torch.ones_like(tensor)
        given = device.from_dlpack(tensor), device.from_dlpack(result)
        args = (*given, 2.0, COUNT, None, None)
        device.queue.dispatch(kernel, grid=grid, args=args).wait()
        torch.testing.assert_close(result, 2 * tensor + 1)
        print("buffers and tensors:", y.numpy()[:3], result[:3])


if __name__ == "__main__":
    main()
