"""Captures of others: neither broken by our calls nor refusing them (O1)."""

import signal

import gpusim
from child_processes import printed_by, run_alone
from core_harness import handled_by
from cuda.bindings import driver as cu

from hal.native import MemoryType


def test_a_call_inside_another_one_stays_relaxed(native, device, other, exchange):
    """A signal handler makes such a call, between two steps of another."""
    address = device.allocate(64, MemoryType.DEVICE)
    event = device.create_event()

    def handle(_number, _frame):
        assert device.query_event(event)
        device.free(device.allocate(64, MemoryType.DEVICE), MemoryType.DEVICE)

    def step():
        signal.raise_signal(signal.SIGALRM)
        return cu.cuEventQuery(event)

    with handled_by(handle):
        other.begin(0, address)
        assert not native.relaxed(step)[0]
        assert other.end() == 1
    assert exchange(0) == 0
    device.destroy_event(event)
    device.free(address, MemoryType.DEVICE)


CAPTURED = """
    import hal
    from cuda.bindings import driver as cu

    def get(result):
        assert not result[0], result
        return result[1] if len(result) > 1 else None

    device = hal.create_device("cuda")
    buffer = device.allocate(64)
    stream, memory = get(cu.cuStreamCreate(1)), get(cu.cuMemAlloc(64))
    theirs = device.create_queue(stream=int(stream))
    theirs.fill(buffer, 1).wait(20)
    get(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    get(cu.cuMemsetD8Async(memory, 1, 64, stream))
    for attempt in (
        lambda: theirs.fill(buffer, 2).wait(20),
        lambda: device.queue.wait_external(int(stream)).wait(20),
        lambda: device.queue.notify_external(int(stream)),
        lambda: device.create_queue(stream=int(stream)),
    ):
        try:
            attempt()
        except hal.errors.OperationError as error:
            print("is being captured" in str(error))
    device.queue.fill(buffer, 4).wait(20)
    print(device.lost, cu.cuGraphGetNodes(get(cu.cuStreamEndCapture(stream)))[2])
    theirs.fill(buffer, 3).wait(20)
    print(buffer.numpy("u1")[:2], theirs.close(20), device.close())
"""


def test_work_on_a_stream_that_is_captured_fails_and_the_device_goes_on_o1(tmp_path):
    done = run_alone(tmp_path, CAPTURED, **gpusim.environment(quiet=True))
    assert printed_by(done).splitlines() == [*["True"] * 4, "False 1", "[3 3] () ()"]
