"""The table of errors: which class, and the driver's own name and number."""

import re

import gpusim
import pytest
from child_processes import run_alone

from hal.errors import DeviceLostError, OperationError, OutOfMemoryError, UnimplementedError
from hal.native import MemoryType

CASES = [
    (1, "CUDA_ERROR_INVALID_VALUE", OperationError),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", OutOfMemoryError),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", DeviceLostError),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", OperationError),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", DeviceLostError),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", OperationError),
    (710, "CUDA_ERROR_ASSERT", DeviceLostError),
    (719, "CUDA_ERROR_LAUNCH_FAILED", DeviceLostError),
    (801, "CUDA_ERROR_NOT_SUPPORTED", UnimplementedError),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", OperationError),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", OperationError),
    (999, "CUDA_ERROR_UNKNOWN", OperationError),
]
FATAL = re.compile(r"must\s+be\s+(terminated|destroyed)")
"""How the driver's documentation calls an error that ends the context."""
ENDED = {3, 4, 201, 709}
"""No driver, or no context, any more."""
BROKEN = {214, 220}
"""Memory or a link of the GPU: what is there can be trusted no more."""


@pytest.mark.parametrize(("code", "name", "kind"), CASES)
def test_the_class_of_an_error(driver, code, name, kind):
    from hal_cuda import _driver  # noqa: PLC0415

    error = _driver.error_of(_driver.cuda.CUresult(code), "cuThis")
    assert type(error) is kind
    assert (error.native_name, error.native_code) == (name, code)
    assert "cuThis" in str(error)
    assert name in str(error)


@pytest.mark.parametrize(("code", "name", "kind"), CASES)
def test_calls_raise_it(lab, simulator, code, name, kind):
    """In the calls of every submission, and in those that happen once."""
    stream, event = lab.stream(), lab.device.create_event()
    for function, action in (
        ("cuEventRecord", lambda: lab.device.record_event(event, stream)),
        ("cuStreamCreate", lab.device.create_stream),
    ):
        simulator.fail(function, 1, code)
        with pytest.raises(kind) as caught:
            action()
        assert (caught.value.native_name, caught.value.native_code) == (name, code)
        assert function in str(caught.value)
    lab.device.destroy_event(event)


def test_what_the_vendor_documents_as_fatal_loses_a_device_and_nothing_else_o2(driver):
    from hal_cuda import _driver  # noqa: PLC0415

    documented = {int(each) for each in _driver.cuda.CUresult if FATAL.search(each.__doc__ or "")}
    assert len(documented) > 10
    ours = {
        int(each)
        for each in _driver.cuda.CUresult
        if isinstance(_driver.error_of(each, "cuThis"), DeviceLostError)
    }
    assert ours == documented | ENDED | BROKEN


def test_an_error_that_the_bindings_do_not_know_is_told_by_its_number_o2(lab, simulator):
    """In whatever enqueues as in other calls."""
    device, stream = lab.device, lab.stream()
    event = device.create_event()
    memory = device.allocate(64, MemoryType.DEVICE)
    for function, action in (
        ("cuEventQuery", lambda: device.query_event(event)),
        ("cuStreamCreate", device.create_stream),
        ("cuEventRecord", lambda: device.record_event(event, stream)),
        ("cuStreamWaitEvent", lambda: device.wait_event(stream, event)),
        ("cuMemsetD8Async", lambda: device.fill(stream, memory, 1, 1, 8)),
        ("cuMemcpyAsync", lambda: device.copy(stream, memory, memory + 32, 8)),
    ):
        simulator.fail(function, 1, 4711)
        with pytest.raises(OperationError, match=f"{function} failed with error 4711") as caught:
            action()
        assert caught.value.native_code == 4711
    device.free(memory, MemoryType.DEVICE)
    device.destroy_event(event)


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


def test_a_context_that_has_failed_is_opened_with_a_way_out(driver, open_lab, simulator):
    """Not while others hold it; and later only where the driver has it begin afresh."""
    from hal_cuda._driver import call, cuda  # noqa: PLC0415

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
    call(cuda.cuMemPoolDestroy, pool)
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
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["700", "True ()", "[7 7 7 7] ()"]


def test_a_function_that_the_driver_lacks_is_unimplemented(driver):
    from hal_cuda import _driver  # noqa: PLC0415

    class FunctionNotFoundError(RuntimeError):
        pass

    def cuNew():  # noqa: N802
        message = "function cuNew is not found"
        raise FunctionNotFoundError(message)

    with pytest.raises(UnimplementedError, match="cuNew"):
        _driver.call(cuNew)


def test_pinned_memory_that_ends_is_no_business_of_the_pool_m1(lab, simulator):
    before = simulator.calls("cuMemPoolTrimTo")
    simulator.fail("cuMemHostAlloc", 1, 2)
    with pytest.raises(OutOfMemoryError):
        lab.device.allocate(256, MemoryType.HOST)
    assert simulator.calls("cuMemPoolTrimTo") == before
