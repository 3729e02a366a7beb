"""Devices: found, described, opened by name, index and UUID, and independent of each other."""

from __future__ import annotations

import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    InvalidArgumentError,
    NotFoundError,
)
from hal.native import FEATURES
from hal_conformance.suite.support import LIMIT, pattern


def described(device: hal.Device) -> list[hal.DeviceDescription]:
    """Return what `hal.devices` says of a device's backend."""
    return [each for each in hal.devices() if each.backend == device.backend]


def test_the_backend_is_listed_as_available(device):
    """A backend that opens a device is listed as available, with its distribution and summary."""
    (status,) = (each for each in hal.backends(probe=True) if each.name == device.backend)
    assert status.state == "available"
    assert status.reason == ""
    assert status.summary
    assert status.version


def test_devices_are_listed_by_index(device):
    """`hal.devices` lists every device of the backend in the order of its index, from 0."""
    found = described(device)
    assert [each.info.index for each in found] == list(range(len(found)))
    assert device.info in [each.info for each in found]
    assert len({each.uuid for each in found}) == len(found)


def test_the_list_is_stable(device):
    """Two listings agree: names, UUIDs, architectures, limits."""
    fields = ("index", "name", "uuid", "architecture", "total_memory", "driver")
    first, second = (
        [[getattr(each.info, name) for name in fields] for each in described(device)]
        for _ in range(2)
    )
    assert first == second


def test_every_listed_device_opens_by_index(device):
    """``backend:index`` opens the device of that index, for each one listed."""
    for each in described(device):
        with hal.create_device(each.spec) as opened:
            assert opened.name == each.spec
            assert opened.info.uuid == each.uuid
            assert opened.info.index == each.info.index


def test_every_listed_device_opens_by_uuid(device):
    """A device's UUID opens it, for each one listed."""
    for each in described(device):
        with hal.create_device(each.uuid) as opened:
            assert opened.name == each.spec


def test_the_backends_name_opens_its_first_device(device):
    """The backend's name alone opens index 0."""
    with hal.create_device(device.backend) as opened:
        assert opened.name == f"{device.backend}:0"


def test_the_description_makes_sense(device):
    """A device has names, a positive amount of memory, and limits that allow one thread."""
    info = device.info
    for text in (info.name, info.uuid, info.architecture, info.driver):
        assert isinstance(text, str)
        assert text.strip() == text != ""
    assert info.total_memory >= 1 << 20
    assert info.compute_units >= 1
    assert info.max_threads_per_block >= 1
    assert info.max_shared_memory >= 0
    assert info.warp_size >= 1
    for key, value in info.properties.items():
        assert isinstance(key, str)
        assert isinstance(value, (str, int, float))


def test_features_are_known_ones(device):
    """A device declares features out of `hal.native.FEATURES`, always the same."""
    assert device.features <= FEATURES
    assert device.features == device.features


def test_the_name_says_backend_and_index(device):
    """A device is called after its backend and index, and its repr says that it is open."""
    assert device.name == f"{device.backend}:{device.info.index}"
    assert device.name in repr(device)
    assert "open" in repr(device)
    assert not device.closed
    assert not device.lost


@pytest.mark.parametrize("index", [1000, 99999])
def test_an_unknown_index_is_not_found(device, index):
    """An index that no device has raises `NotFoundError`."""
    with pytest.raises(NotFoundError):
        hal.create_device(f"{device.backend}:{index}")


@pytest.mark.parametrize("spec", ["{}:x", "{}:-1", "{}:", "{}?nonsense", "{}?a=1&a=2", ""])
def test_a_malformed_specification_is_refused(device, spec):
    """A specification that cannot be read raises `InvalidArgumentError`, or names nothing."""
    with pytest.raises((InvalidArgumentError, BackendNotFoundError)):
        hal.create_device(spec.format(device.backend))


def test_an_unknown_parameter_is_refused(bench):
    """A device parameter that neither the core nor the backend knows is refused by name."""
    with pytest.raises(InvalidArgumentError, match="no_such_parameter"):
        bench.open(no_such_parameter=1)


@pytest.mark.parametrize("limit", [0, -1, "many", 1.5], ids=repr)
def test_a_bad_limit_of_operations_is_refused(bench, limit):
    """``max_in_flight`` is a number of 1 or more."""
    with pytest.raises(InvalidArgumentError):
        bench.open(max_in_flight=limit)


@pytest.mark.parametrize("spec", [None, 7, b"bytes"], ids=repr)
def test_a_specification_is_text(spec):
    """A specification that is no text raises `ArgumentTypeError`."""
    with pytest.raises(ArgumentTypeError):
        hal.create_device(spec)


def test_each_open_makes_a_device_of_its_own(open_device):
    """Two devices on one piece of hardware have queues, memory and an end of their own."""
    first, second = open_device(), open_device()
    assert first is not second
    one, two = first.upload(pattern(256)), second.upload(pattern(256, 1))
    first.queue.fill(one, 0).wait(LIMIT)
    first.close(LIMIT)
    assert not second.closed
    assert (two.numpy(timeout=LIMIT) == pattern(256, 1)).all()


@pytest.mark.parametrize("times", [20])
def test_devices_come_and_go(bench, times):
    """Opening, using and closing a device again and again leaves nothing behind."""
    for number in range(times):
        with bench.open() as device:
            buffer = device.allocate(4096)
            filled = device.queue.fill(buffer, number)
            assert (buffer.numpy(wait=filled, timeout=LIMIT) == number).all()
            assert device.statistics().allocations >= 1
