"""Measure tinygrad on hal, by the adapter of ``examples/``, beside its own backend for the device.

tinygrad schedules, renders and compiles for both; what differs is who compiles and who submits.
The sources that tinygrad writes for a CPU are loops, and those for hal are kernels of threads.

tinygrad's CUDA backend makes a context of its own and leaves it current. hal takes the device's
primary one, as other libraries do, and while another is current its C extension leaves all to
Python. So the primary one is made current before each sample of hal.
"""
# ruff: noqa: ANN401 - tinygrad's objects, which the project is not checked with

from __future__ import annotations

import importlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from harness import Row, Sample

import hal

__all__ = ["rows"]

_ADAPTER: Final = Path(__file__).parents[1] / "examples" / "tinygrad_backend"
_OWN: Final = {"cpu": "CPU", "cuda": "CUDA"}
"""tinygrad's own device for the same hardware, by the name of our backend."""
_KERNELS: Final = 8
_BATCH: Final = 64
_PASSES: Final = 4
"""Over the small kernels, between two waits of the host."""
_WARM: Final = 4
"""Calls until a TinyJit only replays."""
_MATRIX: Final = 256

_clock = time.perf_counter


def rows(device: hal.Device) -> list[Row]:
    """Return the rows, in microseconds; raises `ImportError` without tinygrad, or what it needs."""
    os.environ["HAL_DEVICE"] = device.backend
    os.environ["CACHELEVEL"] = "0"  # nothing in the user's cache
    sys.path.append(str(_ADAPTER))
    importlib.import_module("ops_hal")
    own = _OWN.get(device.backend)
    if own is None or (own == "CPU" and shutil.which("clang") is None):
        message = f"tinygrad has no backend of its own for {device.backend} here"
        raise ImportError(message)
    devices = {"hal": "HAL", own: own}
    found = [Row("launch", "us", {side: _launches(name) for side, name in devices.items()})]
    for title, make, count in (
        (f"a step of {_KERNELS} small kernels", _small_kernels, 50),
        ("a training step", _training_step, 20),
        (f"a product of matrices, {_MATRIX} by {_MATRIX}", _product, 10),
    ):
        steps = {side: make(name) for side, name in devices.items()}
        _compare(*(step().numpy() for step in steps.values()))
        sides = {side: _timed(devices[side], step, count) for side, step in steps.items()}
        found.append(Row(title, "us", sides))
    return found


def _timed(device: str, step: Callable[[], Any], count: int) -> Sample:
    """Return what replays a step so often, and waits for all of it."""
    from tinygrad import Device  # noqa: PLC0415 - it may not be installed

    synchronize = Device[device].synchronize

    def sample() -> Mapping[str, float]:
        _enter(device)
        start = _clock()
        for _ in range(count):
            step()
        synchronize()
        return {"": (_clock() - start) / count * 1e6}

    return sample


def _enter(device: str) -> None:
    """Make the primary context of the GPU current, if that is what hal runs on."""
    if device == "HAL" and os.environ["HAL_DEVICE"] == "cuda":
        import cuda.bindings.driver as cu  # noqa: PLC0415

        (_, context) = cu.cuDevicePrimaryCtxRetain(0)
        cu.cuCtxSetCurrent(context)
        cu.cuDevicePrimaryCtxRelease(0)


def _jitted(step: Callable[[], Any]) -> Callable[[], Any]:
    """Return a step that replays what it captured."""
    from tinygrad import TinyJit  # noqa: PLC0415

    found: Callable[[], Any] = TinyJit(step)
    for _ in range(_WARM):
        found()
    return found


def _chain(device: str) -> Callable[[], Any]:
    """Return a step of small kernels, each of which needs the one before."""
    tensor = _tensor(device, np.arange(256, dtype=np.float32))

    def step() -> Any:
        result = tensor
        for number in range(_KERNELS):
            result = (result * 0.5 + number).contiguous()
        return result.realize()

    return step


def _small_kernels(device: str) -> Callable[[], Any]:
    return _jitted(_chain(device))


def _launches(device: str) -> Sample:
    """Return what calls the programs of the small kernels one by one, as tinygrad's run does."""
    from tinygrad import Device  # noqa: PLC0415
    from tinygrad.engine.jit import GraphRunner  # noqa: PLC0415
    from tinygrad.helpers import Context  # noqa: PLC0415
    from tinygrad.uop.ops import UOp  # noqa: PLC0415

    with Context(JIT=2):  # no graph
        step: Any = _jitted(_chain(device))
    runner = GraphRunner(UOp.sink(step.captured.linear))
    launches = []
    for (_, program, buffers, _), runtime in zip(runner.calls, runner.runtimes, strict=True):
        handles = [buffer._buf for buffer in buffers]  # noqa: SLF001 - as tinygrad's runners do
        sizes = {
            "global_size": tuple(program.arg.global_size),
            "local_size": program.arg.local_size and tuple(program.arg.local_size),
        }
        launches.append((runtime, handles, sizes, buffers))  # they own the handles
    synchronize = Device[device].synchronize

    def sample() -> Mapping[str, float]:
        _enter(device)
        start = _clock()
        for _ in range(_PASSES):
            for runtime, handles, sizes, _ in launches:
                runtime(*handles, **sizes)
        submitted = _clock() - start
        synchronize()
        whole = _clock() - start
        count = _PASSES * len(launches)
        return {"submitted": submitted / count * 1e6, "done": whole / count * 1e6}

    return sample


def _training_step(device: str) -> Callable[[], Any]:
    """Return a step of a small network of two layers, by gradient descent; returns its loss."""
    from tinygrad import Tensor, nn  # noqa: PLC0415

    random = np.random.default_rng(0)
    x = _tensor(device, random.standard_normal((_BATCH, 64), dtype=np.float32))
    y = _tensor(device, random.integers(10, size=_BATCH).astype(np.int32))
    weights = [
        _tensor(device, random.standard_normal(shape, dtype=np.float32) / math.sqrt(shape[0]))
        for shape in ((64, 128), (128, 10))
    ]
    optimizer = nn.optim.SGD(weights, lr=1e-3)

    def step() -> Any:
        with Tensor.train():
            optimizer.zero_grad()
            loss = ((x @ weights[0]).relu() @ weights[1]).sparse_categorical_crossentropy(y)
            return loss.backward().realize(*optimizer.schedule_step())

    return _jitted(step)


def _product(device: str) -> Callable[[], Any]:
    random = np.random.default_rng(1)
    a, b = (
        _tensor(device, random.standard_normal((_MATRIX, _MATRIX), dtype=np.float32))
        for _ in range(2)
    )

    def step() -> Any:
        return (a @ b).realize()

    return _jitted(step)


def _tensor(device: str, array: npt.NDArray[Any]) -> Any:
    from tinygrad import Tensor  # noqa: PLC0415

    return Tensor(array, device=device).realize()


def _compare(ours: Any, theirs: Any) -> None:
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        message = "tinygrad finds something else on hal than on its own backend"
        raise RuntimeError(message)
