"""What a buffer does that blocks by itself waits for everything that was submitted before (M2)."""

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeadlineExceededError, OperationError


def test_a_mapping_waits_for_what_it_is_told_m2(device):
    buffer = device.upload(np.zeros(4, np.uint8))
    never, soon = hal.create_semaphore(), hal.create_semaphore()
    device.queue.fill(buffer, 7, wait=never.at(1))
    filled = device.queues.upload.fill(buffer, 9, wait=soon.at(1))
    with pytest.raises(DeadlineExceededError):
        buffer.map(wait=filled, timeout=0)
    soon.signal(1)
    assert buffer.map(wait=filled, timeout=LIMIT).tolist() == [9] * 4
    soon.fail(OperationError("on purpose"))
    with pytest.raises(OperationError, match="on purpose"):
        buffer.map(wait=soon.at(1), timeout=LIMIT)


@pytest.mark.parametrize("method", ["numpy", "map"])
def test_a_wait_that_cannot_end_says_what_it_waits_for_s9(device, method):
    """S9: the operation, its queue, and what nobody has promised."""
    buffer = device.upload(np.zeros(4, np.uint8))
    never = hal.create_semaphore(name="never")
    device.create_queue(name="stuck").fill(buffer, 7, wait=never.at(3))
    with pytest.raises(DeadlineExceededError) as caught:
        getattr(buffer, method)(timeout=0.01)
    text = str(caught.value)
    assert text == (
        f"{method}() waited 0.01 s for fill on cpu:0/stuck@1 (now 0), promised by fill on "
        "cpu:0/stuck, which is not issued and waits for [never@3 (now 0), promised by nobody]; it "
        "waits for all that was submitted to cpu:0 before, unless wait= says otherwise"
    )
    never.signal(3)
    assert getattr(buffer, method)(timeout=LIMIT).tolist() == [7] * 4


@pytest.mark.parametrize("method", ["numpy", "map"])
def test_a_host_function_does_not_wait_for_itself_m2(device, method):
    """M2: a read in a host function waits neither for the function nor for work behind it."""
    buffer = device.upload(np.zeros(4, np.uint8))
    seen = []
    device.queue.fill(buffer, 7)
    device.queue.call(lambda: seen.append(getattr(buffer, method)().tolist()))
    device.queue.fill(buffer, 9).wait(LIMIT)
    assert seen == [[7] * 4]
    assert buffer.numpy(timeout=LIMIT).tolist() == [9] * 4


def test_loading_a_kernel_waits_for_nothing(device):
    """Its table is read with the same functions; work that waits for the host holds up no load."""
    never = hal.create_semaphore()
    device.queue.barrier(wait=never.at(1))
    program = device.compile("__global__ void load_beside_pending(int *p) { p[0] = 1; }")
    assert program["load_beside_pending"].signature.parameters[0].name == "p"
    never.signal(1)


def test_reading_an_idle_device_waits_for_nothing(device, monkeypatch):
    """Work that has ended costs a look at the queues, and no wait."""
    buffer = device.upload(np.arange(4, dtype=np.uint8))
    device.queue.fill(buffer, 7, size=1).wait(LIMIT)
    device.wait_idle(LIMIT)
    waited = []
    wait = hal.Submission.wait
    monkeypatch.setattr(
        hal.Submission,
        "wait",
        lambda self, *given: (waited.append(self.kind), wait(self, *given))[1],
    )
    for _ in range(3):
        assert buffer.numpy().tolist() == [7, 1, 2, 3]
    assert not waited
