"""tinygrad's device ``HAL``: the device of hal that ``HAL_DEVICE`` names (default: cpu)."""

import functools
import os
import sys

import numpy as np
from tinygrad.device import Compiled, CompileError, Compiler, Device, LRUAllocator
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import GraphRunner
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import CUDARenderer
from tinygrad.uop.ops import sym_infer

import hal

NAME = os.environ.get("HAL_DEVICE", "cpu")


class HALCompiler(Compiler):
    def compile(self, src):
        try:
            return hal.compile(src, target=self.device).to_bytes()
        except hal.errors.CompilationError as error:
            raise CompileError(str(error)) from error


class HALRenderer(CUDARenderer):
    """CUDA C++ as tinygrad writes it, which is in hal's portable dialect."""

    def __init__(self, target):
        Renderer.__init__(self, target)  # CUDARenderer's own wants NVIDIA's compiler
        self.compiler = HALCompiler()  # hal keeps what it compiled

    def supported_dtypes(self):
        return Renderer.supported_dtypes(self) - set(dtypes.fp8s)


class HALProgram:
    def __init__(self, dev, name, lib, *_, **__):
        self.dev, self.kernel = dev, dev.hal.load(lib)[name]

    def __call__(self, *bufs, global_size, local_size, vals=(), wait=False, **_):
        given = {"grid": global_size, "block": local_size, "args": bufs + vals}
        return self.dev.run(wait, self.dev.hal.queue.dispatch, self.kernel, **given)


class HALAllocator(LRUAllocator):
    def _alloc(self, size, options):
        return self.dev.hal.allocate(size, memory="host" if options.host else "device")

    def _free(self, opaque, options):
        opaque.close()

    def _copyin(self, dest, src):
        self.dev.hal.queue.write(dest, src).wait()

    def _copyout(self, dest, src):
        self.dev.hal.queue.read(src, dest).wait()

    def _transfer(self, dest, src, sz, src_dev, dest_dev):
        written = src_dev.hal.queue.barrier()
        copied = dest_dev.hal.queue.copy(src, dest, size=sz, wait=[written])
        src_dev.hal.queue.barrier(wait=[copied])

    def _offset(self, buf, size, offset):
        return buf.subspan(offset, size)


class HALGraph(GraphRunner):
    """A batch of kernels as one recording, with a slot for each input, variable and grid."""

    def __init__(self, linear, input_uops=()):
        super().__init__(linear, input_uops)
        self.dev = Device[self.calls[0][2][0].device]
        self.inputs = sorted({index for call in self.uop_replace for _, index in call})
        slots = [np.uint8] * len(self.inputs) + ["scalar"] * len(self.vars)
        slots += ["grid"] * len(self.symbolic_dims)
        with self.dev.hal.record(slots=slots, hazards="auto") as self.commands:
            slots = iter(self.commands.slots)
            inputs = dict(zip(self.inputs, slots, strict=False))
            numbers = dict(zip(self.vars, slots, strict=False))
            grids = [*slots]
            for j, (_, ast, bufs, fixed) in enumerate(self.calls):
                args = [buf._buf for buf in bufs]
                for position, index in self.uop_replace[j]:
                    args[position] = inputs[index]
                args += [(fixed | numbers)[var.expr] for var in ast.arg.vars]
                dim = self.launch_dims_replace.get(j, (None, None))[0]
                grid = ast.arg.global_size if dim is None else grids[dim]
                kernel, block = self.runtimes[j].kernel, ast.arg.local_size
                self.commands.dispatch(kernel, grid=grid, block=block, args=args)

    def __call__(self, input_uops, var_vals, wait=False):
        bindings = [input_uops[index].buffer._buf for index in self.inputs]
        bindings += [var_vals[name] for name in self.vars]
        bindings += [tuple(sym_infer(n, var_vals) for n in dim) for dim in self.symbolic_dims]
        return self.dev.run(wait, self.dev.hal.queue.execute, self.commands, bindings=bindings)


class HALDevice(Compiled):
    def __init__(self, device):
        index = device.partition(":")[2]
        self.hal = hal.create_device(f"{NAME}:{index}" if index and NAME != "cpu" else NAME)
        HALCompiler.device = self.hal
        program, arch = functools.partial(HALProgram, self), self.hal.info.architecture
        super().__init__(device, HALAllocator(self), [HALRenderer], program, HALGraph, arch)

    def run(self, timed, submit, *args, **kwargs):
        """Submit; if it is timed, wait, and return the seconds that the device took."""
        begin = self.hal.queue.timestamp() if timed else None
        submit(*args, **kwargs)
        return self.hal.queue.timestamp().seconds_since(begin) if begin else None

    def synchronize(self):
        self.hal.wait_idle()


sys.modules["tinygrad.runtime.ops_hal"] = sys.modules[__name__]
