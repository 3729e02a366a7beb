"""What kernels print comes back with the run on CUDA and on HIP, over gpusim (C5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from child_processes import run_alone

PROGRAM = """
import {harness}
{load}

import hal
from hal.flow import Context, Flow, Step

device = hal.create_device({backend!r})
program = device.compile('''
__device__ void helper(int i) {{ printf("helper %d of %s\\\\n", i, "all"); }}
__global__ void HAL_BLOCK(4) tell(int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) helper(i);
  HAL_TRACE(i * 0.5f);
}}
''', trace="threadIdx.x == 1")
first, second, small = (hal.Output(device, size) for size in (4096, 4096, 200))
runs = [
    device.queue.dispatch(program["tell"], grid=2, args=(n, output))
    for n, output in ((6, first), (2, second), (6, small))
]
print(sorted(str(first.read(wait=runs[0])).splitlines()))
print(sorted(str(second.read(wait=runs[1])).splitlines()))
print(small.read(wait=runs[2]).cut > 0)
print(sorted({{(line.block[0], line.thread[0]) for line in first.read().lines}}))
with device.record(slots=1) as commands:
    commands.dispatch(program["tell"], grid=1, args=(1, commands.slots[0]))
output = hal.Output(device)
print(str(output.read(wait=device.queue.execute(commands, bindings=[output]))).splitlines())
with Flow(device) as flow:
    context = Context(flow)
    for steps in ([Step("tell", 1)], [Step("tell", 1)] * 2):
        linked = context.link(program, *steps)
        output = hal.Output(device)
        print(str(output.read(wait=linked(n=1, hal_output=output))).splitlines())
device.close()
"""
LOADS = {
    "cuda": ("gpusim", "gpusim.load()"),
    "hip": ("hip_harness", "hip_harness.load()"),
}
MODULES = {"cuda": "cuda.bindings", "hip": "hip"}


@pytest.mark.parametrize("backend", LOADS)
def test_a_run_has_what_it_printed_c5(tmp_path, backend):
    pytest.importorskip(MODULES[backend], reason=f"the bindings of {backend} are not installed")
    harness, load = LOADS[backend]
    source = PROGRAM.format(harness=harness, load=load, backend=backend)
    done = run_alone(tmp_path, source, HOME=str(Path.home()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        str(
            sorted([f"helper {i} of all" for i in range(6)] + ["i * 0.5f = 0.5", "i * 0.5f = 2.5"])
        ),
        "['helper 0 of all', 'helper 1 of all', 'i * 0.5f = 0.5', 'i * 0.5f = 2.5']",
        "True",
        str([(0, i) for i in range(4)] + [(1, 0), (1, 1)]),
        "['helper 0 of all', 'i * 0.5f = 0.5']",
        "['helper 0 of all', 'i * 0.5f = 0.5']",
        str(["helper 0 of all", "i * 0.5f = 0.5"] * 2),
    ]
