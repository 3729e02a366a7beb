"""Join groups: by the environment of a launcher, by what is given, or all ranks in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Final, SupportsFloat, SupportsIndex, cast

import hal
from hal.arguments import as_function, as_int, as_items, as_name, as_seconds, as_text, shown
from hal.collectives import embedded
from hal.collectives.group import Group
from hal.collectives.launchers import find_place
from hal.collectives.plugins import choose
from hal.collectives.shortcuts import meet_on
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native_collectives import Join, Place

Rendezvous = str | Callable[[bytes | None], bytes]
"""Where ranks meet, or a function that gives every rank the bytes of rank 0."""

_TIMEOUT: Final = 300.0
_MOST: Final = 1 << 20
_numbers: Final = itertools.count(1)


def join(
    device: hal.Device,
    *,
    rank: SupportsIndex | None = None,
    size: SupportsIndex | None = None,
    rendezvous: Rendezvous | None = None,
    provider: str | None = None,
    name: str = "world",
    timeout: SupportsFloat = _TIMEOUT,
) -> Group:
    """Return this rank's membership in a group of all ranks; blocks until all have come.

    `rank`, `size` and `rendezvous` are those of the launcher (torchrun, mpiexec, srun) unless
    given; without either the group has one rank. `rendezvous` is ``"tcp://HOST:PORT"``, where
    rank 0's library listens (NCCL's), ``"file:///PATH"`` in a folder that all hosts share, another
    text for the threads of one process, or a function: called on each rank, with bytes on rank
    0 and None on the others, it returns rank 0's bytes.

    `provider` is ``"embedded"``, ``"mpi"``, ``"nccl"``, ``"rccl"`` or None for the best that
    serves the device. `timeout` is in seconds: of the rendezvous, and of each operation. All
    ranks give the same `name`.

    Raises `RendezvousError` if not all come in time, `InvalidArgumentError` for a place that
    makes no sense and for a device that is in the group twice, `BackendNotFoundError`,
    `BackendUnavailableError` with each provider's reason, and `PluginError`.
    """
    place, exchange = _place(rank, size, rendezvous)
    context = _device(device, "join")._context  # noqa: SLF001 - only providers need it
    bind, meet = context.native.bind, meet_on(context.calls)
    what = as_name(name, "a group")
    request = Join(device, place, what, as_seconds(timeout), bind, exchange, meet)
    chosen = None
    if provider is not None:
        chosen = as_text(provider, "join: provider is the name of one, or None")
    found = choose(request, chosen)
    native = found.join(request)
    return Group(native, device, found.name, request.name, request.timeout)


def join_all(
    devices: Iterable[hal.Device], *, name: str | None = None, timeout: SupportsFloat = _TIMEOUT
) -> list[Group]:
    """Return the groups of ranks that are all in this process, one for each device, in order.

    By the embedded provider. One thread may drive them all, since no submission blocks. Raises
    `InvalidArgumentError` for no device, and for one that is there twice.
    """
    given = as_items(devices, "join_all takes devices", ordered=True)
    if not given:
        raise InvalidArgumentError("join_all takes one device or more")
    for each in given:
        _device(each, "join_all")
    called = f"group {next(_numbers)}" if name is None else as_name(name, "a group")
    seconds = as_seconds(timeout)
    natives = embedded.join_all(given, called)
    return [
        Group(native, device, embedded.PROVIDER.name, called, seconds)
        for native, device in zip(natives, given, strict=True)
    ]


def _place(
    rank: object, size: object, rendezvous: object
) -> tuple[Place, Callable[[bytes | None], bytes] | None]:
    """Return the place of a rank, as given or as the environment says."""
    exchange = None
    address = None
    if isinstance(rendezvous, str):
        address = as_text(rendezvous, "join: rendezvous is a text")
    elif rendezvous is not None:
        function = as_function(rendezvous, "join: rendezvous, if it is no text,")
        exchange = cast("Callable[[bytes | None], bytes]", function)
    if (rank is None) != (size is None):
        raise InvalidArgumentError("join takes rank and size together, or neither")
    if rank is None:
        found = find_place()
        if address is None:
            return found, exchange
        return Place(found.rank, found.size, found.local_rank, address, found.launcher), exchange
    number = as_int(rank, "join: rank is an int")
    count = as_int(size, "join: size is an int")
    if not 0 < count <= _MOST or not 0 <= number < count:
        message = f"join: rank is from 0 to size - 1, not {shown(number)} of {shown(count)}"
        raise InvalidArgumentError(message)
    return Place(number, count, None, address, "given"), exchange


def _device(device: object, what: str) -> hal.Device:
    if not isinstance(device, hal.Device):
        raise ArgumentTypeError(f"{what} takes a device, not {type(device).__name__}")
    device.statistics()  # raises for one that is closed
    return device
