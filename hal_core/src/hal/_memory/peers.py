"""Access of one driver's devices to each other's memory (rules M1, Q5, Q6).

A *visit* is an operation's use of another device's memory,
from its submission to its end. Visits let that device be closed first: its
close cancels those that have not begun, and waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from hal._base import sync
from hal._engine import contexts, progress, timelines
from hal._engine.closing import NAP_SECONDS, give_up
from hal._engine.device_context import DeviceContext
from hal._engine.ending import end, left_behind
from hal._engine.operation import CANCELLED
from hal._engine.payload import Payload
from hal._engine.steps import CallStep
from hal._engine.timelines import Work
from hal._engine.visits import Visit, Visited, closed_before, visits_of
from hal._memory.core import DeviceCore
from hal._memory.extent import Extent
from hal._memory.replay import Replay
from hal._memory.storage import Storage, lend
from hal._memory.usage import DISPATCH, explain_refusal
from hal.errors import ArgumentTypeError, InvalidArgumentError, UnimplementedError

_FEATURE: Final = "peer_access"
_GRACE_SECONDS: Final = 0.25
"""How long another thread may need to drop what the operations of a lost device held."""

# Public methods


def can_access(device: DeviceCore, other: object) -> bool:
    """Return whether kernels of a device could use another's memory; see `Device.can_access`."""
    peer = _check_device(device, other, "can_access")
    if peer is device:
        return True
    if not is_peer(device, peer):
        return False
    device._native.bind()
    return bool(device._native.can_access_peer(peer._native))


def enable_access(device: DeviceCore, other: object) -> None:
    """Let kernels of a device use another's memory; see `Device.enable_access`."""
    peer = _check_device(device, other, "enable_access")
    if peer is device or peer._context in device._access:
        return
    if not can_access(device, peer):
        raise UnimplementedError(
            f"{device._name} cannot use the memory of {peer._name}: "
            f"{_why_not(device, peer)}; {_advice(device, peer)}"
        )
    device._native.enable_peer(peer._native)
    with timelines.lock:  # two threads at once; others read it without the lock
        device._access = device._access | {peer._context}


def is_peer(device: DeviceCore, other: DeviceCore) -> bool:
    """Return whether the driver copies between two devices."""
    return device._native.domain is other._native.domain and _FEATURE in device._native.features


def check_guest(device: DeviceCore, buffer: Extent, what: str, need: int, where: str) -> Storage:
    """Return the storage of another device's buffer that a kernel may use; raise if it may not."""
    owner = buffer._device
    storage = buffer._live()
    if need & DISPATCH and owner._context in device._access:
        if buffer._denied & need:
            raise InvalidArgumentError(explain_refusal(what, buffer._denied & need))
        return storage
    belongs = f"{what}: the buffer belongs to {owner._name}, and this {where} to {device._name}; "
    if need & DISPATCH and is_peer(device, owner) and can_access(device, owner):
        advice = "call enable_access() of this device with that one first"
    elif what == "dealloca":
        advice = f"submit it to a queue of {owner._name}"
    else:
        advice = _advice(device, owner)
    raise InvalidArgumentError(belongs + advice)


# Operations


def find_owners(device: DeviceCore, used: object) -> frozenset[DeviceContext]:
    """Return the contexts of other devices whose storages an operation keeps alive."""
    found: set[DeviceContext] = set()
    rest = [used]
    while rest:
        each: Any = rest.pop()
        if each.__class__ is tuple or each.__class__ is list:
            rest.extend(each)
        elif isinstance(each, Storage):
            if each._heap is not device._heap:
                found.add(each._heap._context)
        else:
            found.update(getattr(each, "owners", ()))  # a recording has looked once
    return frozenset(found)


def guard(device: DeviceCore, payload: Payload) -> Payload:
    """Return a payload that visits the devices whose memory it uses, if any."""
    owners = find_owners(device, payload[2])
    return visit(device, payload, owners) if owners and payload[0] is not None else payload


