"""Compile a kernel, record it, submit it before its input is promised, then promise it."""

# ruff: noqa: T201 - an example shows and checks what it found

import sys

import numpy as np

import hal

SOURCE = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""
COUNT = 1 << 20


def main() -> None:
    """Run on the device named on the command line, by default the processor."""
    with hal.create_device(sys.argv[1] if len(sys.argv) > 1 else "cpu") as device:
        x = device.upload(np.arange(COUNT, dtype=np.float32))
        y = device.upload(np.ones(COUNT, dtype=np.float32))

        saxpy = device.compile(SOURCE)["saxpy"]
        print(saxpy.signature)

        with device.record() as commands:  # reusable
            commands.dispatch(saxpy, grid=COUNT // 256, block=256, args=(2.0, x, y, COUNT))

        ready, done = hal.create_semaphore(), hal.create_semaphore()
        device.queue.execute(commands, wait=[ready.at(1)], signal=[done.at(1)])  # returns at once
        ready.signal(1)  # only now the work starts
        done.wait(1, timeout=60)

        result = y.numpy()
        np.testing.assert_array_equal(result, 2 * np.arange(COUNT, dtype=np.float32) + 1)
        print(result[:4], "...", result[-1])


if __name__ == "__main__":
    main()
