"""Virtual devices: apart from each other, but for the hardware."""

import asyncio
import threading
from weakref import WeakValueDictionary

import pytest
from core_harness import LIMIT

import hal
from hal._devices import lifecycle
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    OutOfMemoryError,
)
from hal.flow import Flow, PhysicalDevice, VirtualDevice, virtual_devices


@pytest.fixture(autouse=True)
def _nothing_is_open(monkeypatch):
    """Leave the names out of what other tests have left open."""
    monkeypatch.setattr(lifecycle, "_names", WeakValueDictionary())


@pytest.fixture
def three():
    devices = virtual_devices("cpu", 3)
    yield devices
    for device in devices:
        assert device.close(LIMIT) == ()


def test_it_can_be_awaited(three, gate):
    seen = []
    three[0].device.queue.call(seen.append, 1, wait=gate.at(1))

    async def main():
        gate.signal(1)
        await three[0]
        return list(seen)

    assert asyncio.run(main()) == [1]


def test_they_are_opened_one_by_one(gate):
    physical = PhysicalDevice("cpu", max_in_flight=8)
    first = physical.virtual_device()
    second = physical.virtual_device(memory_limit="1M")
    assert physical.devices == (first, second)
    assert first.physical is physical
    with pytest.raises(OutOfMemoryError):
        second.device.allocate(2 << 20)
    # Each has a name of its own, in whatever is said of it.
    held = second.device.queue.barrier(wait=gate.at(1))
    with pytest.raises(DeadlineExceededError, match="cpu:0/virtual 1/compute"):
        second.wait_idle(0.01)
    assert repr(held.queue) == "<Queue 'cpu:0/virtual 1/compute' ordered>"
    assert repr(second.device).startswith("<Device cpu:0/virtual 1 ")
    gate.signal(1)
    assert (first.close(LIMIT), physical.devices) == ((), (second,))
    assert physical.virtual_device().name == "cpu:0/virtual 2"
    for each in physical.devices:
        each.close(LIMIT)


@pytest.fixture
def probed(open_probe):
    """Two on one physical device, and the driver of the first."""
    opened = [open_probe() for _ in range(2)]
    physical = PhysicalDevice()
    first, second = (VirtualDevice(device, physical) for device, _ in opened)
    return first, second, opened[0][1]


GIVE_UP = {
    "virtual": lambda virtual: virtual.close(0.05),
    "device": lambda virtual: virtual.device.close(0.05),
    "queue": lambda virtual: virtual.device.queue.close(0.05),
}


@pytest.mark.parametrize("what", GIVE_UP)
def test_giving_one_up_leaves_the_others(probed, latch, what):
    first, second, driver = probed
    driver.hold(latch)
    stuck = first.device.queue.fill(first.device.allocate(4), 0)
    assert len(GIVE_UP[what](first)) == 1
    assert stuck.state == "failed"
    assert [device.lost for device in (first, second)] == [True, False]
    assert [device.gave_up for device in (first, second)] == [True, False]
    error, match = (
        (DeviceLostError, "did not end in time") if what == "queue" else (ClosedError, "is closed")
    )
    with pytest.raises(error, match=match):
        first.wait_idle(LIMIT)
    second.device.queue.barrier().wait(LIMIT)
    second.wait_idle(LIMIT)
    latch.open()


CLOSE = {
    "": lambda virtual: (),
    "virtual": lambda virtual: virtual.close(0),
    "device": lambda virtual: virtual.device.close(0),
}


@pytest.mark.parametrize("closed", CLOSE)
def test_lost_hardware_takes_all_with_it(probed, gate, closed):
    """When the engine learns of it: nobody asks a virtual device, nor the work of the other one."""
    first, second, driver = probed
    promised = hal.create_semaphore()
    held = second.device.queue.barrier(wait=gate.at(1), signal=promised.at(1))
    told = threading.Event()
    promised.on_reached(1, lambda error: told.set())
    driver.fail_call(1, DeviceLostError("gone"), names={"fill"})
    with pytest.raises(HalError):
        first.device.queue.fill(first.device.allocate(4), 0).wait(LIMIT)
    assert told.wait(LIMIT)
    with pytest.raises(DeviceLostError, match=r"cpu:0 \(2\) is lost with cpu:0"):
        held.wait(0)
    CLOSE[closed](first)
    assert (first.gave_up, second.gave_up) == (False, False)
    assert (first.lost, second.lost) == (True, True)
    for device in (first, second):
        with pytest.raises(DeviceLostError, match="all virtual devices"):
            device.wait_idle(LIMIT)
        with pytest.raises(DeviceLostError, match="all virtual devices"):
            device.physical.virtual_device()


def test_virtual_devices_opened_apart_share_their_hardware(open_probe):
    """Each has its own name, and all hear of a loss; those opened later are on new hardware."""
    opened = [open_probe() for _ in range(3)]
    first, second = (VirtualDevice(device, PhysicalDevice()) for device, _ in opened[:2])
    assert (first.name, second.name) == ("cpu:0", "cpu:0 (2)")
    assert repr(second) == "<VirtualDevice cpu:0 (2) open>"
    flow = Flow(first, second)
    assert repr(flow) == "<Flow on cpu:0, cpu:0 (2)>"
    assert repr(flow.allocate(4, device=second)).endswith("on cpu:0 (2)>")
    flow.close()
    opened[0][1].fail_call(1, DeviceLostError("gone"), names={"fill"})
    with pytest.raises(HalError):
        first.device.queue.fill(first.device.allocate(4), 0).wait(LIMIT)
    assert second.lost
    with pytest.raises(DeviceLostError, match=r"cpu:0 \(2\) is lost, and with it all"):
        second.wait_idle(LIMIT)
    third = VirtualDevice(opened[2][0], PhysicalDevice())
    third.device.queue.barrier().wait(LIMIT)


@pytest.mark.parametrize(
    "arguments",
    [{"count": 0}, {"count": 2**70}, {"count": 2, "memory_limit": ["1M"]}, {"memory_limit": "x"}],
)
def test_wrong_arguments(arguments):
    with pytest.raises(InvalidArgumentError):
        virtual_devices("cpu", **arguments)
    with pytest.raises(InvalidArgumentError, match="names of their own"):
        virtual_devices("cpu", name="mine")
    with pytest.raises(TypeError, match=r"count .*, not bool"):
        virtual_devices("cpu", count=True)


@pytest.mark.parametrize("limit", [b"12", bytearray(b"12"), memoryview(b"12"), {1, 2}])
def test_a_limit_of_a_wrong_type_is_no_list_of_limits(limit):
    with pytest.raises(ArgumentTypeError, match="'memory_limit' must be a string, a number"):
        virtual_devices("cpu", 2, memory_limit=limit)


def test_nothing_is_left_open_when_one_cannot_be_opened(monkeypatch):
    opened = []
    create = hal.create_device

    def limited(*arguments, **parameters):
        if len(opened) == 2:
            raise OutOfMemoryError("no more")
        opened.append(create(*arguments, **parameters))
        return opened[-1]

    monkeypatch.setattr(hal, "create_device", limited)
    with pytest.raises(OutOfMemoryError):
        virtual_devices("cpu", 3)
    assert [device.closed for device in opened] == [True, True]


def test_what_cannot_join_its_hardware_is_not_left_open(monkeypatch):
    """Such as one that a Ctrl-C comes to; `virtual_devices` leaves none of them open then."""
    before = [*lifecycle.devices]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hal.Device, "share_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        virtual_devices("cpu", 2)
    assert [*lifecycle.devices] == before
