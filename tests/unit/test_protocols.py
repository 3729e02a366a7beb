"""Prove that the public classes are what `hal.protocols` says, by name and by type."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

import hal
from hal import native, protocols
from hal._devices.queue import Queues
from hal._engine.semaphore import Callback
from hal._transfers.collective_methods import Collectives

CLASSES: dict[type, type] = {
    protocols.Buffer: hal.Buffer,
    protocols.Callback: Callback,
    protocols.Collectives: Collectives,
    protocols.CommandBuffer: hal.CommandBuffer,
    protocols.Device: hal.Device,
    protocols.Driver: native.NativeDriver,
    protocols.Executable: hal.Executable,
    protocols.Queue: hal.Queue,
    protocols.Queues: Queues,
    protocols.Semaphore: hal.Semaphore,
    protocols.Submission: hal.Submission,
}
OPERATORS = {
    "__await__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
}
NOT_CHECKABLE = (protocols.Buffer, protocols.Submission)

if TYPE_CHECKING:
    from collections.abc import Callable

    # Only mypy reads this: pyproject.toml names this file.
    buffer: type[protocols.Buffer] = hal.Buffer
    callback: type[protocols.Callback] = Callback
    commands: type[protocols.CommandBuffer] = hal.CommandBuffer
    device: type[protocols.Device] = hal.Device
    driver: Callable[[], protocols.Driver] = native.NativeDriver
    executable: type[protocols.Executable] = hal.Executable
    queue: type[protocols.Queue] = hal.Queue
    queues: type[protocols.Queues] = Queues
    semaphore: type[protocols.Semaphore] = hal.Semaphore
    submission: type[protocols.Submission] = hal.Submission
    # mypy reports the comment as unused should it ever stop to see a difference.
    different: type[protocols.Device] = hal.Queue  # type: ignore[assignment]


def public_members(kind: type) -> dict[str, object]:
    """Return what a class of hal shows to users, inherited or not."""
    members: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("hal"):
            members.update(vars(base))
    return {
        name: member
        for name, member in members.items()
        if member is not None and (name[0] != "_" or name in OPERATORS)
    }


def parameters(member: object) -> list[tuple[str, object, object]]:
    """Return the names, kinds and defaults of a method's parameters, those of `Order` included."""
    assert callable(member)
    found: list[tuple[str, object, object]] = []
    for parameter in inspect.signature(member).parameters.values():
        if parameter.annotation == "Unpack[Order]":
            keywords = get_type_hints(protocols.Order)
            found += [(name, inspect.Parameter.KEYWORD_ONLY, ()) for name in keywords]
        else:
            found.append((parameter.name, parameter.kind, parameter.default))
    return found


def test_every_protocol_has_its_class() -> None:
    aliases = {"Bindings", "CollectiveOptions", "Order", "Signals", "Waits"}
    foreign = {"CudaArray", "CudaStream", "ExternalEvent", "Tensor"}  # of other libraries
    own = set(protocols.__all__) - aliases - foreign
    assert {protocol.__name__ for protocol in CLASSES} == own


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda protocol: protocol.__name__)
def test_members_and_their_parameters_are_the_same(protocol: type) -> None:
    """mypy accepts members that the protocol lacks, and other names and defaults."""
    ours, members = public_members(protocol), public_members(CLASSES[protocol])
    assert ours.keys() == members.keys()
    for name, member in ours.items():
        if inspect.isfunction(member):
            assert parameters(member) == parameters(members[name]), name
        function = member.fget if isinstance(member, property) else member
        assert "return" in function.__annotations__, name


def scale(
    device: protocols.Device, queue: protocols.Queue, values: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], hal.Submission]:
    """Act as a library's function that is typed against the protocols alone."""
    buffer = device.allocate(values.nbytes, dtype=values.dtype)
    ready = device.create_semaphore()
    with device.record() as commands:
        commands.copy(buffer, device.upload(values))
    written = queue.write(buffer, values, wait=ready.at(1))
    submission = queue.execute(commands, wait=[written], signal=())
    ready.signal(1)
    return copy_of(buffer, submission), submission


def copy_of(buffer: protocols.Buffer, submission: hal.Submission) -> NDArray[np.uint8]:
    """Act as a function that only reads a buffer."""
    return buffer.numpy(wait=[submission], timeout=30)


def test_functions_can_be_typed_against_the_protocols() -> None:
    values = np.arange(32, dtype=np.uint8)
    with hal.create_device("cpu") as device:
        found, submission = scale(device, device.create_queue(), values)
        assert submission.state == "done"
    np.testing.assert_array_equal(found, values)


def test_isinstance_knows_the_classes() -> None:
    with hal.create_device("cpu") as device, device.record() as commands:
        semaphore = hal.create_semaphore()
        instances = {
            protocols.Callback: semaphore.on_reached(1, print),
            protocols.CommandBuffer: commands,
            protocols.Device: device,
            protocols.Queue: device.queue,
            protocols.Queues: device.queues,
            protocols.Semaphore: semaphore,
        }
        for protocol, instance in instances.items():
            for other in instances:
                expected = other is protocol
                assert isinstance(instance, other) == expected, (protocol, other)


@pytest.mark.parametrize("protocol", NOT_CHECKABLE, ids=lambda protocol: protocol.__name__)
def test_isinstance_is_refused_where_it_would_have_effects(protocol: type) -> None:
    with pytest.raises(TypeError, match="runtime_checkable"):
        isinstance(object(), protocol)
