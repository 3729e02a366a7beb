"""What kernels print and trace comes back with the run (C5)."""

from __future__ import annotations

import pytest

import hal
from hal.flow import Context, Flow, Step
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
def test_each_run_has_what_it_printed_c5(device):
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
def test_recordings_and_routines_print_c5(device):
    """C5: each execution into the output that is bound then, each call into the one it gives."""
    program = device.compile(SOURCE)
    with device.record(slots=1) as recording:
        recording.dispatch(program["tell"], grid=1, args=(0, 2, recording.slots[0]))
    outputs = [hal.Output(device) for _ in range(4)]
    runs = [device.queue.execute(recording, bindings=[output]) for output in outputs[:2]]
    with Flow(device) as flow, Context(flow) as context:
        for steps, output in zip((1, 2), outputs[2:], strict=True):
            routine = context.link(program, *[Step("tell", 1)] * steps)
            runs.append(routine(first=0, n=2, hal_output=output))
        for run, output, count in zip(runs, outputs, (1, 1, 1, 2), strict=True):
            printed = str(output.read(wait=run, timeout=LIMIT))
            assert sorted(printed.splitlines(keepends=True)) == sorted([line(0), line(1)] * count)


@pytest.mark.feature("compile")
def test_what_is_printed_is_bounded_c5(device):
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
def test_chosen_threads_trace_c5(device):
    """C5: a trace has the value's text, and is logged for the threads that were chosen."""
    kernel = device.compile(SOURCE, trace="threadIdx.x == 3")["tell"]
    output = hal.Output(device)
    run = device.queue.dispatch(kernel, grid=2, args=(7, 0, output))
    printed = output.read(wait=run, timeout=LIMIT)
    found = {said.block[0]: (said.thread, said.text) for said in printed.lines}
    assert found == {0: ((3, 0, 0), "first + i = 10\n"), 1: ((3, 0, 0), "first + i = 42\n")}


NESTED = """
__global__ void HAL_BLOCK(8) nested(int n) {
  HAL_TRACE(n);
  for (int i = 0; i < n; ++i) {
    HAL_TRACE(i);
    if (i > 1)
      HAL_TRACE(i * 0.5f);
  }
  printf("end");
}
"""
TRACED = ["n = 3\n", "  i = 0\n", "  i = 1\n", "  i = 2\n", "    i * 0.5f = 1\n"]


@pytest.mark.feature("compile")
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_traces_show_how_the_source_is_nested_c5(device, monkeypatch, by):
    """C5: traces are indented; a variable switches them on for a program that does not ask."""
    condition = "threadIdx.x == 5"
    monkeypatch.delenv("HAL_TRACE_KERNELS", raising=False)
    if by == "variable":
        monkeypatch.setenv("HAL_TRACE_KERNELS", condition)
    kernel = device.compile(NESTED, trace=condition if by == "argument" else None)["nested"]
    output = hal.Output(device)
    printed = output.read(wait=device.queue.dispatch(kernel, grid=1, args=(3, output)))
    found = [said.text for said in printed.lines if said.thread == (5, 0, 0)]
    assert [text.replace("1.0", "1") for text in found] == [*TRACED, "end"]
    if by == "variable":  # the driver prints those of a run without an output
        device.queue.dispatch(kernel, grid=1, args=(3,)).wait(LIMIT)


@pytest.mark.feature("compile")
def test_omitted_output_can_be_discarded_c5(device, capfd):
    """C5: of a run without an output nothing is printed then; an output takes all of it."""
    kernel = device.compile(NESTED, omitted_output="discard")["nested"]
    device.wait_idle(LIMIT)
    capfd.readouterr()  # what earlier runs printed: a driver may hold it back until then
    device.queue.dispatch(kernel, grid=1, args=(3,)).wait(LIMIT)
    device.wait_idle(LIMIT)
    assert capfd.readouterr().out == ""
    output = hal.Output(device)
    printed = output.read(wait=device.queue.dispatch(kernel, grid=1, args=(3, output)))
    assert str(printed) == 8 * "end"
