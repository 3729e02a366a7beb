"""Check the shape of a launch: grid, block and shared memory (rule C5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, SupportsIndex

from hal._base.checks import check_index
from hal.arguments import as_three, plain_three, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._kernels.executable import Kernel


MAX_GRID: Final = (2**31 - 1, 65535, 65535)
"""Blocks along x, y and z that every CUDA and HIP device takes (CUDA guide, table of limits)."""


def check_grid(kernel: Kernel, grid: object, also: str = "") -> tuple[int, int, int]:
    """Return a grid as three numbers; raise if it is none. `also` says what else may be given."""
    blocks = _three(grid, "grid", kernel, "dispatch", also)
    if blocks[0] > MAX_GRID[0] or blocks[1] > MAX_GRID[1] or blocks[2] > MAX_GRID[2]:
        raise InvalidArgumentError(f"dispatch of {kernel.name!r}: the grid {too_many(blocks)}")
    return blocks


def too_many(blocks: tuple[int, int, int]) -> str:
    """Describe the axis along which a grid has too many blocks; empty if there is none."""
    for axis, count, most in zip("xyz", blocks, MAX_GRID, strict=True):
        if count > most:
            return f"has {count} blocks along {axis}, and at most {most} may be"
    return ""


def check_block(
    kernel: Kernel,
    block: SupportsIndex | Sequence[SupportsIndex] | None,
    shared_memory: SupportsIndex | None,
    verb: str,
) -> tuple[tuple[int, int, int], int]:
    """Return the threads of a block and its dynamic shared memory, within the kernel's limits."""
    # Only plain ints are looked up: as a key (1, True) equals (1, 1), and it is to be refused.
    is_plain = block is None or type(block) is int
    is_plain |= type(block) is tuple and all(type(count) is int for count in block)
    known = kernel._blocks.get(block) if is_plain else None
    if known is not None:  # checked once: every limit is a constant of the kernel
        return known, check_shared_memory(kernel, shared_memory, verb)
    threads = kernel.block if block is None else _three(block, "block", kernel, verb)
    if threads is None:
        raise ArgumentTypeError(
            f"{verb} of {kernel.name!r}: no block was given, and the kernel has none of its own; "
            "pass block=, or write HAL_BLOCK(x, y, z) in front of the kernel's name in the source"
        )
    total = threads[0] * threads[1] * threads[2]
    if not 0 < total <= kernel.max_threads_per_block:
        raise InvalidArgumentError(
            f"{verb} of {kernel.name!r}: a block of {threads} is {total} threads, and the kernel "
            f"takes 1 to {kernel.max_threads_per_block} on {kernel.device._name}"
        )
    shared = check_shared_memory(kernel, shared_memory, verb)
    if is_plain:
        kernel._blocks[block] = threads
    return threads, shared


def check_shared_memory(kernel: Kernel, shared_memory: object, verb: str) -> int:
    """Return the bytes of dynamic shared memory for a kernel; None means its own default.

    The native device is asked to allow more than any launch had before.
    """
    shared = kernel.shared_memory if shared_memory is None else shared_memory
    if type(shared) is int and 0 <= shared <= kernel._allowed:
        return shared
    what = f"{verb} of {kernel.name!r}"
    shared = check_index(shared, f"{what}: the shared memory")
    whole = kernel.device.info.max_shared_memory
    most = whole - kernel.static_shared_memory
    if most < 0:
        raise InvalidArgumentError(
            f"{what}: the kernel declares {kernel.static_shared_memory:,} bytes of shared memory, "
            f"and a block has {whole:,} on {kernel.device._name}"
        )
    if shared > most:
        raise InvalidArgumentError(
            f"{what}: {shown(shared)} bytes of dynamic shared memory were asked for, "
            f"and {most} are left beside the kernel's own {kernel.static_shared_memory}"
        )
    if shared > max(kernel._allowed, 0):
        kernel._device._native.allow_shared_memory(kernel._function, shared)
    kernel._allowed = max(kernel._allowed, shared)
    return shared


def _three(
    value: object, name: str, kernel: Kernel, verb: str, also: str = ""
) -> tuple[int, int, int]:
    """Return a grid or a block as three numbers; missing ones are 1.

    `also` says what else may be given.
    """
    if type(value) is int and 0 < value <= MAX_GRID[0]:
        return value, 1, 1  # fast path
    least = 0 if name == "grid" else 1
    plain = plain_three(value, least)
    if plain is not None:
        return plain
    what = f"{verb} of {kernel.name!r}: the {name}"
    return as_three(value, what, least, also)
