"""Check the arguments of operations of groups of ranks (docs/collectives.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from hal import bfloat16
from hal._memory.core import DeviceCore
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal.arguments import as_choice, as_int, same_elements, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native_collectives import MESSAGES, REDUCTIONS, CollectiveStep, Participant


class Spot(Protocol):
    """A range of memory that a rank gives or gets."""

    @property
    def memory(self) -> object:
        """The memory; equal for two ranges of the same one."""

    @property
    def start(self) -> int:
        """The first byte's place in it."""

    @property
    def size(self) -> int:
        """The number of bytes."""


_Spot = TypeVar("_Spot", bound=Spot)


def check_group(device: DeviceCore, group: object, kind: str, what: str) -> Participant:
    """Return a group; raise unless it has the device, to which `what` of the call belongs."""
    if not isinstance(group, Participant):
        message = f"{kind}: group is what hal.collectives.join returned, not {type(group).__name__}"
        raise ArgumentTypeError(message)
    if group.device is not device:
        raise InvalidArgumentError(
            f"{kind}: the group has rank {group.rank} on {group.device._name}, and {what} is "
            f"of {device._name}; use a queue of the group's device"
        )
    return group


class _Kind(NamedTuple):
    """The arguments of a kind of operation: errors' names of the buffers, and the rank's name.

    `alike`: the target is the source unless given.
    """

    source: str
    target: str
    rank: str
    reduces: bool
    alike: bool


_KINDS: Final = {
    name: _Kind(f"{name}: the source", f"{name}: the target", rank, reduces, alike)
    for name, rank, reduces, alike in (
        ("all_reduce", "", True, True),
        ("reduce", "root", True, True),
        ("broadcast", "root", False, True),
        ("all_gather", "", False, False),
        ("reduce_scatter", "", True, False),
        ("all_to_all", "", False, False),
        ("send", "peer", False, False),
        ("receive", "peer", False, False),
    )
}


def check(
    device: DeviceCore,
    group: Participant,
    kind: str,
    source: Any,  # noqa: ANN401 - as users give them
    target: Any,  # noqa: ANN401
    op: object,
    root: object,
    find: Callable[[DeviceCore, object, str, int], _Spot],
) -> tuple[CollectiveStep, np.dtype[Any] | None, _Spot | None, _Spot | None]:
    """Check the arguments of an operation.

    Return its step, without a number, the type of the elements, and what `find` says of the
    source and the target that this rank has. ``find(device, thing, what, rights)`` checks a
    buffer, or whatever stands for one and has ``_dtype``.
    """
    if kind == "barrier":
        return _BARRIER, None, None, None
    rules = _KINDS[kind]
    other = _check_rank(group, kind, rules.rank, root) if rules.rank else -1
    name = as_choice(op, REDUCTIONS, f"{kind}: op") if rules.reduces else ""
    if target is None and rules.alike:
        target = source
    rank = group.rank
    reads = kind != "receive" and (kind != "broadcast" or rank == other)
    writes = kind != "send" and (kind != "reduce" or rank == other)
    given = taken = None
    if reads and writes and source is target:
        given = taken = find(device, source, rules.source, TRANSFER_SOURCE | TRANSFER_TARGET)
    else:
        if reads:
            given = find(device, source, rules.source, TRANSFER_SOURCE)
        if writes:
            taken = find(device, target, rules.target, TRANSFER_TARGET)
    step, dtype = agree(
        kind,
        name,
        other,
        rank,
        group.size,
        None if given is None else source._dtype,
        0 if given is None else given.size,
        None if taken is None else target._dtype,
        0 if taken is None else taken.size,
        0 if given is taken else distance_of(given, taken),
    )
    return step, dtype, given, taken


def distance_of(given: Spot | None, taken: Spot | None) -> int | None:
    """Return how many bytes the target begins behind the source; None in two memories."""
    if given is None or taken is None or given.memory != taken.memory:
        return None
    return taken.start - given.start


_BARRIER: Final = CollectiveStep("barrier", 0)