def visit(device: DeviceCore, payload: Payload, owners: Iterable[DeviceContext]) -> Payload:
    """Return a payload that visits `owners` and otherwise acts as `payload`."""
    function, arguments, resources = payload
    lend((arguments, resources))
    visits = tuple([Visit(owner, device._context) for owner in owners])
    if isinstance(function, Replay):
        function.visits = visits
    else:
        assert callable(function)  # noqa: S101 - for the type checker
        function = partial(_run, visits, function)
    return function, arguments, Visited(resources, visits)


def _run(visits: tuple[Visit, ...], function: Callable[..., object], *arguments: object) -> object:
    for each in visits:
        each.begin()
    return function(*arguments)


# Closing


def end_visits(owner: DeviceContext, deadline: float) -> tuple[str, ...]:
    """Cancel the visits of a device that have not begun, and wait for the others (Q6).

    Returns a line for each context that has not ended its own by `deadline`;
    the device is lost then, and its memory left behind.
    """
    progress.act(_refuse_visits, owner, None)
    grace = min(deadline, sync.monotonic() + _GRACE_SECONDS)
    while guests := progress.act(_find_guests, owner, None):
        # The work of a lost device may never end.
        is_hopeless = all(guest.lost is not None for guest in guests)
        if sync.monotonic() >= (grace if is_hopeless else deadline):
            break
        for guest in guests:
            contexts.harvest(guest)
        sync.nap(NAP_SECONDS)
    else:
        return ()
    abandoned = tuple(f"work on {guest.name} that uses memory of {owner.name}" for guest in guests)
    give_up(owner, abandoned)
    return abandoned


def _refuse_visits(step: CallStep, owner: DeviceContext, _: None) -> None:
    """Cancel the operations that are to visit a device and are not issued; refuse later ones."""
    with timelines.lock:
        owner.refuses_visits = True
        for guest in list(owner.guests):
            _cancel_visits(guest, owner, step.work)


def _cancel_visits(guest: DeviceContext, owner: DeviceContext, work: Work) -> None:
    # Not inside of the ``with``: a Ctrl-C in a loop that ends with an ``if`` leaves the lock taken.
    for queue in guest.queues:
        for operation in queue._unissued():
            if _guest_in(operation._resources, owner) is not None:
                end(operation, CANCELLED, closed_before(owner), work)


def _find_guests(_: CallStep, owner: DeviceContext, __: None) -> set[DeviceContext]:
    """Return the contexts whose running operations visit a device."""
    # By what the operations keep alive. Whether a `Visit` still exists would say nothing: its
    # finaliser runs at a time that nobody knows.
    with timelines.lock:
        kept = list(left_behind)  # abandoned work may go on in our memory
        for queue in [queue for guest in list(owner.guests) for queue in guest.queues]:
            kept += [operation._resources for operation in queue._running()]
    found = [_guest_in(resources, owner) for resources in kept]
    return {guest for guest in found if guest is not None}


def _guest_in(resources: object, owner: DeviceContext) -> DeviceContext | None:
    """Return the context whose operation keeps `resources` alive, if that visits `owner`."""
    for visit in visits_of(resources):
        if visit.owner is owner:
            return visit.guest
    return None


# Messages


def _check_device(device: DeviceCore, other: object, what: str) -> DeviceCore:
    """Return an open device that is an argument of another's method."""
    if not isinstance(other, type(device)):
        raise ArgumentTypeError(f"{what} takes a device, not {type(other).__name__}")
    device._live()
    other._live()
    return other


def _why_not(device: DeviceCore, other: DeviceCore) -> str:
    if device._native.domain is not other._native.domain:
        return "they are devices of different drivers"
    if _FEATURE not in device._native.features:
        return f"its backend does not declare the feature {_FEATURE!r}"
    return "the hardware has no connection between them that kernels can use"


def _advice(device: DeviceCore, other: DeviceCore) -> str:
    """Describe how to get memory of `other` to `device`."""
    if is_peer(device, other):
        return "copy it to a buffer of this device first, with queue.copy()"
    return "copy it there through the host first, as in device.upload(buffer.numpy())"
