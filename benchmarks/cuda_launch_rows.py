"""Launch the same kernels through what else drives a CUDA device from Python; see `launch_rows`.

The driver's bindings and cuda.core load the image that hal has compiled; CuPy compiles the source.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from cuda_rows import Driver
from launch_rows import BLOCK, Kernels, source

import hal

__all__ = ["sides"]

_GRID: Final = (1, 1, 1)
_THREADS: Final = (BLOCK, 1, 1)


def _typed(arguments: Sequence[object]) -> list[Any]:
    """Return addresses as ints, and numbers in numpy's types: the other libraries want them so."""
    return [_plain(each) for each in arguments]


def _plain(argument: object) -> Any:  # noqa: ANN401 - an address or a number of numpy
    if isinstance(argument, hal.Buffer):
        return argument.address
    return np.float32(argument) if isinstance(argument, float) else np.int32(argument)


class _Raw:
    """The driver's bindings, with parameters that were packed once."""

    def __init__(self, kernels: Kernels) -> None:
        driver = Driver(kernels.buffers[0].device.info.index)
        self._cu, self._call, self._kernels = driver.cu, driver.call, kernels
        self._stream, self.result = driver.stream(), kernels.result
        self._functions: dict[int, Any] = {}
        for count, loaded in kernels.loaded.items():
            module = self._call(self._cu.cuModuleLoadData(loaded.image))
            name = b"add%d" % count
            self._functions[count] = self._call(self._cu.cuModuleGetFunction(module, name))
        self._kept: list[object] = []  # what addresses stand for

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Implement `LaunchSide.dispatch`."""
        start, function, stream = self._cu.cuLaunchKernel, self._functions[arguments], self._stream
        parameters = self._packed(self._kernels.arguments(arguments))

        def launch(count: int) -> None:
            for _ in range(count):
                start(function, 1, 1, 1, BLOCK, 1, 1, 0, stream, parameters, 0)

        return launch

    def execute(self, dispatches: int) -> Callable[[int], None]:
        """Implement `LaunchSide.execute`: launch a graph."""
        instance, _ = self._graph(dispatches)
        return self._launcher(instance)

    def rebind(self, dispatches: int, tables: int) -> Callable[[int], None]:  # noqa: ARG002
        """Launch the same graph with what it has: the least that any way to new bindings costs."""
        return self.execute(dispatches)

    def finish(self) -> None:
        """Implement `LaunchSide.finish`."""
        self._call(self._cu.cuStreamSynchronize(self._stream))

    def _launcher(self, instance: object) -> Callable[[int], None]:
        start, stream = self._cu.cuGraphLaunch, self._stream

        def run(count: int) -> None:
            for _ in range(count):
                start(instance, stream)

        return run

    def _graph(self, dispatches: int) -> tuple[Any, list[Any]]:
        """Return an instance with so many launches in a row, and its nodes."""
        cu = self._cu
        graph = self._call(cu.cuGraphCreate(0))
        nodes: list[Any] = []
        parameters = self._node_parameters(self._kernels.buffers[:2])
        for _ in range(dispatches):
            before = nodes[-1:]
            node = self._call(cu.cuGraphAddKernelNode(graph, before, len(before), parameters))
            nodes.append(node)
        return self._call(cu.cuGraphInstantiate(graph, 0)), nodes

    def _node_parameters(self, buffers: Sequence[hal.Buffer]) -> Any:  # noqa: ANN401
        found = self._cu.CUDA_KERNEL_NODE_PARAMS()
        found.func = self._functions[4]
        found.gridDimX, found.gridDimY, found.gridDimZ = _GRID
        found.blockDimX, found.blockDimY, found.blockDimZ = _THREADS
        found.kernelParams = self._packed([buffers[0], 0, buffers[1], 0.0])
        self._kept.append(found)
        return found

    def _packed(self, arguments: Sequence[object]) -> int:
        """Return the address of an array of the addresses of the arguments' values."""
        values = [np.array([each]) for each in _typed(arguments)]
        packed = np.array([each.ctypes.data for each in values], np.uint64)
        self._kept += [*values, packed]
        return int(packed.ctypes.data)