def _check_rank(group: Participant, kind: str, what: str, value: object) -> int:
    rank = as_int(value, f"{kind}: {what} is a rank, an int")
    if not 0 <= rank < group.size:
        raise InvalidArgumentError(
            f"{kind}: {what} is a rank from 0 to {group.size - 1} of the group, not {shown(rank)}"
        )
    if kind in MESSAGES and rank == group.rank:
        message = f"{kind}: rank {rank} is this one; copy between its buffers with queue.copy()"
        raise InvalidArgumentError(message)
    return rank


@functools.lru_cache(maxsize=1024)
def agree(
    kind: str,
    op: str,
    other: int,
    rank: int,
    count: int,
    source: np.dtype[Any] | None,
    source_size: int,
    target: np.dtype[Any] | None,
    target_size: int,
    distance: int | None,
) -> tuple[CollectiveStep, np.dtype[Any]]:
    """Return the step that buffers of some types and sizes make, and its type; raise if none.

    Called for every operation, most of which are like an earlier one: so it is remembered.
    """
    dtype = target if source is None else source
    assert dtype is not None  # noqa: S101 - each rank has one of the two
    if source is not None and target is not None:
        _check_types(kind, source, target)
        _check_sizes(kind, count, source, source_size, target_size)
        if distance is not None:
            _check_apart(kind, rank, source_size, target_size, distance)
    if op:
        _check_numbers(kind, dtype, op)
    size = target_size if source is None else source_size
    if kind == "reduce_scatter":
        size = target_size
    elif kind == "all_to_all":
        size = source_size // count
    return CollectiveStep(
        kind, 0, op, bfloat16.name_of(dtype), size // dtype.itemsize, other
    ), dtype


def _check_types(kind: str, source: np.dtype[Any], target: np.dtype[Any]) -> None:
    if not same_elements(source, target):
        raise ArgumentTypeError(
            f"{kind}: the source is of {bfloat16.name_of(source)}, and the target of "
            f"{bfloat16.name_of(target)}; pass buffer.view(dtype) if the bytes are meant"
        )


def _check_sizes(kind: str, count: int, dtype: np.dtype[Any], whole: int, target: int) -> None:
    """Check that a target fits a source of `whole` bytes."""
    if kind == "all_gather":
        fits = target == whole * count
        needed = f"{count} ranks times {whole} bytes"
    elif kind == "reduce_scatter":
        fits = target * count == whole
        needed = f"the {whole} bytes of the source divided by {count} ranks"
    else:
        fits = target == whole
        needed = f"the {whole} bytes of the source"
    if not fits:
        raise InvalidArgumentError(f"{kind}: the target has {target} bytes, and must have {needed}")
    if kind == "all_to_all" and whole % (count * dtype.itemsize):
        raise InvalidArgumentError(
            f"{kind}: {whole} bytes of {bfloat16.name_of(dtype)} are no whole number of "
            f"elements for each of {count} ranks"
        )


def _check_apart(kind: str, rank: int, source: int, target: int, distance: int) -> None:
    """Check that a source and a target of some bytes are in place, or do not overlap."""
    in_place = {"all_gather": -rank * source, "reduce_scatter": rank * target}.get(kind, 0)
    if kind == "all_to_all":
        in_place = -1 << 62  # there is none
    if distance != in_place and -target < distance < source:
        rule = _IN_PLACE.get(kind, "they are the same")
        raise InvalidArgumentError(f"{kind}: source and target overlap; in place, {rule}")


_IN_PLACE: Final = {
    "all_gather": "the source is this rank's part of the target",
    "reduce_scatter": "the target is this rank's part of the source",
    "all_to_all": "it cannot be done: give another buffer",
}


def _check_numbers(kind: str, dtype: np.dtype[Any], op: str) -> None:
    """Raise unless elements can be reduced."""
    is_real = dtype.kind == "f" or bfloat16.is_bfloat16(dtype)
    if not (is_real or dtype.kind in "iu") or dtype.itemsize > 8:  # noqa: PLR2004
        message = f"{kind}: elements of {bfloat16.name_of(dtype)} are not reduced; use view(dtype)"
        raise ArgumentTypeError(message)
    if op == "average" and not is_real:
        message = f"{kind}: an average of {dtype} is none of that type; use op='sum', and divide"
        raise InvalidArgumentError(message)
