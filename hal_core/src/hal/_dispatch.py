"""Check a kernel's launch and pack its arguments (rule C5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hal import _transfers
from hal._buffer import Buffer, check_index
from hal._executable import Kernel
from hal._indirect import COUNTS_ALIGNMENT, COUNTS_SIZE, MAX_GRID, run_on_host
from hal._memory import Storage
from hal._parameters import ParameterBlock, Resolver
from hal._usage import DISPATCH, INDIRECT, READ, WRITE
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native import IndirectLaunchNode

if TYPE_CHECKING:
    from hal._device import Device

__all__ = ["Grid", "check_counts", "check_dispatch", "check_launch"]

Grid: TypeAlias = "int | Sequence[int] | Buffer"
"""One to three numbers, or the memory that has three of 32 bits when the kernel is launched."""

_Late: TypeAlias = list[tuple[int, Storage, int]]
"""Parameters, by index, and -1 for the grid, whose memory has no address yet (M3); an offset."""


def check_dispatch(
    device: Device,
    kernel: Kernel,
    grid: Grid,
    block: int | Sequence[int] | None,
    args: Sequence[object] | Mapping[str, object],
    shared_memory: int | None,
) -> tuple[_transfers.Payload, bool]:
    """Check a launch; return its payload, and whether that is a host operation.

    See `Queue.dispatch`.
    """
    used: list[object] = []
    late: _Late = []

    def resolve(argument: object, parameter: str) -> int | None:
        if not isinstance(argument, Buffer):
            return None
        need = DISPATCH | (READ if parameter in kernel.signature.constants else WRITE)
        what = f"{kernel.name}: argument {parameter!r}"
        storage = _transfers.check_buffer(device, argument, what, need)
        used.append(storage)
        if storage.address is None:
            names = list(kernel.signature._names)
            late.append((names.index(parameter), storage, argument._offset))
            return 0
        return storage.address + argument._offset

    blocks, threads, shared, parameters = check_launch(
        device, kernel, grid, block, args, shared_memory, resolve
    )
    used += (kernel._module, parameters)
    function: Callable[..., object] = device._launch
    is_host = False
    where: object = blocks
    if blocks is None:
        what = f"dispatch of {kernel.name!r}: the grid"
        storage = _transfers.check_buffer(device, grid, what, INDIRECT)
        assert isinstance(grid, Buffer)  # noqa: S101 - for the type checker
        check_counts(grid, kernel)
        used.append(storage)
        if storage.address is None:
            late.append((-1, storage, grid._offset))
        else:
            where = storage.address + grid._offset
        function = device._launch_indirect
        is_host = "indirect_dispatch" not in device._native.features
    elif not all(blocks):
        return _transfers.NOTHING, False
    arguments = (kernel._function, where, threads, shared, parameters.address)
    if is_host:
        return (_launch_on_host, (device, late, parameters, arguments), used), True
    if late:
        return (_launch_late, (function, late, parameters, arguments), used), False
    return (function, arguments, used), False


def check_launch(
    device: Device,
    kernel: Kernel,
    grid: object,
    block: int | Sequence[int] | None,
    args: Sequence[object] | Mapping[str, object],
    shared_memory: int | None,
    resolve: Resolver,
) -> tuple[tuple[int, int, int] | None, tuple[int, int, int], int, ParameterBlock]:
    """Return the grid, or None if it is in memory, the block, the shared memory, the arguments."""
    if not isinstance(kernel, Kernel):
        message = f"dispatch takes a kernel (program['name']), not {type(kernel).__name__}"
        raise ArgumentTypeError(message)
    if kernel.device is not device:
        message = (
            f"dispatch: kernel {kernel.name!r} was loaded on {kernel.device.name}, and this queue "
            f"belongs to {device.name}; load the program there"
        )
        raise InvalidArgumentError(message)
    blocks = None
    # What has an address on the device is memory: a buffer, or a slot that stands for one.
    if grid.__class__ is int or not hasattr(grid, "subspan"):
        blocks = _three(grid, "grid", kernel)
        for axis, count, most in zip("xyz", blocks, MAX_GRID, strict=True):
            if count > most:
                message = (
                    f"dispatch of {kernel.name!r}: the grid has {count} blocks along {axis}, "
                    f"and at most {most} may be"
                )
                raise InvalidArgumentError(message)
    threads = kernel.block if block is None else _three(block, "block", kernel)
    if threads is None:
        message = (
            f"dispatch of {kernel.name!r}: no block was given, and the kernel has none of its own; "
            "pass block=, or write HAL_BLOCK(x, y, z) in front of the kernel's name in the source"
        )
        raise ArgumentTypeError(message)
    total = threads[0] * threads[1] * threads[2]
    if not 0 < total <= kernel.max_threads_per_block:
        message = (
            f"dispatch of {kernel.name!r}: a block of {threads} is {total} threads, and the kernel "
            f"takes 1 to {kernel.max_threads_per_block} on {device.name}"
        )
        raise InvalidArgumentError(message)
    shared = kernel.shared_memory
    if shared_memory is not None:
        shared = check_index(shared_memory, f"dispatch of {kernel.name!r}: the shared memory")
    most_shared = device.info.max_shared_memory - kernel.static_shared_memory
    if shared > most_shared:
        message = (
            f"dispatch of {kernel.name!r}: {shared} bytes of dynamic shared memory were asked for, "
            f"and {most_shared} are left beside the kernel's own {kernel.static_shared_memory}"
        )
        raise InvalidArgumentError(message)
    return blocks, threads, shared, kernel.signature.pack(kernel.name, args, resolve)


def check_counts(grid: Any, kernel: Kernel) -> None:  # noqa: ANN401 - a buffer or a slot
    """Raise unless a buffer, or a slot, can hold a grid from its beginning on."""
    if grid._size < COUNTS_SIZE or grid._offset % COUNTS_ALIGNMENT:
        message = (
            f"dispatch of {kernel.name!r}: a grid in memory is three 32-bit numbers, {COUNTS_SIZE} "
            f"bytes at a multiple of {COUNTS_ALIGNMENT}; {grid._size} bytes at {grid._offset} "
            "were given"
        )
        raise InvalidArgumentError(message)


def _resolve(
    late: _Late, parameters: ParameterBlock, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Put the addresses in that memory has got meanwhile; return the launch's arguments."""
    for index, storage, offset in late:
        address = _transfers.late_address(storage) + offset
        if index < 0:
            function, _, *rest = arguments
            arguments = (function, address, *rest)
        else:
            parameters.set_address(index, address)
    return arguments


