"""What tinygrad 0.12.0 and its tests need to run with the adapter of ``examples/tinygrad_backend``.

The adapter is for tinygrad 0.13, whose source distribution on PyPI has no tests. That of 0.12.0 has
them, but not all that they import. This module, which pytest loads first, gives the adapter's
classes the interface of 0.12, in which a device names its renderers otherwise and a batch of the
JIT is a list of runners; and it stands for ``test.helpers`` and ``extra.models.unet``, in our own
words.
"""

import sys
from types import SimpleNamespace

import ops_hal
from tinygrad.device import Compiled, CompilerPair, CompilerSet, Device
from tinygrad.engine.jit import GraphRunner, MultiGraphRunner


class HALRenderer(ops_hal.HALRenderer):
    def __init__(self):
        self.compiler = ops_hal.HALCompiler()


class _Batch(MultiGraphRunner):
    """A batch with its calls, which the adapter takes for the class of 0.13."""

    def __init__(self, linear, inputs):
        batch, var_vals = linear
        super().__init__(batch, inputs, var_vals)
        self.runtimes = [getattr(item.prg, "_prg", None) for item in batch]
        self.calls = [
            (0, SimpleNamespace(arg=getattr(item.prg, "p", None)), item.bufs, item.fixedvars)
            for item in batch
        ]
        self.uop_replace = [[] for _ in batch]
        for (call, position), index in self.input_replace.items():
            self.uop_replace[call].append((position, index))


class HALGraph(ops_hal.HALGraph, _Batch):
    def __init__(self, batch, inputs, var_vals):
        super().__init__((batch, var_vals), inputs)

    def __call__(self, inputs, var_vals, **how):
        uops = [SimpleNamespace(buffer=buffer) for buffer in inputs]
        return super().__call__(uops, var_vals, **how)


class _Compiled(Compiled):
    """A device class that the adapter takes for that of 0.13."""

    def __init__(self, device, allocator, renderers, program, graph, arch):
        compilers = CompilerSet([CompilerPair(HALRenderer, None)])
        super().__init__(device, allocator, compilers, program, HALGraph)


class HALDevice(ops_hal.HALDevice, _Compiled):
    pass


def assert_jit_cache_len(step, expected):
    """Check how many kernels and copies a captured step has, which is one batch if any is."""
    runners = [item.prg for item in step.jit_cache]
    batches = [runner.jit_cache for runner in runners if isinstance(runner, GraphRunner)]
    assert len(runners) == (1 if batches else expected)
    assert not batches or len(batches[0]) == expected


class ResBlock:
    """Only its name is needed: the test that uses it is for tinygrad's CPU device alone."""


sys.modules["tinygrad.runtime.ops_hal"] = sys.modules[__name__]
sys.modules["test.helpers"] = SimpleNamespace(
    REAL_DEV=Device.DEFAULT,
    assert_jit_cache_len=assert_jit_cache_len,
    needs_second_gpu=lambda test: test,  # hal opens the CPU as often as it is asked to
    not_support_multi_device=lambda: False,
)
sys.modules["extra.models.unet"] = SimpleNamespace(ResBlock=ResBlock)
