"""What kernels print and trace comes back with the run (C5)."""

from __future__ import annotations

import pytest

import hal
from hal_conformance.suite.support import LIMIT

SOURCE = r"""
__device__ void say(int i) { printf("%d is %s at %.1f\n", i, i % 2 ? "odd" : "even", i * 0.5); }
__global__ void HAL_BLOCK(32) tell(int first, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) say(first + i);
  HAL_TRACE(first + i);
}
"""


def line(i: int) -> str:
    """Return what a thread says."""
    return f"{i} is {'odd' if i % 2 else 'even'} at {i * 0.5:.1f}\n"


@pytest.mark.feature("compile")
def test_each_run_has_what_it_printed_c5(device: hal.Device) -> None:
    """C5: runs on several queues print each into an output of their own, with the thread."""
    kernel = device.compile(SOURCE)["tell"]
    queues = (device.queues.compute, device.queues.upload, device.queues.download)
    outputs = [hal.Output(device) for _ in range(6)]
    runs = [
        queues[number % 3].dispatch(kernel, grid=2, args=(100 * number, 40, output))
        for number, output in enumerate(outputs)
    ]
    for number, (output, run) in enumerate(zip(outputs, runs, strict=True)):
        printed = output.read(wait=run, timeout=LIMIT)
        found = {32 * said.block[0] + said.thread[0]: said.text for said in printed.lines}
        assert found == {i: line(100 * number + i) for i in range(40)}
        assert printed.cut == 0
        assert sorted(str(printed)) == sorted("".join(found.values()))


@pytest.mark.feature("compile")
def test_what_is_printed_is_bounded_c5(device: hal.Device) -> None:
    """C5: what has no room in an output is counted, and nothing else is written over."""
    kernel = device.compile(SOURCE)["tell"]
    output = hal.Output(device, 1000)
    run = device.queue.dispatch(kernel, grid=2, args=(0, 64, output))
    printed = output.read(wait=run, timeout=LIMIT)
    assert 0 < len(printed.lines) < 20
    assert printed.cut == 64 - len(printed.lines)
    assert {said.text for said in printed.lines} < {line(i) for i in range(64)}
    assert f"[{printed.cut} more calls" in str(printed)


@pytest.mark.feature("compile")
def test_chosen_threads_trace_c5(device: hal.Device) -> None:
    """C5: a trace has the value's text, and is logged for the threads that were chosen."""
    kernel = device.compile(SOURCE, trace="threadIdx.x == 3")["tell"]
    output = hal.Output(device)
    run = device.queue.dispatch(kernel, grid=2, args=(7, 0, output))
    printed = output.read(wait=run, timeout=LIMIT)
    found = {said.block[0]: (said.thread, said.text) for said in printed.lines}
    assert found == {
        0: ((3, 0, 0), "first + i = 10\n"),
        1: ((3, 0, 0), "first + i = 42\n"),
    }
