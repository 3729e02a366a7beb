"""tinygrad's device ``HAL``: the device of hal that ``HAL_DEVICE`` names (default: cpu)."""

import functools
import os
import sys

import numpy as np
from tinygrad.device import Compiled, CompileError, Compiler, Device, LRUAllocator, MultiBuffer
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import MultiGraphRunner
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


class HALRenderer(CUDARenderer):  # what it writes is in hal's portable dialect
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
        return self.dev.run(wait, (), self.dev.hal.queue.dispatch, self.kernel, **given)


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
        dest_dev.run(False, [src_dev], dest_dev.hal.queue.copy, src, dest, size=sz)

    def _offset(self, buf, size, offset):
        return buf.subspan(offset, size)


class HALGraph(MultiGraphRunner):  # one recording for all devices, with slots for what varies
    def __init__(self, linear, input_uops=()):
        super().__init__(linear, input_uops)
        self.main, *self.others = dict.fromkeys(Device[b.device] for c in self.calls for b in c[2])
        inputs = {}
        for (n, _, bufs, _), replaced in zip(self.calls, self.uop_replace, strict=True):
            inputs |= {bufs[position]: (index, n) for position, index in replaced}
        self.inputs = list(inputs.values())  # without the buffers, which may then be freed
        kinds = {buf: (np.uint8, None, Device[buf.device].hal) for buf in inputs}
        kinds |= dict.fromkeys(self.vars, "scalar") | dict.fromkeys(self.symbolic_dims, "grid")
        with self.main.hal.record(slots=list(kinds.values()), hazards="auto") as commands:
            slots = dict(zip(kinds, commands.slots, strict=True))
            for (_, ast, bufs, fixed), runtime in zip(self.calls, self.runtimes, strict=True):
                args = [slots.get(buf, buf._buf) for buf in bufs]
                with commands.on(Device[bufs[0].device].hal):
                    if runtime is None:
                        commands.copy(args[1], args[0], size=bufs[0].nbytes)
                        continue
                    args += [(fixed | slots)[var.expr] for var in ast.arg.vars]
                    grid, block = tuple(ast.arg.global_size), ast.arg.local_size
                    grid = slots.get(grid, grid)
                    commands.dispatch(runtime.kernel, grid=grid, block=block, args=args)
        self.execute = functools.partial(self.main.hal.queue.execute, commands)

    def __call__(self, input_uops, var_vals, wait=False):
        bufs = [(input_uops[index].buffer, n) for index, n in self.inputs]
        bindings = [(buf.bufs[n] if isinstance(buf, MultiBuffer) else buf)._buf for buf, n in bufs]
        bindings += [var_vals[name] for name in self.vars]
        bindings += [tuple(sym_infer(n, var_vals) for n in dim) for dim in self.symbolic_dims]
        return self.main.run(wait, self.others, self.execute, bindings=bindings)


class HALDevice(Compiled):
    def __init__(self, device):
        index = device.partition(":")[2]
        self.hal = hal.create_device(f"{NAME}:{index}" if index and NAME != "cpu" else NAME)
        HALCompiler.device = self.hal
        program, arch = functools.partial(HALProgram, self), self.hal.info.architecture
        super().__init__(device, HALAllocator(self), [HALRenderer], program, HALGraph, arch)

    def run(self, timed, others, submit, *args, **kwargs):  # in the others' order, too
        if others:
            kwargs["wait"] = [other.hal.queue.barrier() for other in others]
        begin = self.hal.queue.timestamp() if timed else None
        done = submit(*args, **kwargs)
        for other in others:
            other.hal.queue.barrier(wait=done)
        end = self.hal.queue.timestamp() if timed else None
        return end.wait() or end.seconds_since(begin) if timed else None

    def synchronize(self):
        self.hal.wait_idle()


sys.modules["tinygrad.runtime.ops_hal"] = sys.modules[__name__]
