"""Errors: what ends a context, whose context it is, and what a driver lacks."""

import re

import gpusim
import pytest
from child_processes import printed_by, run_alone

from hal.errors import DeviceLostError, OperationError, OutOfMemoryError, UnimplementedError
from hal.native import MemoryType

FATAL = re.compile(r"must\s+be\s+(terminated|destroyed)")
"""How the driver's documentation calls an error that ends the context."""
ENDED = {3, 4, 201, 709}
"""No driver, or no context, any more."""
BROKEN = {214, 220}
"""Memory or a link of the GPU: what is there can be trusted no more."""


def test_what_the_vendor_documents_as_fatal_loses_a_device_and_nothing_else_o2(native):
    documented = {int(each) for each in native.cuda.CUresult if FATAL.search(each.__doc__ or "")}
    assert len(documented) > 10
    ours = {
        int(each)
        for each in native.cuda.CUresult
        if isinstance(native.error_of(each, "cuThis"), DeviceLostError)
    }
    assert ours == documented | ENDED | BROKEN


@pytest.mark.parametrize("code", [201, 400])
def test_a_wrong_context_that_is_ours_is_an_error(lab, simulator, code):
    """A call is not repeated where our context was current."""
    stream, event = lab.stream(), lab.device.create_event()
    lab.device.bind()
    before = simulator.calls("cuEventRecord")
    simulator.fail("cuEventRecord", 1, code)
    with pytest.raises((DeviceLostError, OperationError)) as caught:
        lab.device.record_event(event, stream)
    assert caught.value.native_code == code
    assert simulator.calls("cuEventRecord") == before + 1
    lab.device.destroy_event(event)


def test_a_context_that_has_failed_is_opened_with_a_way_out(native, driver, open_lab, simulator):
    """It is refused while others hold the context, and later unless the driver begins it afresh."""
    lab = open_lab(1)
    pool, lab.device.pool = lab.device.pool, None
    simulator.lose_device(1, 719)
    with pytest.raises(DeviceLostError, match="somebody still holds it") as caught:
        driver.open_device(1, {})
    assert caught.value.native_code == 719
    lab.device.close()
    before = simulator.calls("cuDevicePrimaryCtxRetain")
    with pytest.raises(DeviceLostError, match="end the process") as caught:
        driver.open_device(1, {})
    assert caught.value.native_code == 719
    assert simulator.calls("cuDevicePrimaryCtxRetain") == before + 1
    simulator.reset()
    native.call(native.cuda.cuMemPoolDestroy, pool)
    lab.device = driver.open_device(1, {})


REOPENED = """
    import hal
    device = hal.create_device("cuda")
    kernel = device.compile("__global__ void fault(int *x) { *(int *)8 = x[0]; }")["fault"]
    failing = device.queue.dispatch(kernel, grid=1, block=1, args=(device.allocate(4),))
    try:
        failing.wait(20)
    except hal.errors.DeviceLostError as error:
        print(error.native_code)
    print(device.lost, device.close())
    device = hal.create_device("cuda")
    buffer = device.allocate(4)
    print(buffer.numpy("u1", wait=device.queue.fill(buffer, 7)), device.close())
"""


def test_a_lost_device_can_be_opened_again_where_its_context_ends_o2(tmp_path):
    """Nothing of hal's keeps the failed context alive."""
    done = run_alone(tmp_path, REOPENED, **gpusim.environment(recovers=True, quiet=True))
    assert printed_by(done).splitlines() == ["700", "True ()", "[7 7 7 7] ()"]


def test_a_function_that_the_driver_lacks_is_unimplemented(native):
    class FunctionNotFoundError(RuntimeError):
        pass

    def cuNew():  # noqa: N802
        message = "function cuNew is not found"
        raise FunctionNotFoundError(message)

    with pytest.raises(UnimplementedError, match="cuNew"):
        native.call(cuNew)


def test_pinned_memory_that_ends_is_no_business_of_the_pool_m1(lab, simulator):
    before = simulator.calls("cuMemPoolTrimTo")
    simulator.fail("cuMemHostAlloc", 1, 2)
    with pytest.raises(OutOfMemoryError):
        lab.device.allocate(256, MemoryType.HOST)
    assert simulator.calls("cuMemPoolTrimTo") == before
