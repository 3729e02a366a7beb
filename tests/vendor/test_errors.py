"""The table of errors: which class, and the vendor's own name and number."""

import pytest

from hal.errors import DeviceLostError, OperationError, OutOfMemoryError, UnimplementedError
from hal.native import MemoryType

BOTH = {
    **dict.fromkeys((1, 101, 209, 400, 500, 701, 704, 712, 900, 910, 999), OperationError),
    **dict.fromkeys((214, 700, 702, 709, 710, 719), DeviceLostError),
    2: OutOfMemoryError,
    801: UnimplementedError,
}
KINDS = {
    "cuda": BOTH | {304: OperationError},
    "hip": BOTH
    | {9: OperationError, 17: OperationError, 53: DeviceLostError, 1053: OperationError},
}

CREATE = {"cuda": "cuStreamCreate", "hip": "hipStreamCreateWithFlags"}


@pytest.fixture
def statuses(vendor):
    """The bindings' enumeration of errors."""
    native = vendor.native
    return native.cuda.CUresult if vendor.name == "cuda" else native.hip.hipError_t


def test_the_class_of_an_error(vendor, statuses):
    for code, kind in KINDS[vendor.name].items():
        error = vendor.native.error_of(statuses(code), "something")
        assert type(error) is kind, code
        assert (error.native_name, error.native_code) == (statuses(code).name, code)
        assert f"something failed with {statuses(code).name}" in str(error)


def test_calls_raise_it(vendor, statuses, device, stream, simulator):
    """In the calls of every submission, and in those that happen once."""
    event = device.create_event()
    for code, kind in KINDS[vendor.name].items():
        for function, action in (
            (vendor.name_of("EventRecord"), lambda: device.record_event(event, stream)),
            (CREATE[vendor.name], device.create_stream),
        ):
            simulator.fail(function, 1, code)
            with pytest.raises(kind) as caught:
                action()
            assert (caught.value.native_name, caught.value.native_code) == (
                statuses(code).name,
                code,
            )
            assert function in str(caught.value)
    device.destroy_event(event)


def test_an_error_that_the_bindings_do_not_know_is_told_by_its_number_o2(
    vendor, device, stream, simulator
):
    """In whatever enqueues as in other calls."""
    event, memory = device.create_event(), device.allocate(64, MemoryType.DEVICE)
    for function, action in (
        (vendor.name_of("EventQuery"), lambda: device.query_event(event)),
        (CREATE[vendor.name], device.create_stream),
        (vendor.name_of("EventRecord"), lambda: device.record_event(event, stream)),
        (vendor.name_of("StreamWaitEvent"), lambda: device.wait_event(stream, event)),
        (vendor.name_of("MemsetD8Async"), lambda: device.fill(stream, memory, 1, 1, 8)),
        (vendor.name_of("MemcpyAsync"), lambda: device.copy(stream, memory, memory + 32, 8)),
    ):
        simulator.fail(function, 1, 4711)
        told = f"{function} failed with .*rror 4711.* newer"
        with pytest.raises(OperationError, match=told) as caught:
            action()
        assert caught.value.native_code == 4711
    device.free(memory, MemoryType.DEVICE)
    device.destroy_event(event)
