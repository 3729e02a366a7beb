"""Measure kernels: the CPU backend against the same loops in C++ with OpenMP.

Both sides use as many threads, take data of the same size that is already
where they work on it, and are timed by the host from the call (or submission)
to the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from harness import Row, Sample
from native import NativeLoops

import hal
from hal.demo.kernels import BLOCK, SOURCE, defines, gaussian

__all__ = ["BLUR_DEFINES", "rows"]

_WEIGHTS: Final = gaussian(2.0)
_RADIUS: Final = len(_WEIGHTS) // 2
BLUR_DEFINES: Final = defines(_WEIGHTS)
"""The macros of the blur, for both sides."""

_SAXPY_LENGTH: Final = 1 << 24
_SAXPY_BLOCK: Final = 256
_SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""

_clock = time.perf_counter


def rows(device: hal.Device, native: NativeLoops | None, *, quick: bool) -> list[Row]:
    """Return the rows; without `native` they have our side only.

    Each is in GB/s of what the loops read and write in memory, each array
    counted once: 12 bytes an element for saxpy, 16 a pixel for the two passes
    of the blur. The results of the two sides are compared first.
    """
    return [
        _saxpy_row(device, native, repeats=2 if quick else 5),
        _blur_row(device, native, side=1024 if quick else 4096),
    ]


def _saxpy_row(device: hal.Device, native: NativeLoops | None, *, repeats: int) -> Row:
    # Small whole numbers: every result is exact, whatever the order of roundings.
    x = (np.arange(_SAXPY_LENGTH) % 97).astype(np.float32)
    y = (np.arange(_SAXPY_LENGTH) % 89).astype(np.float32)
    device_x, device_y = device.upload(x), device.upload(y)
    kernel = device.compile(_SAXPY, filename="saxpy.cpp")["saxpy"]
    grid = -(-_SAXPY_LENGTH // _SAXPY_BLOCK)

    def ours() -> None:
        device.queue.dispatch(
            kernel,
            grid=grid,
            block=_SAXPY_BLOCK,
            args=(0.0, device_x, device_y, _SAXPY_LENGTH),
        ).wait()

    device.queue.dispatch(
        kernel, grid=grid, block=_SAXPY_BLOCK, args=(2.0, device_x, device_y, _SAXPY_LENGTH)
    ).wait()
    _require_equal("saxpy", device_y.numpy(), 2.0 * x + y, 0.0)
    sides = {"hal": _rate(ours, 12 * _SAXPY_LENGTH, repeats)}
    if native is not None:
        # Multiplied by 0, so that the values stay the same however often it is repeated.
        sides["openmp"] = _rate(lambda: native.saxpy(0.0, x, y), 12 * _SAXPY_LENGTH, repeats)
    return Row("saxpy, 16M floats", "GB/s", sides, higher_is_better=True)


def _blur_row(device: hal.Device, native: NativeLoops | None, *, side: int) -> Row:
    wide = side + 2 * _RADIUS
    source = (np.arange(wide * wide) % 251).astype(np.float32).reshape(wide, wide)
    scratch, target = np.zeros((wide, side), np.float32), np.zeros((side, side), np.float32)
    device_source, device_scratch, device_target = (
        device.upload(array) for array in (source, scratch, target)
    )
    device_size = device.upload(np.array([side, side], np.int32))
    program = device.compile(SOURCE, filename="demo.cpp", defines=BLUR_DEFINES)
    with device.record() as commands:
        commands.dispatch(
            program["blur_rows"],
            grid=(-(-side // BLOCK[0]), -(-wide // BLOCK[1])),
            block=BLOCK,
            args=(device_source, device_scratch, device_size, 0, 2 * _RADIUS),
        )
        commands.barrier()
        commands.dispatch(
            program["blur_columns"],
            grid=(-(-side // BLOCK[0]), -(-side // BLOCK[1])),
            block=BLOCK,
            args=(device_scratch, device_target, device_size, 0, 0),
        )

    def ours() -> None:
        device.queue.execute(commands).wait()

    size = 4 * (wide * wide + 2 * wide * side + side * side)
    sides = {"hal": _rate(ours, size, 1)}
    if native is not None:
        native.blur(source, scratch, target)
        ours()
        # Two sums of 17 products of numbers up to 250 each, in any order, in single precision.
        bound = 250 * 2.0**-24 * 2 * (2 * _RADIUS + 3)
        _require_equal("blur", device_target.numpy(), target, bound)
        sides["openmp"] = _rate(lambda: native.blur(source, scratch, target), size, 1)
    return Row(f"blur of the demo, {side} x {side}", "GB/s", sides, higher_is_better=True)


def _rate(work: Callable[[], None], size: int, repeats: int) -> Sample:
    def sample() -> Mapping[str, float]:
        start = _clock()
        for _ in range(repeats):
            work()
        return {"": 1e-9 * size * repeats / (_clock() - start)}

    return sample


def _require_equal(
    what: str,
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    expected: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    bound: float,
) -> None:
    difference = float(np.abs(found.reshape(-1) - expected.reshape(-1)).max())
    if not difference <= bound:
        message = f"{what}: the two sides differ by {difference:g}, more than {bound:g}"
        raise AssertionError(message)
