"""The primary context: who holds it, and on which thread it is current."""

import numpy as np
import pytest
from core_harness import Running
from native_lab import Lab

from hal.errors import HalError
from hal.native import MemoryType


@pytest.fixture
def current(native):
    """The calling thread's context, as the driver tells it."""
    return lambda: int(native.call(native.cuda.cuCtxGetCurrent))


@pytest.fixture
def make_current(native):
    return lambda context: native.call(native.cuda.cuCtxSetCurrent, context)


def test_each_thread_is_bound(lab, current):
    seen = []

    def work():
        before = current()
        lab.device.bind()
        seen.extend([before, current()])

    Running(work).result()
    assert seen == [0, lab.device.context]


def test_two_devices_take_turns_on_one_thread(open_lab, current):
    labs = [open_lab(0), open_lab(1)]
    assert labs[0].device.context != labs[1].device.context
    for turn in range(4):
        device = labs[turn % 2].device
        device.bind()
        assert current() == device.context
        address = device.allocate(256, MemoryType.DEVICE)
        assert device.locate(address) == (2, turn % 2)
        device.free(address, MemoryType.DEVICE)


def test_a_bound_thread_makes_no_call(lab, simulator):
    lab.device.bind()
    before = simulator.calls("cuCtxSetCurrent")
    for _ in range(100):
        lab.device.bind()
    assert simulator.calls("cuCtxSetCurrent") == before


def test_two_devices_on_one_hardware_share_the_context(open_lab):
    first, second = open_lab(), open_lab()
    assert first.device.context == second.device.context
    assert first.device.token != second.device.token
    assert first.device.domain is second.device.domain


def test_what_is_created_is_ours_whatever_is_current(open_lab, make_current):
    ours, other = open_lab(0), open_lab(1)
    ours.device.bind()
    for foreign in (other.device.context, 0):
        make_current(foreign)
        event, stream = ours.device.create_event(), ours.stream()
        ours.device.record_event(event, stream)
        ours.device.synchronize_stream(stream)
        assert ours.device.query_event(event)
        ours.device.destroy_event(event)


@pytest.mark.parametrize("code", [201, 400])
def test_a_call_that_fails_for_the_context_is_repeated_in_ours(
    open_lab, simulator, current, make_current, code
):
    """A driver may want the context of what a call uses to be current."""
    lab, other = open_lab(0), open_lab(1)
    device, stream = lab.device, lab.stream()
    array, event = lab.array(np.zeros(4, np.uint32)), device.create_event()
    for name, action in (
        ("cuMemsetD32Async", lambda: device.fill(stream, array.ctypes.data, 7, 4, 4)),
        ("cuEventRecord", lambda: device.record_event(event, stream)),
        ("cuStreamWaitEvent", lambda: device.wait_event(stream, event)),
        ("cuEventQuery", lambda: device.query_event(event)),
    ):
        for foreign in (0, other.device.context):
            device.bind()
            make_current(foreign)
            simulator.fail(name, 1, code)
            action()
            assert current() == device.context
    lab.finish()
    assert array.tolist() == [7] * 4
    device.destroy_event(event)


def test_closing_lets_the_context_go(native, driver, simulator):
    def is_active():
        return native.call(native.cuda.cuDevicePrimaryCtxGetState, 1)[1]

    first, second = Lab(driver, 1), Lab(driver, 1)
    first.close()
    assert is_active()
    second.close()
    assert not is_active()
    again = Lab(driver, 1)
    again.device.bind()
    stream = again.stream()
    again.device.synchronize_stream(stream)
    again.close()


def test_a_device_that_cannot_be_opened_says_why(driver, simulator):
    simulator.fail("cuDevicePrimaryCtxRetain", 1, 46)
    with pytest.raises(HalError) as caught:
        driver.open_device(1, {})
    assert caught.value.native_code == 46


def test_devices_are_described_without_a_context(driver):
    first, second = driver.devices()
    assert (first.index, second.index) == (0, 1)
    assert first.uuid.startswith("GPU-")
    assert first.uuid != second.uuid
    assert first.architecture.startswith("sm_")
    assert first.max_shared_memory >= 49152
    assert first.total_memory > 0
    assert "CUDA" in first.driver
