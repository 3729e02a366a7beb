"""Check a kernel's launch and pack its arguments (rule C5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hal import _transfers
from hal._buffer import Buffer, check_index
from hal._executable import Kernel
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._device import Device

__all__ = ["check_dispatch"]

_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
"""Blocks along x, y and z: what every CUDA and HIP device takes (CUDA guide, table of limits)."""


def check_dispatch(
    device: Device,
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object] | Mapping[str, object],
    shared_memory: object,
) -> _transfers.Payload:
    """Check a launch and return its payload; see `Queue.dispatch`."""
    if not isinstance(kernel, Kernel):
        message = f"dispatch takes a kernel (program['name']), not {type(kernel).__name__}"
        raise ArgumentTypeError(message)
    if kernel.device is not device:
        message = (
            f"dispatch: kernel {kernel.name!r} was loaded on {kernel.device.name}, and this queue "
            f"belongs to {device.name}; load the program there"
        )
        raise InvalidArgumentError(message)
    blocks = _three(grid, "grid", kernel)
    threads = _three(block, "block", kernel)
    for axis, count, most in zip("xyz", blocks, _MAX_GRID, strict=True):
        if count > most:
            message = (
                f"dispatch of {kernel.name!r}: the grid has {count} blocks along {axis}, "
                f"and at most {most} may be"
            )
            raise InvalidArgumentError(message)
    total = threads[0] * threads[1] * threads[2]
    if not 0 < total <= kernel.max_threads_per_block:
        message = (
            f"dispatch of {kernel.name!r}: a block of {threads} is {total} threads, and the kernel "
            f"takes 1 to {kernel.max_threads_per_block} on {device.name}"
        )
        raise InvalidArgumentError(message)
    shared = check_index(shared_memory, f"dispatch of {kernel.name!r}: the shared memory")
    most_shared = device.info.max_shared_memory - kernel.static_shared_memory
    if shared > most_shared:
        message = (
            f"dispatch of {kernel.name!r}: {shared} bytes of dynamic shared memory were asked for, "
            f"and {most_shared} are left beside the kernel's own {kernel.static_shared_memory}"
        )
        raise InvalidArgumentError(message)
    used: list[object] = [kernel._module]

    def resolve(argument: object, parameter: str) -> int | None:
        if not isinstance(argument, Buffer):
            return None
        _transfers.check_buffer(device, argument, f"{kernel.name}: argument {parameter!r}")
        used.append(argument._storage)
        return argument.address

    parameters = kernel.signature.pack(kernel.name, args, resolve)
    if not all(blocks):
        return _transfers.NOTHING
    used.append(parameters)
    arguments = (kernel._function, blocks, threads, shared, parameters.address)
    return device._launch, arguments, used


def _three(value: int | Sequence[int], what: str, kernel: Kernel) -> tuple[int, int, int]:
    """Return a grid or a block as three numbers, 1 where none is given."""
    if value.__class__ is int:
        numbers: list[int] = [value]
    else:
        try:
            numbers = [int(number.__index__()) for number in value]  # type: ignore[union-attr]
        except (TypeError, AttributeError):
            if not hasattr(value, "__index__") or isinstance(value, bool):
                message = (
                    f"dispatch of {kernel.name!r}: the {what} is an int or up to three, "
                    f"not {value!r}"
                )
                raise ArgumentTypeError(message) from None
            numbers = [int(value.__index__())]
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:  # noqa: PLR2004 - three dimensions
        message = (
            f"dispatch of {kernel.name!r}: the {what} is one to three numbers of 0 or more, "
            f"not {value!r}"
        )
        raise InvalidArgumentError(message)
    first, second, third = (*numbers, 1, 1)[:3]
    return first, second, third