def _launch_late(
    stream: int,
    function: Callable[..., object],
    late: _Late,
    parameters: ParameterBlock,
    arguments: tuple[Any, ...],
) -> None:
    """Launch with addresses that are known by now."""
    function(stream, *_resolve(late, parameters, arguments))


def _launch_on_host(
    device: Device, late: _Late, parameters: ParameterBlock, arguments: tuple[Any, ...]
) -> None:
    """Launch over a grid in memory that the host reads."""
    node = IndirectLaunchNode(*_resolve(late, parameters, arguments))
    run_on_host(device, [(device._launch_indirect, node)])


def _three(value: object, what: str, kernel: Kernel) -> tuple[int, int, int]:
    """Return a grid or a block as three numbers, 1 where none is given."""
    if value.__class__ is int:
        numbers: list[int] = [value]
    else:
        try:
            numbers = [int(number.__index__()) for number in value]  # type: ignore[attr-defined]
        except (TypeError, AttributeError):
            numbers = [_one(value, what, kernel)]
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:  # noqa: PLR2004 - three dimensions
        message = (
            f"dispatch of {kernel.name!r}: the {what} is one to three numbers of 0 or more, "
            f"not {value!r}"
        )
        raise InvalidArgumentError(message)
    first, second, third = (*numbers, 1, 1)[:3]
    return first, second, third


def _one(value: object, what: str, kernel: Kernel) -> int:
    """Return a grid or a block of one number, or raise what else may be given."""
    try:
        if not isinstance(value, bool):
            return int(value.__index__())  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        pass  # an array has the method and may refuse it
    also = ", or a buffer that has it" if what == "grid" else ""
    message = (
        f"dispatch of {kernel.name!r}: the {what} is an int or up to three{also}, not {value!r}"
    )
    raise ArgumentTypeError(message)
