"""Contexts and routines: names with a memory mode, and kernels that are linked with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hal
from hal.errors import ClosedError, InvalidArgumentError
from hal.flow import Context, Flow, Merge, Step
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

SOURCE = """
__global__ void HAL_BLOCK(64) add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
__global__ void HAL_BLOCK(64) merge(const int *theirs, int *ours) {
  ours[threadIdx.x] += theirs[threadIdx.x];
}
"""
NUMBERS = np.arange(64, dtype=np.int32)


@pytest.fixture
def model(flow: Flow) -> Iterator[Context]:
    """A context with numbers, and with zeros."""
    with Context(flow, name="model") as made:
        made.from_host("x", NUMBERS)
        made.allocate("y", 256, dtype=np.int32, mode="hosted", clear=True)
        yield made


@pytest.fixture
def kernels(device: hal.Device) -> hal.Executable:
    """The kernels that the tests link."""
    return device.compile(SOURCE)


def test_a_routine_is_bound_by_name_and_ordered_by_the_bytes_q4(model, kernels, gate):
    """Q4: what a call does not give is bound; calls wait for what they read."""
    assert not model["y"].numpy(timeout=LIMIT).any()
    routine = model.link(kernels, Step("add", grid=1))
    model["x"].write(NUMBERS * 2, wait=gate.at(1))
    last = routine(amount=5)
    assert last.state == "pending"
    gate.signal(1)
    assert np.array_equal(model["y"].numpy(timeout=LIMIT), NUMBERS * 2 + 5)


def test_a_call_gives_pointers_and_numbers_c5(model, kernels, flow):
    """C5: several steps, dispatched and recorded, with a buffer that each call brings."""
    model.allocate("between", 256, dtype=np.int32, mode="local")
    steps = (
        Step("add", grid=1, buffers={"x": None, "y": "between"}),
        Step("add", grid=1, buffers={"x": "between"}),
    )
    routine = model.link(kernels, *steps)
    for index in range(8):
        batch = flow.from_host(NUMBERS * index)
        routine(x=batch, amount=index // 4)
        wanted = NUMBERS * index + 2 * (index // 4)
        assert np.array_equal(model["y"].numpy(timeout=LIMIT), wanted)


def test_a_mode_says_who_may_do_what_m2(model, kernels, flow):
    """M2: a constant is not written, in whichever way, and device memory stays there."""
    constant = model.from_host("constant", NUMBERS, mode="constant")
    kept = model.allocate("kept", 256, dtype=np.int32)
    assert kept is not None
    for write in (
        lambda: constant.write(NUMBERS),
        lambda: constant.fill(0),
        lambda: flow.copy(model["x"], constant),
        lambda: model.link(kernels, Step("add", grid=1, buffers={"y": "constant"})),
        lambda: flow.dispatch(kernels["add"], grid=1, args=(model["x"], constant, 1)),
        lambda: kept.write(NUMBERS),
        lambda: kept.numpy(timeout=LIMIT),
        lambda: model["x"].write(NUMBERS.astype(np.float32)),
    ):
        with pytest.raises(InvalidArgumentError):
            write()
    assert np.array_equal(constant.numpy(timeout=LIMIT), NUMBERS)


def test_a_closed_context_frees_its_memory_m1(flow, kernels, device):
    """M1: whatever routines there still are."""
    device.wait_idle(LIMIT)
    before = device.statistics().bytes_now
    context = Context(flow, name="closing")
    for name in "xy":
        context.allocate(name, 256, dtype=np.int32)
    routine = context.link(kernels, *[Step("add", grid=1)] * 2)
    for _ in range(4):
        routine(amount=1)
    context.close()
    device.wait_idle(LIMIT)
    assert device.statistics().bytes_now == before
    with pytest.raises(ClosedError, match="closing"):
        routine(amount=1)


@pytest.mark.parametrize("mode", ["copy", "streaming"])
def test_a_routine_merges_what_it_expects_q4(virtual, mode):
    """Q4: the same routine in both modes; something else is refused, and no source is written."""
    with Flow(*virtual) as flow:
        ours, theirs = (Context(flow, device=each) for each in virtual)
        for context in (ours, theirs):
            context.from_host("grad", NUMBERS)
            context.from_host("other", NUMBERS)
        loaded = ours.device.compile(SOURCE)
        merge = flow.merge_buffer(ours.device)
        step = Step("merge", grid=1, buffers={"theirs": Merge("grad"), "ours": "grad"})
        routine = ours.link(loaded, step)
        for count in (2, 3):
            merge.load(theirs["grad"], mode)
            routine()
            assert np.array_equal(ours["grad"].numpy(timeout=LIMIT), NUMBERS * count)
        writing = (ours["other"], merge.expect("grad", mode), 1)
        with pytest.raises(InvalidArgumentError):
            flow.dispatch(loaded["add"], grid=1, args=writing)
        merge.load(theirs["other"], mode)
        with pytest.raises(InvalidArgumentError, match="expected to hold 'grad'"):
            routine()
        assert np.array_equal(theirs["grad"].numpy(timeout=LIMIT), NUMBERS)