class _Packing(_Raw):
    """The driver's bindings, with parameters that are packed in each call."""

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Implement `LaunchSide.dispatch`."""
        start, function, stream = self._cu.cuLaunchKernel, self._functions[arguments], self._stream
        kinds = {int: ctypes.c_void_p, np.int32: ctypes.c_int, np.float32: ctypes.c_float}
        values = _typed(self._kernels.arguments(arguments))
        types = tuple(kinds[type(each)] for each in values)
        plain = [each if isinstance(each, int) else each.item() for each in values]

        def launch(count: int) -> None:
            for _ in range(count):
                start(function, 1, 1, 1, BLOCK, 1, 1, 0, stream, ((*plain,), types), 0)

        return launch

    def rebind(self, dispatches: int, tables: int) -> Callable[[int], None]:
        """Give each node its new parameters, which were packed once, and launch the graph."""
        update, start = self._cu.cuGraphExecKernelNodeSetParams, self._cu.cuGraphLaunch
        instance, nodes = self._graph(dispatches)
        packed = [self._node_parameters(each) for each in self._kernels.pairs(tables)]
        stream = self._stream

        def run(count: int) -> None:
            for number in range(count):
                parameters = packed[number % tables]
                for node in nodes:
                    update(instance, node, parameters)
                start(instance, stream)

        return run


class _Cupy:
    """CuPy's RawKernel."""

    def __init__(self, kernels: Kernels) -> None:
        cupy = importlib.import_module("cupy")
        self._cupy, self._kernels = cupy, kernels
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._arrays = {each.address: cupy.zeros(BLOCK, cupy.int32) for each in kernels.buffers}
        cupy.cuda.Device().synchronize()

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Implement `LaunchSide.dispatch`."""
        text = source(arguments).replace(f"HAL_BLOCK({BLOCK})", "")
        kernel, stream = self._cupy.RawKernel(text, f"add{arguments}"), self._stream
        values = [
            self._arrays[each] if isinstance(each, int) else each
            for each in _typed(self._kernels.arguments(arguments))
        ]

        def launch(count: int) -> None:
            with stream:
                for _ in range(count):
                    kernel((1,), (BLOCK,), (*values,))

        return launch

    def finish(self) -> None:
        """Implement `LaunchSide.finish`."""
        self._stream.synchronize()

    def result(self) -> int:
        """Implement `LaunchSide.result`."""
        return int(self._arrays[self._kernels.buffers[0].address][0])


class _CudaCore:
    """cuda.core's launch."""

    def __init__(self, kernels: Kernels) -> None:
        core = importlib.import_module("cuda.core")
        if not hasattr(core, "Device"):
            core = importlib.import_module("cuda.core.experimental")
        device = core.Device(kernels.buffers[0].device.info.index)
        device.set_current()
        self._core, self._kernels, self._stream = core, kernels, device.create_stream()
        self.result = kernels.result

    def dispatch(self, arguments: int) -> Callable[[int], None]:
        """Implement `LaunchSide.dispatch`."""
        start, stream = self._core.launch, self._stream
        config = self._core.LaunchConfig(grid=1, block=BLOCK)
        code = self._core.ObjectCode.from_cubin(self._kernels.loaded[arguments].image)
        kernel = code.get_kernel(f"add{arguments}")
        values = _typed(self._kernels.arguments(arguments))

        def launch(count: int) -> None:
            for _ in range(count):
                start(stream, config, kernel, *values)

        return launch

    def finish(self) -> None:
        """Implement `LaunchSide.finish`."""
        self._stream.sync()


def sides() -> Iterator[tuple[str, Callable[[Kernels], Any]]]:
    """Return what else can be measured: a name, and what raises what is missing."""
    yield "raw", _Raw
    yield "raw, packing", _Packing
    yield "cupy", _Cupy
    yield "cuda.core", _CudaCore
